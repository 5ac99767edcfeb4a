"""The `lockstep` command: its subcommands and global options."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
import typer.main

from algebra.redaction import redacted
from cli import connecting, logs
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
    tokens,
    views,
    watch,
)
from cli.group import LockstepGroup
from cli.logs import LogFormat, LogLevel
from cli.options import settings
from cli.text import visible
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
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", envvar="LOCKSTEP_LOG_FORMAT", help="How log records are written."),
    ] = LogFormat.TEXT,
    ca: Annotated[
        Path | None,
        typer.Option("--ca", envvar="LOCKSTEP_CA", help="PEM file of the mediator's authority; means TLS."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", envvar="LOCKSTEP_CERTIFICATE", help="PEM file to be known by."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", envvar="LOCKSTEP_KEY", help="PEM file of the certificate's key.")
    ] = None,
    server_name: Annotated[
        str,
        typer.Option(
            "--server-name",
            envvar="LOCKSTEP_SERVER_NAME",
            help="The name in the mediator's certificate, if it is not the address's.",
        ),
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar="LOCKSTEP_INSECURE",
            help="Allow plain text to other machines, token included.",
        ),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    chosen = settings(context)
    chosen.debug, chosen.log_level, chosen.log_format = debug, log_level, log_format
    logs.configure(log_level, debug=debug, form=log_format)
    connecting.configure(ca, certificate, key, server_name, insecure)


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
app.add_typer(tokens.app, name="token")
app.add_typer(lab.app, name="lab")


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    sys.excepthook = logs.redacted_trace
    try:
        typer.main.get_command(app).main(prog_name="lockstep")
    except Exception as error:
        if "--debug" in sys.argv or os.environ.get("LOCKSTEP_DEBUG"):
            raise
        summary = visible(redacted(" ".join(str(error).split())))
        print(
            f"error: unexpected {type(error).__name__}: {summary} (--debug shows the trace)", file=sys.stderr
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
