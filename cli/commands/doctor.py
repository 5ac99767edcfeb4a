"""`lockstep doctor`: everything that can be checked before, or while, a deployment runs; one line each."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from algebra.errors import LockstepError
from algebra.redaction import redacted
from cli import build, config, connecting, text
from cli.commands.servers import EngineOption, MediatorListen, WarehouseFolder, checked_listen
from cli.config import Configuration
from cli.config_model import ConnectSection, Engine, ServerSection
from cli.options import AsJson, ConfigFile
from cli.output import console, emit_json
from cli.text import visible
from protos.security.settings import PLAIN, Connection

GOOD, WARNING, WRONG = "ok", "warning", "wrong"
_STYLES = {GOOD: "green", WARNING: "yellow", WRONG: "bold red"}
_CONNECT_SECONDS = 3.0
_LEAST_SPACE = 1 << 30
_FIRST_PLAUSIBLE_YEAR = 2024
_SOON = timedelta(days=14)
"""A certificate that ends within that time is worth a warning."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    state: str
    what: str
    detail: str


def doctor(
    file: ConfigFile,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds per network check.")] = 3.0,
    engine: EngineOption = None,
    listen: MediatorListen = None,
    warehouse: WarehouseFolder = None,
    as_json: AsJson = False,
) -> None:
    """Check a configuration and what it needs: certificates, sources, rights, ports, wrappers, disk, clock.

    Nothing is changed anywhere. Exit code 1 if something is wrong; what does not run yet is only a warning.
    """
    findings = []
    mediator = {"engine": engine, "listen": checked_listen(listen), "warehouse": warehouse}
    for finding in _findings(file, mediator, timeout):
        findings.append(finding)
        if not as_json:
            line = Text.assemble(
                (f"{finding.state:<8}", _STYLES[finding.state]), visible(f"{finding.what}: {finding.detail}")
            )
            console().print(line, soft_wrap=True)
    if as_json:
        emit_json([vars(finding) for finding in findings])
    if any(finding.state == WRONG for finding in findings):
        raise typer.Exit(1)


def _findings(file: Path, mediator: Mapping[str, Any], timeout: float) -> Iterator[Finding]:
    try:
        configuration = config.load(file)
    except LockstepError as error:
        yield Finding(WRONG, "configuration", error.message)
        return
    configuration = replace(configuration, mediator=config.override(configuration.mediator, **mediator))
    sources, views = len(configuration.sources), len(configuration.views)
    yield Finding(GOOD, "configuration", f"{text.count(sources, 'source')}, {text.count(views, 'view')}")
    servers = {"mediator": configuration.mediator} | {
        f"wrapper {name}": section for name, section in configuration.served.items()
    }
    for title, section in servers.items():
        if section.tls is not None or section.tokens is not None:
            yield _checked(f"protection of {title}", lambda section=section: _protection(section))  # type: ignore[misc]
    for name, source in configuration.sources.items():
        if build.connection(source.connect).tls is not None:
            yield _checked(f"connection to {name}", lambda source=source: _connection(source.connect))  # type: ignore[misc]
    for name in configuration.served:
        yield _checked(f"source {name}", lambda name=name: _source(configuration, name))  # type: ignore[misc]
    for name in configuration.sources:
        yield _checked(f"wrapper {name}", lambda name=name: _wrapper(configuration, name, timeout))  # type: ignore[misc]
    yield _checked("mediator", lambda: _mediator(configuration, timeout))
    yield _checked("warehouse", lambda: _warehouse(Path(configuration.mediator.warehouse)))
    if configuration.mediator.engine is not Engine.DUCKDB:
        yield _checked("java", _java)
    yield _clock()


def _checked(what: str, look: Callable[[], tuple[str, str]]) -> Finding:
    try:
        state, detail = look()
    except LockstepError as error:
        return Finding(WRONG, what, error.message)
    except Exception as error:
        return Finding(WRONG, what, redacted(f"{type(error).__name__}: {' '.join(str(error).split())}"))
    return Finding(state, what, detail)


def _protection(section: ServerSection) -> tuple[str, str]:
    """Whether a server would start with its files, and whether its callers would take its certificate."""
    from protos.security.tls import served_files
    from protos.security.tokens import TokenFile

    security, found = build.security(section), []
    state = GOOD
    if security.tls is not None:
        served_files(security.tls)
        state, detail = _certificate(security.tls.certificate, security.tls.key, server=True)
        found.append(detail)
    if security.tokens is not None:
        found.append(text.count(len(TokenFile(security.tokens).entries()), "token"))
    return state, ", ".join(found)


def _connection(section: ConnectSection) -> tuple[str, str]:
    """Whether the mediator could show its certificate to a wrapper, and check the wrapper's."""
    from protos.security.tls import channel_files

    connection = build.connection(section)
    channel_files(connection)
    tls = connection.tls
    if tls is None or tls.certificate is None or tls.key is None:
        return GOOD, "by TLS"
    return _certificate(tls.certificate, tls.key, server=False)


def _certificate(certificate: Path, key: Path, *, server: bool) -> tuple[str, str]:
    from protos.security.validity import valid_until

    until = valid_until(certificate, key, server=server)
    left = until - datetime.now(UTC)
    return WARNING if left < _SOON else GOOD, f"{certificate} is valid until {text.moment(until)}"


def _source(configuration: Configuration, name: str) -> tuple[str, str]:
    """Whether the adapter connects, shows its relations, and may prepare them; as a dry run."""
    adapter = build.adapter(configuration, name)
    try:
        relations = list(adapter.catalog().relations)
        steps = adapter.prepare(relations, dry_run=True)
        capture = adapter.capabilities.capture
    finally:
        adapter.close()
    found = f"{text.count(len(relations), 'relation')}, capture by {capture}"
    path = _local_path(configuration.source(name).url or "")
    for needed in (path, path.parent) if steps and path is not None else ():
        if not os.access(needed, os.W_OK):
            steps_needed = text.count(len(steps), "step")
            return WRONG, f"{found}, which needs {steps_needed}, but {needed} cannot be written"
    return GOOD, f"{found}, {'to be installed' if steps else 'installed'}"


