"""What a configuration describes, built: adapters, the wrapper's and the mediator's server.

Imports happen on use: a wrapper host has neither Spark nor Delta Lake, a client needs no adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from algebra.errors import ConfigurationError, MissingExtraError
from cli.config import Configuration
from cli.config_model import (
    ConnectSection,
    MediatorSection,
    ServerSection,
    SourceSection,
    ViewSection,
)
from protos.security.settings import (
    REQUEST_BYTES,
    WRAPPER_REQUEST_BYTES,
    CallLimits,
    ClientTls,
    Connection,
    ServerSecurity,
    ServerTls,
)

if TYPE_CHECKING:
    from adapters.spi import Adapter
    from mediator.config import ViewSpecConfig
    from wrapper.allow_list import Policies

_OURS = ("protos", "algebra", "adapters", "wrapper", "mediator", "cli")


class Server(Protocol):
    """What both servers offer."""

    def start(self) -> str: ...

    def stop(self, grace: float) -> None: ...

    def wait(self) -> None: ...


def adapter(configuration: Configuration, name: str) -> Adapter:
    """The configured source's adapter; it does not connect yet."""
    from adapters import registry
    from adapters.spi import SourceConfig

    source = configuration.source(name)
    assert source.adapter is not None
    assert source.url is not None
    config = SourceConfig(
        name=name,
        adapter=source.adapter,
        url=source.url,
        relations=source.relations,
        capture=source.capture,
        options=source.options,
    )
    try:
        return registry.create(config)
    except MissingExtraError:
        raise
    except ConfigurationError as error:
        key = "adapter" if source.adapter not in registry.available() else ""
        where = f"sources.{name}.{key}" if key else f"sources.{name}"
        raise ConfigurationError(f"{configuration.path}: {where}: {error}") from error


def check_adapters(configuration: Configuration, names: list[str]) -> None:
    """Raise for the first source whose adapter cannot be made; nothing connects."""
    for name in names:
        adapter(configuration, name).close()


def wrapper_server(configuration: Configuration, name: str, listen: str | None) -> Server:
    """A wrapper for the source, not started yet."""
    from wrapper.limits import WrapperLimits
    from wrapper.server import WrapperServer

    where = listen if listen is not None else configuration.source(name).listen
    source = configuration.source(name)
    server: Server = WrapperServer(
        adapter(configuration, name),
        where or "127.0.0.1:0",
        security(source, WRAPPER_REQUEST_BYTES),
        _policies(source),
        source.metrics,
        WrapperLimits(source.max_run_rows, source.embedded_memory),
    )
    return server


def security(section: ServerSection, max_request_bytes: int = REQUEST_BYTES) -> ServerSecurity:
    """How a server is protected, as its section says."""
    tls = section.tls
    return ServerSecurity(
        tls=None
        if tls is None
        else ServerTls(Path(tls.certificate), Path(tls.key), Path(tls.client_ca) if tls.client_ca else None),
        tokens=Path(section.tokens) if section.tokens else None,
        certificates=section.certificates,
        insecure=section.insecure,
        audit=Path(section.audit) if section.audit else None,
        limits=CallLimits(
            section.limits.calls, section.limits.streams, section.limits.failed_logins_per_minute
        ),
        max_request_bytes=max_request_bytes,
    )


def _policies(source: SourceSection) -> Policies:
    from wrapper.allow_list import MediatorPolicy, Policies

    if source.mediators is None:
        return Policies()
    return Policies(
        {
            name: MediatorPolicy(
                relations=None
                if policy.relations is None
                else {
                    relation: None if columns is None else frozenset(columns)
                    for relation, columns in policy.relations.items()
                },
                max_rows=policy.max_rows,
                queries_per_second=policy.queries_per_second,
            )
            for name, policy in source.mediators.items()
        }
    )


def connection(connect: ConnectSection) -> Connection:
    """How a wrapper is reached; with any TLS setting the connection is encrypted."""

    def path(value: str | None) -> Path | None:
        return None if value is None else Path(value)

    encrypted = connect.ca or connect.certificate or connect.server_name
    tls = ClientTls(path(connect.ca), path(connect.certificate), path(connect.key), connect.server_name)
    return Connection(tls if encrypted else None, connect.token, connect.insecure)


def mediator_server(
    configuration: Configuration, section: MediatorSection, addresses: Mapping[str, str]
) -> Server:
    """A mediator, not started yet; `addresses` win over the file's."""
    unknown = [name for name in addresses if name not in configuration.sources]
    if unknown:
        raise ConfigurationError(f"{configuration.path}: there is no source {unknown[0]!r}")
    try:
        from mediator.config import MediatorConfig
        from mediator.server import MediatorServer
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:
            raise
        raise MissingExtraError(f"the mediator ({error})", "mediator") from error
    config = MediatorConfig(
        listen=section.listen,
        warehouse=section.warehouse,
        engine=section.engine.value,
        sources={
            name: addresses[name] if name in addresses else configuration.address(name)
            for name in configuration.sources
        },
        max_batch=section.max_batch,
        spark_master=section.spark_master,
        spark_conf={
            name: value
            for name, value in section.spark_conf.items()
            if name not in configuration.spark_secrets
        },
        spark_secrets={
            name: value for name, value in section.spark_conf.items() if name in configuration.spark_secrets
        },
        embedded_memory=section.embedded_memory,
        umq_rows=section.umq_rows,
        assembled_rows=section.assembled_rows,
        extent_rows=section.extent_rows,
        security=security(section),
        metrics=section.metrics,
        connections={name: connection(source.connect) for name, source in configuration.sources.items()},
        keepalive_seconds=section.keepalive_seconds,
        late_seconds=section.late_seconds,
        query_seconds=section.query_seconds,
        query_memory=section.query_memory,
        query_disk=section.query_disk,
        query_processes=section.query_processes,
        on_lost_history=section.on_lost_history.value,
        views=[view_spec(name, view) for name, view in configuration.views.items()],
    )
    server: Server = MediatorServer(config)
    return server


def view_spec(name: str, view: ViewSection) -> ViewSpecConfig:
    """A view of the file, as the mediator takes it."""
    from mediator.config import ViewSpecConfig

    return ViewSpecConfig(
        name=name,
        sql=view.sql,
        maintenance=view.maintenance,
        allow_cross_join=view.allow_cross_join,
        max_batch=view.max_batch,
        consistency=view.consistency or "",
        force=view.force,
    )
