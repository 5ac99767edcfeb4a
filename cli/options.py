"""Options and arguments that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.logs import LogFormat, LogLevel

DEFAULT_ADDRESS = "127.0.0.1:7000"


class Consistency(StrEnum):
    """What a view can be asked to be."""

    COMPLETE = "complete"
    STRONG = "strong"
    WEAK = "weak"
    CONVERGENT = "convergent"


Address = Annotated[
    str, typer.Option("--address", envvar="LOCKSTEP_ADDRESS", help="Where the mediator listens.")
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", envvar="LOCKSTEP_TIMEOUT", min=0.1, help="Seconds to wait for the mediator to answer."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ConfigFile = Annotated[Path, typer.Argument(metavar="FILE", help="The configuration file (YAML).")]
ViewName = Annotated[str, typer.Argument(metavar="NAME", help="The view's name.")]
SourceName = Annotated[str | None, typer.Option("--source", help="The source; default: all in the file.")]
MaintenanceName = Annotated[
    str,
    typer.Option(
        "--maintenance",
        metavar="ALGORITHM",
        help="The maintenance algorithm, such as sweep; default: the one for the asked consistency.",
    ),
]
AskedConsistency = Annotated[
    Consistency | None,
    typer.Option("--consistency", help="What the view must be; default: what the algorithm gives."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Algorithms that are wrong under concurrency are wanted.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the steps, change nothing.")]


@dataclass
class Settings:
    """What the global options said."""

    debug: bool = False
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.TEXT

    @property
    def arguments(self) -> list[str]:
        """The same global options, for a child process."""
        form = ["--log-format", self.log_format.value] if self.log_format is not LogFormat.TEXT else []
        return ["--log-level", self.log_level.value, *form, *(["--debug"] if self.debug else [])]


def settings(context: typer.Context) -> Settings:
    """The global options of this invocation."""
    return context.ensure_object(Settings)
