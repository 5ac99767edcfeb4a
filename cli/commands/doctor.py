"""`lockstep doctor`: everything that can be checked before, or while, a deployment runs; one line each."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from algebra.errors import LockstepError
from algebra.redaction import redacted
from cli import build, config, connecting, text
from cli.config import Configuration
from cli.config_model import Engine
from cli.options import AsJson, ConfigFile
from cli.output import console, emit_json
from protos.security.settings import Connection

GOOD, WARNING, WRONG = "ok", "warning", "wrong"
_STYLES = {GOOD: "green", WARNING: "yellow", WRONG: "bold red"}
_CONNECT_SECONDS = 3.0
_LEAST_SPACE = 1 << 30
_FIRST_PLAUSIBLE_YEAR = 2024


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    state: str
    what: str
    detail: str


def doctor(
    file: ConfigFile,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds per network check.")] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Check a configuration and what it needs: sources, rights, ports, wrappers, Java, disk, clock.

    Nothing is changed anywhere. Exit code 1 if something is wrong; what does not run yet is only a warning.
    """
    findings = []
    for finding in _findings(file, timeout):
        findings.append(finding)
        if not as_json:
            line = Text.assemble(
                (f"{finding.state:<8}", _STYLES[finding.state]), f"{finding.what}: {finding.detail}"
            )
            console().print(line, soft_wrap=True)
    if as_json:
        emit_json([vars(finding) for finding in findings])
    if any(finding.state == WRONG for finding in findings):
        raise typer.Exit(1)


def _findings(file: Path, timeout: float) -> Iterator[Finding]:
    try:
        configuration = config.load(file)
    except LockstepError as error:
        yield Finding(WRONG, "configuration", error.message)
        return
    sources, views = len(configuration.sources), len(configuration.views)
    yield Finding(GOOD, "configuration", f"{text.count(sources, 'source')}, {text.count(views, 'view')}")
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
    if steps and path is not None and not os.access(path, os.W_OK):
        return WRONG, f"{found}, which needs {text.count(len(steps), 'step')}, but {path} cannot be written"
    return GOOD, f"{found}, {'to be installed' if steps else 'installed'}"


def _local_path(url: str) -> Path | None:
    kind, separator, rest = url.partition(":///")
    return Path(rest) if separator and kind in ("sqlite", "duckdb") else None


def _wrapper(configuration: Configuration, name: str, timeout: float) -> tuple[str, str]:
    address = configuration.address(name)
    if not _listens(address, timeout):
        if name in configuration.served:
            return WARNING, f"does not run at {address}; the port is free"
        return WRONG, f"nothing answers at {address}; is the wrapper running?"
    from protos.lockstep.v1 import wrapper_pb2 as pb
    from protos.lockstep.v1.wrapper_pb2_grpc import WrapperServiceStub

    with _channel(address, build.connection(configuration.sources[name].connect)) as channel:
        try:
            found = WrapperServiceStub(channel).DescribeSource(pb.DescribeSourceRequest(), timeout=timeout)
        except Exception as error:
            return WRONG, f"at {address} answers no Lockstep: {_rpc(error)}"
    if found.source != name:
        return WRONG, f"at {address} serves source {found.source!r}"
    return GOOD, f"runs at {address}, shows {text.count(len(found.relations), 'relation')}"


def _mediator(configuration: Configuration, timeout: float) -> tuple[str, str]:
    address = config.reachable(configuration.mediator.listen)
    host, _, port = address.rpartition(":")
    if port == "0":
        return GOOD, f"will take any free port of {host}"
    if not _listens(address, timeout):
        return WARNING, f"does not run at {address}; the port is free"
    from protos.lockstep.v1 import mediator_pb2 as pb
    from protos.lockstep.v1.mediator_pb2_grpc import MediatorServiceStub

    with _channel(address, connecting.chosen()) as channel:
        try:
            status = MediatorServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=timeout)
        except Exception as error:
            return WRONG, f"at {address} answers no Lockstep: {_rpc(error)}"
    if status.problem:
        return WRONG, f"runs at {address}, but: {status.problem}"
    troubled = [f"{view.view} is {view.state}" for view in status.views if view.state != "maintained"]
    if troubled:
        return WRONG, f"runs at {address}, but {', '.join(troubled)}"
    return GOOD, f"runs at {address}, keeps {text.count(len(status.views), 'view')}"


def _warehouse(root: Path) -> tuple[str, str]:
    try:
        from mediator.warehouse.format import check_format
    except ImportError:
        return WARNING, "not checked: the mediator's libraries are not installed here"
    check_format(root)
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return WRONG, f"{existing} cannot be written"
    free = shutil.disk_usage(existing).free
    what = "there" if (root / "versions").is_dir() else "to be made"
    state = GOOD if free >= _LEAST_SPACE else WRONG
    return state, f"{root} ({what}), {text.size(free)} free"


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


def _channel(address: str, connection: Connection):  # type: ignore[no-untyped-def]
    from protos.security.tls import open_channel
    from protos.version import PROTOCOL_VERSION

    return open_channel(address, connection, PROTOCOL_VERSION)


def _rpc(error: Exception) -> str:
    import grpc

    from protos.status import error_from_rpc

    return error_from_rpc(error).message if isinstance(error, grpc.RpcError) else str(error)
