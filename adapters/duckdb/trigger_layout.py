"""The statements that install and remove trigger capture, and the names of what they make.

Everything lives in one schema, `_lockstep`, beside the owner's tables:

    meta       one row: the epoch of this capture, how many entries were trimmed, the mark of the last one
    relations  the prepared relations with the shape they had
    commits    one entry per statement that changed rows of a prepared relation, in commit order
    log_<n>    the rows of relation n that were added (sign +1) or removed (-1), with their native types
    marks      the marks of global transactions (see `adapters/global_marks`), each with its transaction

Each relation has two triggers per kind of statement, one for its log and one for `commits`; the marker table,
which is in `main` so that it is written as in every other source, has two for inserts. Trigger bodies
name tables by schema only, so that the file may be renamed; a writer that attaches the file under another
database must `USE` it. They hold no cast that could fail: capture never makes an owner's statement fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from adapters.duckdb.catalog import OWN_SCHEMA, SourceRelation
from adapters.duckdb.sql import NEW_EPOCH, path, quote, text
from adapters.global_marks import MARKER as MARKER_NAME
from algebra.errors import ConfigurationError

META = path(OWN_SCHEMA, "meta")
RELATIONS = path(OWN_SCHEMA, "relations")
COMMITS = path(OWN_SCHEMA, "commits")
MARKS = path(OWN_SCHEMA, "marks")
MARKER = path("main", MARKER_NAME)

MARK_TRIGGERS = (f"{MARKER_NAME}_rows", f"{MARKER_NAME}_commit")
"""The triggers that the marker table must have."""

MARK = 0
"""Stands in `commits` for the number of a relation where the entry is a mark."""

_TRANSACTION = "txid_current(), epoch_us(now())"
_OLD, _NEW = "_lockstep_old", "_lockstep_new"
_EVENTS = {"INSERT": (_NEW,), "DELETE": (_OLD,), "UPDATE": (_OLD, _NEW)}
_CLAUSE = {_OLD: f"OLD TABLE AS {_OLD}", _NEW: f"NEW TABLE AS {_NEW}"}
_SIGN = {_OLD: "-1", _NEW: "1"}


def log_table(number: int) -> str:
    """The log of one relation, as named inside its file."""
    return path(OWN_SCHEMA, f"log_{number}")


def log_column(index: int) -> str:
    """The log's column for a relation's column; by number, so that no name can clash."""
    return f"c{index}"


def trigger_names(number: int) -> frozenset[str]:
    """The triggers that a prepared relation must have."""
    return frozenset(_trigger(number, event, part) for event in _EVENTS for part in ("rows", "commit"))


def create_base() -> list[str]:
    """The schema and its tables, still without any relation."""
    return [
        f"CREATE SCHEMA {quote(OWN_SCHEMA)}",
        f"CREATE TABLE {META} AS SELECT {NEW_EPOCH} AS epoch, 0::BIGINT AS trimmed, '' AS mark",
        f"CREATE TABLE {RELATIONS} (number INTEGER, relation VARCHAR, shape VARCHAR)",
        f"CREATE TABLE {COMMITS} (tx UBIGINT, started BIGINT, number INTEGER, row_count BIGINT)",
    ]


def create_marker() -> list[str]:
    """The marker table, and what takes its rows over; what is there of the tables stays."""
    rows, commit = MARK_TRIGGERS
    head = f"AFTER INSERT ON {MARKER} REFERENCING {_CLAUSE[_NEW]} FOR EACH STATEMENT INSERT INTO"
    return [
        f"CREATE TABLE IF NOT EXISTS {MARKER} (id VARCHAR, participants VARCHAR)",
        f"CREATE TABLE IF NOT EXISTS {MARKS} (tx UBIGINT, started BIGINT, id VARCHAR, participants VARCHAR)",
        f"CREATE TRIGGER {rows} {head} {MARKS} SELECT {_TRANSACTION}, id, participants FROM {_NEW}",
        f"CREATE TRIGGER {commit} {head} {COMMITS} "
        f"SELECT {_TRANSACTION}, {MARK}, count(*) FROM {_NEW} HAVING count(*) > 0",
    ]


def create_relation(number: int, relation: SourceRelation) -> Iterator[str]:
    """The log and the triggers of one relation."""
    stored = [_stored(relation, i) for i in range(len(relation.columns))]
    yield (
        f"CREATE TABLE {log_table(number)} (sign TINYINT, tx UBIGINT, started BIGINT, "
        f"{', '.join(f'{log_column(i)} {declared}' for i, declared in enumerate(stored))})"
    )
    columns = ", ".join(
        f"CAST({quote(c.name)} AS {declared})" if declared != c.declared else quote(c.name)
        for c, declared in zip(relation.columns, stored, strict=True)
    )
    for event, images in _EVENTS.items():
        head = f"AFTER {event} ON {relation.qualified} REFERENCING {{}} FOR EACH STATEMENT INSERT INTO"
        rows = " UNION ALL ".join(
            f"SELECT {_SIGN[image]}, txid_current(), epoch_us(now()), {columns} FROM {image}"
            for image in images
        )
        both = " ".join(_CLAUSE[image] for image in images)
        first = images[0]
        trigger = _trigger(number, event, "rows")
        yield f"CREATE TRIGGER {trigger} {head.format(both)} {log_table(number)} {rows}"
        # A statement that touches no row is no change: HAVING keeps it out.
        yield (
            f"CREATE TRIGGER {_trigger(number, event, 'commit')} {head.format(_CLAUSE[first])} {COMMITS} "
            f"SELECT {_TRANSACTION}, {number}, count(*) FROM {first} HAVING count(*) > 0"
        )
    shape = json.dumps(relation.shape, ensure_ascii=False)
    yield f"INSERT INTO {RELATIONS} VALUES ({number}, {text(relation.name)}, {text(shape)})"


def drop_relation(number: int) -> list[str]:
    """Forget one relation; its triggers are dropped apart, where they still exist."""
    return [f"DROP TABLE {log_table(number)}", f"DELETE FROM {RELATIONS} WHERE number = {number}"]


def drop_trigger(name: str, schema: str, table: str) -> str:
    return f"DROP TRIGGER {quote(name)} ON {path(schema, table)}"


def drop_base() -> list[str]:
    return [f"DROP TABLE IF EXISTS {MARKER}", f"DROP SCHEMA {quote(OWN_SCHEMA)} CASCADE"]


def new_epoch(logs: list[int]) -> list[str]:
    """Give up the history kept so far; ordinals go on, so that positions never go backwards."""
    return [
        f"UPDATE {META} SET epoch = {NEW_EPOCH}, mark = '', "
        f"trimmed = trimmed + (SELECT count(*) FROM {COMMITS})",
        f"DELETE FROM {COMMITS}",
        f"DELETE FROM {MARKS}",
        *(f"DELETE FROM {log_table(number)}" for number in logs),
    ]


def _trigger(number: int, event: str, part: str) -> str:
    return f"_lockstep_{number}_{event.lower()}_{part}"


def _stored(relation: SourceRelation, index: int) -> str:
    column = relation.columns[index]
    if column.type is None:
        raise ConfigurationError(f"column {relation.name}.{column.name} cannot be captured")
    return column.type.stored
