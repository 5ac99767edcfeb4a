"""One YAML file as a checked configuration; every problem with it is one line that names file and key."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from algebra.errors import ConfigurationError
from cli import references, secrecy, yaml_text
from cli.config_model import (
    ConnectSection,
    Document,
    LimitsSection,
    MediatorSection,
    Section,
    ServerSection,
    ServerTlsSection,
    SourceSection,
    ViewSection,
)

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_Server = TypeVar("_Server", bound=ServerSection)

_SECTIONS: Mapping[str, type[Section]] = {
    "mediator": MediatorSection,
    "sources": SourceSection,
    "views": ViewSection,
}

_NESTED: Mapping[str, type[Section]] = {
    "tls": ServerTlsSection,
    "connect": ConnectSection,
    "limits": LimitsSection,
}


@dataclass(frozen=True)
class Configuration:
    """A configuration file that was read and checked; paths in it are absolute."""

    path: Path
    mediator: MediatorSection
    sources: Mapping[str, SourceSection]
    views: Mapping[str, ViewSection]
    spark_secrets: frozenset[str] = frozenset()
    """The names in `mediator.spark_conf` whose values came by reference."""

    @property
    def served(self) -> dict[str, SourceSection]:
        """The sources that a wrapper can be started for."""
        return {name: source for name, source in self.sources.items() if source.adapter is not None}

    def source(self, name: str) -> SourceSection:
        """The source of that name, which a wrapper can be started for."""
        if name not in self.sources:
            raise ConfigurationError(
                f"{self.path}: there is no source {name!r}; sources: {_names(self.sources)}"
            )
        if name not in self.served:
            raise ConfigurationError(f"{self.path}: sources.{name}: has no `adapter`, only an address")
        return self.sources[name]

    def chosen(self, name: str | None) -> list[str]:
        """The one source asked for, or all that can be served; at least one."""
        if name is not None:
            self.source(name)
            return [name]
        if not self.served:
            raise ConfigurationError(f"{self.path}: sources: there is no source with an `adapter`")
        return list(self.served)

    def address(self, name: str) -> str:
        """Where the mediator finds the source's wrapper."""
        source = self.sources[name]
        if source.address is not None:
            return source.address
        host, _, port = (source.listen or ":0").rpartition(":")
        if port == "0":
            raise ConfigurationError(
                f"{self.path}: sources.{name}: give `address`, or a `listen` with a fixed port, "
                "so that the mediator finds the wrapper"
            )
        return reachable(f"{host}:{port}")


def reachable(listen: str) -> str:
    """How this machine reaches a server that listens there: one that listens everywhere, on loopback."""
    host, _, port = listen.rpartition(":")
    return f"{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{port}"


def load(path: Path, environment: Mapping[str, str] | None = None) -> Configuration:
    """The file's configuration, with environment references filled in and relative paths resolved."""
    file = str(path)
    try:
        text = yaml_text.read(path)
    except FileNotFoundError:
        raise ConfigurationError(f"{file}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read ({_reason(error)})") from error
    values = _mapping(yaml_text.parse(text, file), file)
    secrecy.check_references(values, file)
    document = _validate(values, file, os.environ if environment is None else environment)
    secrecy.remember(document)
    folder = path.parent
    where = f"{file}: mediator"
    mediator = _paths_beside(document.mediator, folder, where).model_copy(
        update=_files(document.mediator, folder, where, "warehouse")
    )
    sources = {}
    for name, source in document.sources.items():
        where = f"{file}: sources.{name}"
        connect = source.connect.model_copy(
            update=_files(source.connect, folder, f"{where}.connect", "ca", "certificate", "key")
        )
        url = None if source.url is None else references.beside(source.url, folder)
        sources[name] = _paths_beside(source, folder, where).model_copy(
            update={"url": url, "connect": connect}
        )
    spark_secrets = secrecy.referring(values, "mediator", "spark_conf")
    return Configuration(path, mediator, sources, document.views, spark_secrets)


def _paths_beside(section: _Server, folder: Path, where: str) -> _Server:
    """The server's section with its files' paths made absolute."""
    update: dict[str, Any] = _files(section, folder, where, "tokens", "audit")
    if section.tls is not None:
        tls = section.tls.model_copy(
            update=_files(section.tls, folder, f"{where}.tls", "certificate", "key", "client_ca")
        )
        update["tls"] = tls
    return section.model_copy(update=update)


def _files(section: Section, folder: Path, where: str, *names: str) -> dict[str, Any]:
    given = {name: getattr(section, name) for name in names}
    return {
        name: references.location(path, folder, f"{where}.{name}")
        for name, path in given.items()
        if path is not None
    }


def override(section: MediatorSection, **values: Any) -> MediatorSection:
    """The section with every given value that is not None put in place; False and 0 are values."""
    given = {key: value for key, value in values.items() if value is not None}
    return section.model_copy(update=given)


def _mapping(values: Any, file: str) -> dict[str, Any]:
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigurationError(f"{file}: expected the sections mediator, sources, views at the top")
    # `views:` with nothing below it reads as null; it means an absent section.
    return {key: value for key, value in values.items() if value is not None}


def _validate(values: dict[str, Any], file: str, environment: Mapping[str, str]) -> Document:
    filled = references.fill(values, environment, "", file)
    try:
        return Document.model_validate(filled)
    except ValidationError as error:
        lines = [f"{file}: {_problem(detail)}" for detail in error.errors(include_input=False)]
        raise ConfigurationError("\n".join(lines)) from None


def _problem(detail: ErrorDetails) -> str:
    location = [str(part) for part in detail["loc"] if part != "[key]"]
    where = ".".join(location)
    if detail["type"] == "extra_forbidden":
        return f"{where}: unknown key{_suggestion(location)}"
    if detail["type"] == "missing":
        return f"{where}: is missing"
    message = detail["msg"].removeprefix("Value error, ")
    return f"{where}: {message[:1].lower()}{message[1:]}"


def _suggestion(location: list[str]) -> str:
    section = _NESTED.get(location[-2]) if len(location) > 2 else None
    if section is None:
        section = _SECTIONS.get(location[0]) if len(location) > 1 else Document
    # What is the section's own comes before what all servers have.
    known = sorted(section.model_fields, key=lambda key: key in ServerSection.model_fields) if section else []
    close = difflib.get_close_matches(location[-1], known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known keys: {', '.join(known)}"


def _names(sources: Mapping[str, SourceSection]) -> str:
    return ", ".join(sources) or "none"


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
