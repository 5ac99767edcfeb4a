"""The `lockstep` command: its subcommands and global options."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Annotated

import typer
import typer.main

from cli import logs
from cli.commands import (
    adapters,
    backup,
    demo,
    doctor,
    explain,
    history,
    query,
    servers,
    status,
    views,
    watch,
)
from cli.group import LockstepGroup
from cli.logs import LogLevel
from cli.options import settings
from lab import command as lab

app = typer.Typer(
    name="lockstep",
    cls=LockstepGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Materialized views over autonomous databases, in step with every source transaction.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"lockstep {metadata.version('lockstep')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="LOCKSTEP_DEBUG", help="Show traces and log everything.")
    ] = False,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", envvar="LOCKSTEP_LOG_LEVEL", help="What is logged to stderr.")
    ] = LogLevel.INFO,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    chosen = settings(context)
    chosen.debug, chosen.log_level = debug, log_level
    logs.configure(log_level, debug=debug)


app.command("demo")(demo.demo)
app.command("up")(servers.up)
app.command("wrapper")(servers.wrapper)
app.command("mediator")(servers.mediator)
app.add_typer(views.app, name="view")
app.command("query")(query.query)
app.command("history")(history.history)
app.command("watch")(watch.watch)
app.command("status")(status.status)
app.command("explain")(explain.explain)
app.command("doctor")(doctor.doctor)
app.command("backup")(backup.backup)
app.add_typer(adapters.app, name="adapter")
app.add_typer(lab.app, name="lab")


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    try:
        typer.main.get_command(app).main(prog_name="lockstep")
    except Exception as error:
        if "--debug" in sys.argv or os.environ.get("LOCKSTEP_DEBUG"):
            raise
        summary = " ".join(str(error).split())
        print(
            f"error: unexpected {type(error).__name__}: {summary} (--debug shows the trace)", file=sys.stderr
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
