"""`lockstep wrapper`, `lockstep mediator` and `lockstep up`: the processes that serve."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from algebra.errors import ConfigurationError
from cli import build, config
from cli.children import Child, Family, relay
from cli.config_model import Engine, host_port
from cli.options import ConfigFile, SourceName, settings
from cli.serving import serve, stop_signals

START_TIMEOUT = 180.0
"""Seconds until a process that prints no ready line is given up; Spark's first start is the slow one."""

EngineOption = Annotated[
    Engine | None, typer.Option("--engine", envvar="LOCKSTEP_ENGINE", help="Where joins run.")
]
MediatorListen = Annotated[
    str | None,
    typer.Option("--listen", envvar="LOCKSTEP_MEDIATOR_LISTEN", help="host:port instead of the file's."),
]
WarehouseFolder = Annotated[
    str | None,
    typer.Option("--warehouse", envvar="LOCKSTEP_WAREHOUSE", help="Folder or URI instead of the file's."),
]
Supervised = Annotated[bool, typer.Option("--supervised", hidden=True, help="Stop when stdin closes.")]


def wrapper(
    context: typer.Context,
    file: ConfigFile,
    source: SourceName = None,
    listen: Annotated[
        str | None, typer.Option("--listen", help="host:port instead of the file's; for one source.")
    ] = None,
    supervised: Supervised = False,
) -> None:
    """Serve one source, or every source of the file in a process of its own."""
    configuration = config.load(file)
    names = configuration.chosen(source)
    if len(names) == 1:
        server = build.wrapper_server(configuration, names[0], checked_listen(listen))
        serve(server, f"wrapper {names[0]}", supervised=supervised)
        return
    if listen is not None:
        raise ConfigurationError("--listen is for one source; name it with --source")
    build.check_adapters(configuration, names)
    stop = stop_signals()
    with Family(relay(settings(context).log_format)) as family:
        _start_wrappers(family, file, names, settings(context).arguments, stop)
        family.watch(stop)


def mediator(
    file: ConfigFile,
    engine: EngineOption = None,
    listen: MediatorListen = None,
    warehouse: WarehouseFolder = None,
    max_batch: Annotated[
        int | None,
        typer.Option("--max-batch", envvar="LOCKSTEP_MAX_BATCH", min=1, help="Transactions per sweep."),
    ] = None,
    source_address: Annotated[
        list[str] | None,
        typer.Option("--source-address", metavar="NAME=HOST:PORT", help="Where a wrapper is; repeatable."),
    ] = None,
    supervised: Supervised = False,
) -> None:
    """Keep and serve the views. The file's views are created if they are not there yet."""
    configuration = config.load(file)
    section = config.override(
        configuration.mediator,
        engine=engine,
        listen=checked_listen(listen),
        warehouse=warehouse,
        max_batch=max_batch,
    )
    server = build.mediator_server(configuration, section, _addresses(source_address or []))
    serve(server, "mediator", supervised=supervised)


def up(context: typer.Context, file: ConfigFile, engine: EngineOption = None) -> None:
    """Start every wrapper of the file and the mediator; Ctrl-C stops all of them."""
    configuration = config.load(file)
    names = list(configuration.served)
    build.check_adapters(configuration, names)
    for name in configuration.sources:
        if name not in names:
            configuration.address(name)
    arguments = settings(context).arguments
    stop = stop_signals()
    with Family(relay(settings(context).log_format)) as family:
        try:
            wrappers = _start_wrappers(family, file, names, arguments, stop)
            child = family.start("mediator", mediator_arguments(file, arguments, wrappers, engine))
            address = child.wait_ready(START_TIMEOUT, stop)
        except KeyboardInterrupt:
            return
        print(f"lockstep is up: mediator on {address}, {len(wrappers)} wrappers", flush=True)
        family.watch(stop)


def wrapper_arguments(file: Path, common: Sequence[str], name: str) -> list[str]:
    """The command line of one wrapper as a child."""
    return [*common, "wrapper", str(file), "--source", name, "--supervised"]


def mediator_arguments(
    file: Path, common: Sequence[str], wrappers: Mapping[str, str], engine: Engine | None
) -> list[str]:
    """The command line of the mediator as a child; `wrappers` are the addresses they really have."""
    addresses = [word for name, at in wrappers.items() for word in ("--source-address", f"{name}={at}")]
    chosen = ["--engine", engine.value] if engine is not None else []
    return [*common, "mediator", str(file), "--supervised", *addresses, *chosen]


def _start_wrappers(
    family: Family, file: Path, names: Sequence[str], common: Sequence[str], stop: threading.Event
) -> dict[str, str]:
    children: dict[str, Child] = {}
    for name in names:
        children[name] = family.start(f"wrapper {name}", wrapper_arguments(file, common, name))
    return {name: config.reachable(child.wait_ready(START_TIMEOUT, stop)) for name, child in children.items()}


def checked_listen(address: str | None) -> str | None:
    """The address that `--listen` gives, if it is one."""
    try:
        return None if address is None else host_port(address)
    except ValueError as error:
        raise ConfigurationError(f"--listen: {error}") from None


def _addresses(given: Sequence[str]) -> dict[str, str]:
    addresses = {}
    for item in given:
        name, separator, address = item.partition("=")
        try:
            addresses[name] = host_port(address)
        except ValueError:
            separator = ""
        if not separator:
            raise ConfigurationError(f"--source-address: expected NAME=HOST:PORT, not {item!r}")
    return addresses
