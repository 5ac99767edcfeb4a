"""`lockstep backup`: a copy of the warehouse, also while a mediator writes to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from algebra.errors import MissingExtraError
from cli import config, text
from cli.commands.servers import WarehouseFolder
from cli.options import AsJson, ConfigFile
from cli.output import emit_json


def backup(
    file: ConfigFile,
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder for the copy.")],
    warehouse: WarehouseFolder = None,
    as_json: AsJson = False,
) -> None:
    """Copy the warehouse of a configuration. A mediator started on the copy goes on from its versions."""
    try:
        from mediator.warehouse.backup import backup as copy
    except ImportError as error:
        raise MissingExtraError(f"the warehouse ({error})", "mediator") from error
    section = config.override(config.load(file).mediator, warehouse=warehouse)
    versions = copy(Path(section.warehouse), target.resolve())
    if as_json:
        emit_json({"folder": str(target.resolve()), "versions": versions})
        return
    for name, version in sorted(versions.items()):
        print(f"view {text.visible(name)} at version {version}")
    print(f"copied {text.count(len(versions), 'view')} to {target}")
