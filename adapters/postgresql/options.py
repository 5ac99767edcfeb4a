"""What a user can set for a PostgreSQL source, checked once and typed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import ProgrammingError

from adapters.options import GivenOptions
from adapters.rate_limit import FOOTPRINT_OPTIONS, Footprint
from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError

LOG = "log"
TRIGGER = "trigger"
PREFIXES = ("postgresql://", "postgres://")
OPTIONS = (
    "connect_timeout",
    "exclude",
    "lock_timeout",
    "notify",
    "numeric_scale",
    "schema",
    "trim_seconds",
    "wal_limit_mb",
)

# One text form for every value, whatever the role's or the database's defaults are. With row security off, a
# policy that would hide rows is an error and not a smaller answer. What is only read is read in transactions
# that say so; capture notes and trims also where the default is to write nothing.
_SESSION = {
    "search_path": "pg_catalog",
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "row_security": "off",
    "default_transaction_read_only": "off",
    "standard_conforming_strings": "on",
    "idle_in_transaction_session_timeout": "0",
}


@dataclass(frozen=True)
class Options:
    """One PostgreSQL source as configured.

    `conninfo`: how to connect, with the settings of our sessions. `capture`: `log` or `trigger`. `schema`:
    the schema whose tables are shown without a prefix, and which holds the marker. `exclude`: columns
    (`relation.column`) that are not shown. `numeric_scale`: digits after the point for `numeric` without a
    declared scale. `lock_timeout`: seconds to wait for a lock. `connect_timeout`: seconds to wait for the
    server. `wal_limit_mb`: how far acknowledgement may lag before the slot is given up; 0 means never.
    `notify`: whether triggers wake the wrapper; None: unless the server allows prepared transactions, in
    which PostgreSQL refuses notifications. `trim_seconds`: how often acknowledged history is let go.
    """

    conninfo: str
    capture: str
    footprint: Footprint
    schema: str = "public"
    exclude: frozenset[str] = frozenset()
    numeric_scale: int = 10
    lock_timeout: float = 10.0
    connect_timeout: float = 10.0
    wal_limit_mb: float = 1024.0
    notify: bool | None = None
    trim_seconds: float = 1.0


def parse(config: SourceConfig) -> Options:
    """The options of a configured source; ConfigurationError names the first thing that is wrong."""
    if not config.url.startswith(PREFIXES):
        # The url may hold a password, so it is not repeated.
        raise ConfigurationError(
            f"source {config.name!r}: the url is not postgresql://user:${{PASSWORD}}@host:port/database"
        )
    capture = config.capture or LOG
    if capture not in (LOG, TRIGGER):
        raise ConfigurationError(f"source {config.name!r}: capture {capture!r} is not {LOG} or {TRIGGER}")
    given = GivenOptions.of(config)
    given.refuse_unknown((*OPTIONS, *FOOTPRINT_OPTIONS), "a postgresql source has")
    footprint = Footprint.of(config)
    options = Options(
        conninfo="",
        capture=capture,
        footprint=footprint,
        schema=given.text("schema", "public"),
        exclude=frozenset(given.names("exclude")),
        numeric_scale=given.whole("numeric_scale", 10, most=38),
        lock_timeout=given.seconds("lock_timeout", 10.0),
        connect_timeout=given.seconds("connect_timeout", 10.0),
        wal_limit_mb=given.number("wal_limit_mb", 1024.0),
        notify=given.flag("notify", True) if "notify" in given.values else None,
        trim_seconds=given.seconds("trim_seconds", 1.0),
    )
    return replace(options, conninfo=_conninfo(config, options))


_KEEPALIVE = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""A server that has gone without a word is noticed after about half a minute; a url may say otherwise."""


def _conninfo(config: SourceConfig, options: Options) -> str:
    try:
        given = conninfo_to_dict(config.url)
    except ProgrammingError as error:
        raise ConfigurationError(f"source {config.name!r}: the url is no PostgreSQL url") from error
    session = {
        **_SESSION,
        "statement_timeout": f"{round(options.footprint.statement_timeout * 1000)}ms",
        "lock_timeout": f"{round(options.lock_timeout * 1000)}ms",
    }
    settings = " ".join(f"-c {name}={value}" for name, value in session.items())
    chosen = str(given.get("options") or "")
    return make_conninfo(
        config.url,
        **{name: value for name, value in _KEEPALIVE.items() if name not in given},
        options=f"{chosen} {settings}".strip(),
        application_name=f"lockstep {config.name}",
        connect_timeout=str(max(2, round(options.connect_timeout))) if options.connect_timeout else "0",
    )
