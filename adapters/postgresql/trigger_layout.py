"""What trigger capture installs: the statements, in one place.

    _lockstep.meta, relations    what is prepared (capture.py)
    _lockstep.log_<n>            rows of relation n that came (count 1) or left (-1), as record literals
    _lockstep.statements         one row per logged statement: its transaction, the relation, who was
                                 running then and, where a snapshot outlives its statement, how far the
                                 server's log had come; once more, with minus the relation's number, for a
                                 TRUNCATE whose rows could not be logged
    _lockstep.marks              marks of global transactions
    _lockstep.commits            transactions in commit order; written by the wrapper, not by triggers

Rows are logged in their text form (`row::text`), not column by column. A trigger that names columns fails,
and with it the application's statement, once a column is dropped; a log column of an enum's type keeps the
type from being dropped. The function sets what the text form depends on.
"""

from __future__ import annotations

from adapters.postgresql.capture import create_base, create_marker, note_relation
from adapters.postgresql.catalog import OWN, SourceRelation
from adapters.postgresql.options import TRIGGER
from adapters.postgresql.sql import quote, text

STATEMENTS = f"{OWN}.statements"
MARKS = f"{OWN}.marks"
COMMITS = f"{OWN}.commits"
CHANNEL = OWN
MARK = 0
"""In `statements`, the number that stands for the marker."""

SEES_ALL = "current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')"
"""In a trigger function: whether each statement has a snapshot of its own. Only then it surely shows all rows
that a TRUNCATE takes, as it is newer than the lock, and every transaction that this one could wait for."""

CANONICAL = (
    "SET search_path = pg_catalog, pg_temp SET DateStyle = 'ISO' SET IntervalStyle = 'postgres'"
    " SET TimeZone = 'UTC' SET extra_float_digits = 1 SET bytea_output = 'hex'"
)
"""For functions that write rows as text: one form, whatever the application's session has set."""

EVENTS = {
    "insert": "REFERENCING NEW TABLE AS new_rows",
    "update": "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "delete": "REFERENCING OLD TABLE AS old_rows",
}
_ROW = quote(f"{OWN} row")
ROOT = "coalesce(pg_partition_root(TG_RELID), TG_RELID)::regclass"
"""In a trigger function: the table as whose rows those of the table that fired it are logged. The columns of
a partition may have another order, and their places are all that a record literal tells of them."""


def log_table(number: int) -> str:
    return f"{OWN}.log_{number}"


def function(number: int) -> str:
    return f"{OWN}.capture_{number}"


def base(schema: str, home: str, *, notify: bool) -> list[str]:
    """Everything but the relations."""
    return [
        *create_base(TRIGGER, home),
        f"CREATE TABLE {STATEMENTS} (xid int8 NOT NULL, relation int4 NOT NULL, cut text NOT NULL)",
        f"CREATE INDEX statements_xid ON {STATEMENTS} (xid)",
        f"CREATE TABLE {MARKS} (xid int8 NOT NULL, id text, participants text)",
        f"CREATE INDEX marks_xid ON {MARKS} (xid)",
        f"CREATE TABLE {COMMITS} (ordinal int8 PRIMARY KEY, xid int8 UNIQUE NOT NULL, mark text NOT NULL,"
        " horizon int8 NOT NULL)",
        *create_marker(
            schema,
            f"{OWN}.mark",
            f"INSERT INTO {MARKS} VALUES (txid_current(), NEW.id, NEW.participants); {_noted(MARK, notify)}",
            definer=True,
        ),
    ]


def _noted(number: int, notify: bool) -> str:
    """What every logged statement adds: which log it wrote, who was running, and a word to whoever waits."""
    place = f"CASE WHEN {SEES_ALL} THEN '' ELSE ':' || (pg_current_wal_insert_lsn() - '0/0') END"
    cut = f"pg_current_snapshot()::text || {place}"
    note = f"INSERT INTO {STATEMENTS} VALUES (txid_current(), {number}, {cut});"
    return note + (f" PERFORM pg_notify({text(CHANNEL)}, '');" if notify else "")


def relation(number: int, shown: SourceRelation, *, notify: bool, always: bool, alike: bool) -> list[str]:
    """One relation: its log, its function, its triggers, on the table and, of a partitioned one, on each
    partition.

    A statement fires the triggers of the table it names, root or partition, and of no other, and their
    transition tables hold the rows of all partitions it touched. `always`: also in a session whose
    `session_replication_role` is `replica`; only the tables' owner may have it so.
    `alike`: all partitions have their columns in the root's order. Else a row is made one of the root, which
    takes a statement that is planned at each call: only there it is known which table fired.
    """
    log = log_table(number)

    def copy(rows: str, count: int) -> str:
        into = f"INSERT INTO {log} SELECT txid_current(), {count},"
        if alike:
            return f"{into} {_ROW}::text FROM {rows} AS {_ROW};"
        return (
            f"EXECUTE format('{into} ROW({_ROW}.*)::%s::%s::text FROM {rows} AS {_ROW}',"
            f" TG_RELID::regclass, {ROOT}); PERFORM FROM {rows} LIMIT 1;"
        )

    body = (
        f"BEGIN IF TG_OP = 'INSERT' THEN {copy('new_rows', 1)}"
        f" ELSIF TG_OP = 'DELETE' THEN {copy('old_rows', -1)}"
        f" ELSIF TG_OP = 'UPDATE' THEN {copy('old_rows', -1)} {copy('new_rows', 1)}"
        f" ELSIF {SEES_ALL} THEN EXECUTE format('INSERT INTO {log} SELECT txid_current(), -1,"
        f" {_ROW}::%s::text FROM ONLY %I.%I AS {_ROW}',"
        f" {ROOT}, TG_TABLE_SCHEMA, TG_TABLE_NAME);"
        f" ELSE {_noted(-number, notify=False)} END IF;"
        f" IF TG_OP = 'TRUNCATE' OR FOUND THEN {_noted(number, notify)} END IF; RETURN NULL; END"
    )
    steps = [
        f"CREATE TABLE {log} (xid int8 NOT NULL, count int2 NOT NULL, row text NOT NULL)",
        f"CREATE INDEX log_{number}_xid ON {log} (xid)",
        f"CREATE FUNCTION {function(number)}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER {CANONICAL}"
        f" AS $lockstep$ {body} $lockstep$",
    ]
    for table in shown.tables:
        steps += [
            f"CREATE TRIGGER _lockstep_{event} AFTER {event.upper()} ON {table} {rows}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {function(number)}()"
            for event, rows in EVENTS.items()
        ]
        steps.append(
            f"CREATE TRIGGER _lockstep_truncate BEFORE TRUNCATE ON {table}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {function(number)}()"
        )
        if always:
            named = (f"ENABLE ALWAYS TRIGGER _lockstep_{event}" for event in (*EVENTS, "truncate"))
            steps.append(f"ALTER TABLE {table} {', '.join(named)}")
    steps.append(note_relation(number, shown))
    return steps
