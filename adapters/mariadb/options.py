"""What a user can set for a MariaDB source, checked once and typed."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from urllib.parse import parse_qsl, unquote, urlsplit

from adapters.options import GivenOptions
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
    shown as boolean. `notice_truncate` (`truncate: notice`, the default): triggers are not installed without
    the right to notice a TRUNCATE; `truncate: never` promises that there is none. `connect_timeout`: seconds
    to wait for a connection. `footprint`: the options that all adapters share; the time limit holds for
    queries by keys, not for loads and logs. `trim_rows`, `trim_seconds`: acknowledged batches are deleted in
    lots of so many, at most so often.
    """

    server: Server
    capture: str
    exclude: frozenset[str] = frozenset()
    booleans: bool = True
    notice_truncate: bool = True
    connect_timeout: float = 10.0
    footprint: Footprint = field(default_factory=Footprint)
    trim_rows: int = 10_000
    trim_seconds: float = 5.0


def parse(config: SourceConfig) -> Options:
    """The options of a configured source; ConfigurationError names the first thing that is wrong."""
    capture = config.capture or LOG
    if capture not in (LOG, TRIGGER):
        raise ConfigurationError(f"source {config.name!r}: capture {capture!r} is not {LOG} or {TRIGGER}")
    given = GivenOptions.of(config)
    known = {field.name for field in fields(Options)} - {"server", "capture", "footprint", "notice_truncate"}
    known |= {PASSWORD, "truncate", *FOOTPRINT_OPTIONS}
    given.refuse_unknown(known, "a mariadb source has")
    return Options(
        server=server_of(config),
        capture=capture,
        exclude=frozenset(given.names("exclude")),
        booleans=given.flag("booleans", True),
        notice_truncate=given.choice("truncate", "notice", "never") == "notice",
        connect_timeout=given.seconds("connect_timeout", 10.0),
        footprint=Footprint.of(config),
        trim_rows=int(given.number("trim_rows", 10_000)),
        trim_seconds=given.seconds("trim_seconds", 5.0),
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
        # The option spares a password from being written as a part of a url.
        password=GivenOptions.of(config).secret(PASSWORD) or unquote(url.password or ""),
        tls_ca=tls_ca,
    )
