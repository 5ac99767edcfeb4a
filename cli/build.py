"""What a configuration describes, built: adapters, the wrapper's and the mediator's server.

Imports happen on use: a wrapper host has neither Spark nor Delta Lake, a client needs no adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from algebra.errors import ConfigurationError, MissingExtraError
from cli.config import Configuration
from cli.config_model import MediatorSection, ViewSection

if TYPE_CHECKING:
    from adapters.spi import Adapter
    from mediator.config import ViewSpecConfig

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
    from wrapper.server import WrapperServer

    where = listen if listen is not None else configuration.source(name).listen
    server: Server = WrapperServer(adapter(configuration, name), where or "127.0.0.1:0")
    return server


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
        spark_conf=section.spark_conf,
        embedded_memory=section.embedded_memory,
        umq_rows=section.umq_rows,
        keepalive_seconds=section.keepalive_seconds,
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
