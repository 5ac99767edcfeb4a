"""The statements of trigger capture: logs, triggers and the list of batches.

Every prepared relation has a log table of its own, with columns of the relation's own types, so that a value
is stored as the base table stores it. The marker table is a log like the others, only that applications write
into it themselves.

    _lockstep_log_N    id, batch (NULL until a snapshot has seen it), tx, sign, c0, c1, …
    _lockstep_batches  number, mark (random, tells this batch from any other of that number), batched

Triggers keep the `sql_mode` under which they are made. Ours is one in which a value that the application was
allowed to store cannot fail in the log (zero dates, an ENUM's empty value).
"""

from __future__ import annotations

from adapters.global_marks import MARKER
from adapters.mariadb.catalog import OWN_PREFIX, SourceTable
from adapters.mariadb.history import CREATE_META, CREATE_RELATIONS, META, set_epoch, set_fact
from adapters.mariadb.sql import quote
from adapters.mariadb.types import ColumnType, Kind

BATCHES = f"{OWN_PREFIX}_batches"
MARK_TRIGGER = f"{OWN_PREFIX}_mark"
MADE = "CAST(CREATED AS CHAR)"
"""In information_schema.TRIGGERS: to the hundredth of a second."""
EVENTS = ("insert", "update", "delete")

TX = (
    "IF(@@global.log_bin AND @@session.sql_log_bin, "
    "CONCAT_WS(':', UUID_SHORT() >> 24, CONNECTION_ID(), @@session.last_gtid), NULL)"
)
"""Names the transaction, where the server writes a binlog: the run of the server, the connection, and the
last transaction that this connection has committed, which differs from one to the next."""

_OWN_COLUMNS = (
    "batch BIGINT NULL{hidden}, tx VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NULL{hidden}, "
    "KEY (batch)"
)
_CREATE_BATCHES = (
    f"CREATE TABLE IF NOT EXISTS {BATCHES} (number BIGINT PRIMARY KEY, mark CHAR(16) CHARACTER SET ascii "
    "NOT NULL, batched BOOLEAN NOT NULL) ENGINE = InnoDB"
)
_CREATE_MARKER = (
    f"CREATE TABLE IF NOT EXISTS {MARKER} (id TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, "
    "participants TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, "
    "number BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY INVISIBLE, "
    f"{_OWN_COLUMNS.format(hidden=' INVISIBLE')}) ENGINE = InnoDB"
)
_CREATE_MARK_TRIGGER = (
    f"CREATE TRIGGER IF NOT EXISTS {MARK_TRIGGER} BEFORE INSERT ON {MARKER} FOR EACH ROW "
    f"SET NEW.batch = NULL, NEW.tx = {TX}"
)


def create_base(capture: str) -> list[str]:
    """What there is once; the epoch comes last, for with it capture counts as installed."""
    return [
        CREATE_META,
        CREATE_RELATIONS,
        _CREATE_BATCHES,
        *create_marker(),
        f"DELETE FROM {BATCHES}",
        f"INSERT INTO {BATCHES} VALUES (0, LEFT(MD5(CONCAT(UUID(), RAND())), 16), 0)",
        set_fact("capture", capture),
        set_fact("current", "0"),
        set_fact("trimmed", "0"),
        advance(0),
        set_epoch(),
    ]


def create_marker() -> list[str]:
    return [_CREATE_MARKER, _CREATE_MARK_TRIGGER]


def log_table(number: int) -> str:
    return f"{OWN_PREFIX}_log_{number}"


def trigger_names(number: int) -> tuple[str, ...]:
    return tuple(f"{OWN_PREFIX}_{number}_{event}" for event in EVENTS)


def made(number: int) -> str:
    """The fact that tells when the triggers of a relation were made."""
    return f"triggers {number}"


def note_made(number: int) -> str:
    """The statement that notes it, in the form in which the capture reads it."""
    names = ", ".join(f"'{name}'" for name in trigger_names(number))
    return (
        f"REPLACE INTO {META} SELECT '{made(number)}', GROUP_CONCAT({MADE} ORDER BY TRIGGER_NAME) "
        f"FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME IN ({names})"
    )


def log_column(place: int) -> str:
    return f"c{place}"


def create_relation(number: int, table: SourceTable) -> list[str]:
    """The log of one relation, and the triggers that write it."""
    log = log_table(number)
    columns = "".join(f", {log_column(i)} {_stored(c.shown)} NULL" for i, c in enumerate(table.columns))
    own = "id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, sign TINYINT NOT NULL"
    into = f"INSERT INTO {log} (tx, sign{_names(table)}) VALUES"
    old, new = _row(table, -1, "OLD"), _row(table, 1, "NEW")
    values = {"insert": new, "update": f"{old}, {new}", "delete": old}
    return [
        f"CREATE TABLE {log} ({own}, {_OWN_COLUMNS.format(hidden='')}{columns}) ENGINE = InnoDB",
        *(
            f"CREATE TRIGGER {name} AFTER {event.upper()} ON {quote(table.name)} FOR EACH ROW "
            f"{into} {values[event]}"
            for event, name in zip(EVENTS, trigger_names(number), strict=True)
        ),
    ]


def drop_trigger(name: str) -> str:
    return f"DROP TRIGGER {quote(name)}"


def drop_log(number: int) -> str:
    return f"DROP TABLE IF EXISTS {log_table(number)}"


def advance(number: int) -> str:
    return f"UPDATE {META} SET value = '{number}' WHERE name = 'current'"


def _names(table: SourceTable) -> str:
    return "".join(f", {log_column(i)}" for i in range(len(table.columns)))


def _row(table: SourceTable, sign: int, row: str) -> str:
    values = "".join(f", {row}.{quote(column.name)}" for column in table.columns)
    return f"({TX}, {sign}{values})"


def _stored(type_: ColumnType) -> str:
    if type_.kind in (Kind.TEXT, Kind.ENUM, Kind.SET) and type_.charset:
        return f"{type_.declared} CHARACTER SET {type_.charset} COLLATE {type_.collation}"
    return type_.declared