def _local_path(url: str) -> Path | None:
    kind, separator, rest = url.partition(":///")
    return Path(rest) if separator and kind in ("sqlite", "duckdb") else None


def _wrapper(configuration: Configuration, name: str, timeout: float) -> tuple[str, str]:
    section = configuration.sources[name]
    if section.address is None and (section.listen or ":0").endswith(":0"):
        return WARNING, "takes any free port: `lockstep up` finds it there, a mediator of its own does not"
    address = configuration.address(name)
    if not _listens(address, timeout):
        if name in configuration.served:
            return _to_be_started(address, section.listen or "127.0.0.1:0", section.metrics)
        return WRONG, f"nothing answers at {address}; is the wrapper running?"
    from protos.lockstep.v1 import wrapper_pb2 as pb
    from protos.lockstep.v1.wrapper_pb2_grpc import WrapperServiceStub

    with _channel(address, build.connection(configuration.sources[name].connect)) as channel:
        try:
            found = WrapperServiceStub(channel).DescribeSource(pb.DescribeSourceRequest(), timeout=timeout)
        except Exception as error:
            needs = "`connect` of the mediator's file" if section.connect == ConnectSection() else ""
            return _unanswered(address, section, needs, error)
    if found.source != name:
        return WRONG, f"at {address} serves source {found.source!r}"
    return GOOD, f"runs at {address}, shows {text.count(len(found.relations), 'relation')}"


def _mediator(configuration: Configuration, timeout: float) -> tuple[str, str]:
    address = config.reachable(configuration.mediator.listen)
    host, _, port = address.rpartition(":")
    if port == "0":
        return GOOD, f"will take any free port of {host}"
    if not _listens(address, timeout):
        return _to_be_started(address, configuration.mediator.listen, configuration.mediator.metrics)
    from protos.lockstep.v1 import mediator_pb2 as pb
    from protos.lockstep.v1.mediator_pb2_grpc import MediatorServiceStub

    connection = connecting.chosen()
    with _channel(address, connection) as channel:
        try:
            status = MediatorServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=timeout)
        except Exception as error:
            needs = "--ca and LOCKSTEP_TOKEN" if connection == PLAIN else ""
            return _unanswered(address, configuration.mediator, needs, error)
    if status.problem:
        return WRONG, f"runs at {address}, but: {status.problem}"
    troubled = [f"{view.view} is {view.state}" for view in status.views if view.state != "maintained"]
    if troubled:
        return WRONG, f"runs at {address}, but {', '.join(troubled)}"
    return GOOD, f"runs at {address}, keeps {text.count(len(status.views), 'view')}"


def _unanswered(address: str, section: ServerSection, needs: str, error: Exception) -> tuple[str, str]:
    """What listens there gave no answer; a protected server may. `needs`: what it was not shown."""
    if needs and (section.tls or section.tokens):
        return (
            WARNING,
            f"listens at {address}, and was not asked more: it is protected, {needs} would open it",
        )
    return WRONG, f"at {address} answers no Lockstep: {_rpc(error)}"


def _warehouse(root: Path) -> tuple[str, str]:
    try:
        from mediator.warehouse.format import check_format, check_takeable
    except ImportError:
        return WARNING, "not checked: the mediator's libraries are not installed here"
    check_format(root)
    check_takeable(root)
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return WRONG, f"{existing} cannot be written"
    free = shutil.disk_usage(existing).free
    what = "there" if (root / "versions").is_dir() else "to be made"
    found = f"{root} ({what}), {text.size(free)} free"
    if free < _LEAST_SPACE:
        return WRONG, f"{found}; make room for {text.size(_LEAST_SPACE)} or more"
    return GOOD, found


def _java() -> tuple[str, str]:
    from mediator.engines.java import use_java

    use_java()
    return GOOD, os.environ.get("JAVA_HOME", "found")


def _clock() -> Finding:
    """Lags are differences of hosts' clocks; a clock that was never set makes all of them nonsense."""
    year = time.gmtime().tm_year
    if year < _FIRST_PLAUSIBLE_YEAR:
        return Finding(WRONG, "clock", f"says {year}; set it, and keep the hosts in step (NTP)")
    return Finding(GOOD, "clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def _listens(address: str, timeout: float) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except OSError:
        return False
    return True


def _to_be_started(address: str, listen: str, metrics: str | None) -> tuple[str, str]:
    """A server that does not run: whether it could have its ports."""
    for wanted in (listen, metrics):
        problem = _taken(wanted) if wanted is not None else ""
        if problem:
            return WRONG, f"does not run at {address}, and cannot listen on {wanted}: {problem}"
    return WARNING, f"does not run at {address}; the port is free"


def _taken(listen: str) -> str:
    """Why nobody can listen there now; empty if one can."""
    host, _, port = listen.rpartition(":")
    bare = host.strip("[]")
    try:
        family, kind, _, _, where = socket.getaddrinfo(bare, int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(where)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _channel(address: str, connection: Connection):  # type: ignore[no-untyped-def]
    from protos.security.tls import open_channel
    from protos.version import PROTOCOL_VERSION

    return open_channel(address, connection, PROTOCOL_VERSION)


def _rpc(error: Exception) -> str:
    import grpc

    from protos.status import error_from_rpc

    return error_from_rpc(error).message if isinstance(error, grpc.RpcError) else str(error)
