"""`lockstep demo`: see it work, and see it checked."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from algebra.errors import ConfigurationError
from algebra.private_files import make_private_folder
from cli.config_model import Engine
from cli.options import settings
from cli.output import console


def demo(
    context: typer.Context,
    engine: Annotated[Engine, typer.Option("--engine", help="Where joins run.")] = Engine.SPARK,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=1, help="How long the writers write; default 20.")
    ] = None,
    transactions: Annotated[
        int | None, typer.Option("--transactions", min=3, help="How many transactions they make in all.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Work in this new or empty folder, and keep it.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="The seed of data and transactions.")] = 1,
) -> None:
    """Run three live databases and a view over all of them, then check every version it had.

    Two SQLite files and a DuckDB file, a wrapper process each, a mediator, and a writer process per database.
    Each version of the view is compared with a recompute from what the writers themselves recorded.
    Exit code 1 if any version differs.
    """
    from cli.demo.run import Demo, Plan

    if seconds is None:
        seconds = 0.0 if transactions is not None else 20.0
    signal.signal(signal.SIGTERM, _end)
    with _folder(folder, keep) as place:
        plan = Plan(place, engine, seconds, transactions or 0, seed, settings(context).arguments)
        right = Demo(plan, console()).run()
        if folder is not None or keep:
            print(f"kept: {place}; go on with `lockstep up {place / 'lockstep.yaml'}`")
    if not right:
        raise typer.Exit(1)


@contextmanager
def _folder(folder: Path | None, keep: bool) -> Iterator[Path]:
    if folder is not None:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigurationError(f"{folder}: is not empty; the demo starts from scratch")
        make_private_folder(folder)
        yield folder.resolve()
        return
    place = Path(tempfile.mkdtemp(prefix="lockstep-demo-"))
    try:
        yield place
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


def _end(number: int, frame: FrameType | None) -> None:
    """Leave through every context manager, so that all children are stopped."""
    sys.exit(128 + number)
