"""What a user can set for a MariaDB source, checked once and typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from adapters.rate_limit import FOOTPRINT_OPTIONS, Footprint
from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError

LOG = "log"
TRIGGER = "trigger"
_SCHEMES = ("mariadb",)
_DEFAULT_PORT = 3306
PASSWORD = "password"


@dataclass(frozen=True)
class Server:
    """Where the database is and who asks; the password shows in no text."""

    host: str
    port: int
    user: str
    database: str
    password: str = field(default="", repr=False)
    tls_ca: str | None = None


@dataclass(frozen=True)
class Options:
    """One MariaDB source as configured.

    `server`: from the url. `capture`: `log` (the default) or `trigger`. `exclude`: columns
    (`relation.column`) that are not shown. `booleans`: whether TINYINT(1), which is what BOOLEAN declares, is
    shown as boolean. `connect_timeout`: seconds to wait for a connection. `footprint`: the options that all
    adapters share; the time limit holds for queries by keys, not for loads and logs. `trim_rows`,
    `trim_seconds`: acknowledged batches are deleted in lots of so many, at most so often.
    """

    server: Server
    capture: str
    exclude: frozenset[str] = frozenset()
    booleans: bool = True
    connect_timeout: float = 10.0
    footprint: Footprint = field(default_factory=Footprint)
    trim_rows: int = 10_000
    trim_seconds: float = 5.0


def parse(config: SourceConfig) -> Options:
    """The options of a configured source; ConfigurationError names the first thing that is wrong."""
    capture = config.capture or LOG
    if capture not in (LOG, TRIGGER):
        raise ConfigurationError(f"source {config.name!r}: capture {capture!r} is not {LOG} or {TRIGGER}")
    given = dict(config.options)
    known = {field.name for field in fields(Options)} - {"server", "capture", "footprint"}
    known |= {PASSWORD, *FOOTPRINT_OPTIONS}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ConfigurationError(
            f"source {config.name!r}: unknown option {unknown[0]!r}; a mariadb source has: "
            + ", ".join(sorted(known))
        )
    booleans = given.get("booleans", True)
    if not isinstance(booleans, bool):
        raise ConfigurationError(f"source {config.name!r}: option booleans is {booleans!r}, not a boolean")
    return Options(
        server=server_of(config),
        capture=capture,
        exclude=_names(config, given, "exclude"),
        booleans=booleans,
        connect_timeout=_number(config, given, "connect_timeout", 10.0),
        footprint=Footprint.of(config),
        trim_rows=int(_number(config, given, "trim_rows", 10_000)),
        trim_seconds=_number(config, given, "trim_seconds", 5.0),
    )


def server_of(config: SourceConfig) -> Server:
    """The server that the url names. The url itself is in no error: it may hold a password."""
    where = f"source {config.name!r}: the url is not mariadb://user:password@host:port/database"
    try:
        url = urlsplit(config.url)
        port = url.port
    except ValueError:
        raise ConfigurationError(where) from None
    database = unquote(url.path.removeprefix("/"))
    if url.scheme not in _SCHEMES or not url.hostname or not url.username:
        raise ConfigurationError(where)
    if not database or "/" in database:
        raise ConfigurationError(f"{where}: it names no database")
    arguments = dict(parse_qsl(url.query))
    tls_ca = arguments.pop("ssl_ca", None)
    if arguments:
        raise ConfigurationError(f"{where}: unknown parameter {sorted(arguments)[0]!r}; there is: ssl_ca")
    return Server(
        host=url.hostname,
        port=port or _DEFAULT_PORT,
        user=unquote(url.username),
        database=database,
        password=_password(config) or unquote(url.password or ""),
        tls_ca=tls_ca,
    )


def _password(config: SourceConfig) -> str:
    """The option that spares a password from being written as a part of a url."""
    value = config.options.get(PASSWORD, "")
    if not isinstance(value, str):
        raise ConfigurationError(f"source {config.name!r}: option password is not a text")
    return value


def _number(config: SourceConfig, given: Mapping[str, Any], name: str, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigurationError(f"source {config.name!r}: option {name} is {value!r}, no number from 0 on")
    return float(value)


def _names(config: SourceConfig, given: Mapping[str, Any], name: str) -> frozenset[str]:
    value = given.get(name, ())
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ConfigurationError(f"source {config.name!r}: option {name} is {value!r}, not a list of names")
    return frozenset(value)
