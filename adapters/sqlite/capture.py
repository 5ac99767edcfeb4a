"""The change log that triggers write into the source, and the statements that install and remove it.

Layout. One log table for all captured relations, so that a transaction is one stretch of its rowids and
its rightmost page tells the last one (see `wal`): `seq`, the mark columns, the relation's number, the
sign, then `c0, c1, ...` as wide as the widest relation. These columns have no type, so a value is stored
as the base table stores it, without a text form in between. No AUTOINCREMENT: trimming always keeps the
newest row, so numbers are never reused, writers are spared the second table that AUTOINCREMENT updates,
and removal leaves nothing behind (`sqlite_sequence` cannot be dropped). Row 0 stands for "empty".

REPLACE. When a conflict resolved by REPLACE deletes rows, delete triggers fire only if the *writer's*
connection has `recursive_triggers` on; by default the deletion would pass unseen. Wrong ways: *log the
conflicting rows in a BEFORE trigger*, for the same trigger runs for OR IGNORE and upserts, which delete
nothing; *look for them in an AFTER trigger*, for then they are gone. Chosen way: BEFORE INSERT/UPDATE
triggers copy conflicting rows to `_lockstep_replaced`. Triggers keep these copies in step with their rows
from then on, so a copy whose row is gone means a deletion that no trigger saw; AFTER INSERT/UPDATE, which
run only if the new row went in, log it. Copies left by OR IGNORE and upserts do no harm as long as rows keep
their rowids; trims clear them. A dump that is read back numbers rows anew, and so does VACUUM where a table
has no index; then a row that is still there looks gone. Its content does not tell, for tables may have equal
rows. So `_lockstep_rowids` has one row, of number 2, in a table that is numbered anew whenever any is:
triggers that find it at 1 drop all copies, none of which can be of a statement that still runs, and put it
back.

Every row has a random `nonce`, which becomes a part of the position's token. A file that was restored from a
backup has the same history up to then; written further, it reaches the same numbers again with other rows,
and only the nonce tells. The nonce of the last trimmed row is kept beside `trimmed`.

Drift. What happened to a relation while its triggers were gone is in no log. So whoever mends or forgets a
relation gives the capture another epoch, in the same transaction, by which every position of before is
refused. Wrong way: *refuse positions before the last row of that moment*, for nothing was logged since, and a
reader that has followed everything stands exactly there.

Triggers that were dropped and made again from their own text, with the table as by SQLite's twelve steps or
without it, look as before, and leave a hole all the same. Root pages do not tell: VACUUM moves them too. The
order in the schema does: `_lockstep_prepared` is a view that is made after the triggers, and VACUUM keeps the
order of views and triggers. A trigger that comes after it was made by someone else.

Marks of global transactions (see `adapters/global_marks`) go into the same log, under a relation number of
their own, by a trigger that takes the row out of the marker table again. So a transaction that only has a
mark is a stretch of the log like any other, and marks are read, resumed and trimmed with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adapters.global_marks import MARKER
from adapters.sqlite.connection import Connection
from adapters.sqlite.schema import OWN_PREFIX, BaseTable, quoted
from adapters.sqlite.wal import MARK_VALUES
from algebra.errors import ConfigurationError

LOG = f"{OWN_PREFIX}log"
META = f"{OWN_PREFIX}meta"
RELATIONS = f"{OWN_PREFIX}relations"
REPLACED = f"{OWN_PREFIX}replaced"
ROWIDS = f"{OWN_PREFIX}rowids"
PREPARED = f"{OWN_PREFIX}prepared"

MARK_ID = -1
"""Stands in the log for a relation's number where the row is a mark: `c0` its id, `c1` its participants."""

_MARK_WIDTH = 2
_MARK_TRIGGER = f"{OWN_PREFIX}mark"
_CREATE_MARKER = f"CREATE TABLE {MARKER} (id TEXT, participants TEXT)"
_CREATE_MARK_TRIGGER = (
    f"CREATE TRIGGER {_MARK_TRIGGER} AFTER INSERT ON {MARKER} BEGIN "
    f"INSERT INTO {LOG} (rel, op, c0, c1) VALUES ({MARK_ID}, 0, NEW.id, NEW.participants); "
    f"DELETE FROM {MARKER} WHERE rowid = NEW.rowid; END"
)
_NEW_EPOCH = "lower(hex(randomblob(8)))"
_CREATE_META = f"CREATE TABLE {META} (name TEXT PRIMARY KEY NOT NULL, value) WITHOUT ROWID"
_CREATE_RELATIONS = (
    f"CREATE TABLE {RELATIONS} (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, shape TEXT NOT NULL, "
    "since INTEGER NOT NULL, reshaped INTEGER NOT NULL)"
)
_ROWIDS_STEPS = [f"CREATE TABLE {ROWIDS} (x)", f"INSERT INTO {ROWIDS} (rowid) VALUES (2)"]
_DROP_COPIES_OF_OTHER_ROWIDS = (
    f"DELETE FROM {REPLACED} WHERE rowid IN "
    f"(SELECT r.rowid FROM {ROWIDS} AS n CROSS JOIN {REPLACED} AS r WHERE n.rowid = 1); "
    f"UPDATE {ROWIDS} SET rowid = 2 WHERE rowid = 1;"
)
"""One look at a single row where rows have kept their numbers: the join begins with it."""


@dataclass(frozen=True)
class PreparedRelation:
    """A relation under capture: its number in the log, its columns then, and where its rows begin.

    `reshaped`: it was under capture before, in another shape or with a hole, so that history up to `since`
    does not count. The epoch refuses who comes from there; this is to say which relation it is about.
    """

    id: int
    name: str
    shape: str
    since: int
    reshaped: bool


@dataclass(frozen=True)
class CaptureState:
    """What capture is installed: its relations, log width, and the triggers as the source has them.

    `made_later`: what was made after the last preparation. `has_marker`: the marker table is there.
    `has_rowids`, `has_prepared`: so are the table and the view by which rows that were numbered anew and
    triggers that were made anew are known. `has_nonces`: rows of the log have a nonce (layouts of before 0.2
    have none).
    """

    installed: bool
    width: int
    relations: Mapping[str, PreparedRelation]
    triggers: Mapping[str, str]
    has_marker: bool
    made_later: frozenset[str] = frozenset()
    has_rowids: bool = False
    has_prepared: bool = False
    has_nonces: bool = False

    @property
    def nonce(self) -> str:
        """SQL: the nonce of a row of the log."""
        return "nonce" if self.has_nonces else "0"

    def drift(self, tables: Mapping[str, BaseTable], *, replace: bool) -> dict[str, str]:
        """For each captured relation that is no longer captured as it should be: what is wrong."""
        wrong = {}
        for relation in self.relations.values():
            table = tables.get(relation.name)
            if table is None:
                wrong[relation.name] = "it no longer exists"
                continue
            wanted = triggers(table, relation.id, replace=replace)
            if table.shape != relation.shape:
                wrong[relation.name] = "its columns changed"
            elif any(self.triggers.get(name) != sql for name, sql in wanted.items()):
                wrong[relation.name] = "its capture triggers no longer match its constraints, or are gone"
            elif not self.made_later.isdisjoint(wanted):
                wrong[relation.name] = "its capture triggers were gone for a while: someone made them again"
        return wrong


def read_state(connection: Connection) -> CaptureState:
    """The capture that the source has now."""
    own = {
        name: (kind, sql)
        for kind, name, sql in connection.rows(
            "SELECT type, name, coalesce(sql, '') FROM sqlite_schema "
            f"WHERE name LIKE '{OWN_PREFIX.replace('_', '!_')}%' ESCAPE '!' ORDER BY rowid"
        )
    }
    if LOG not in own:
        return CaptureState(False, 0, {}, {}, MARKER in own)
    width = connection.value(f"SELECT count(*) FROM pragma_table_info('{LOG}') WHERE name GLOB 'c[0-9]*'")
    relations = {
        name: PreparedRelation(number, name, shape, since, bool(reshaped))
        for number, name, shape, since, reshaped in connection.rows(
            f"SELECT id, name, shape, since, reshaped FROM {RELATIONS}"
        )
    }
    found = {name: sql for name, (kind, sql) in own.items() if kind == "trigger"}
    names = list(own)
    later = names[names.index(PREPARED) + 1 :] if PREPARED in own else names
    nonces = connection.value(f"SELECT count(*) FROM pragma_table_info('{LOG}') WHERE name = 'nonce'")
    return CaptureState(
        True,
        width,
        relations,
        found,
        MARKER in own,
        made_later=frozenset(later),
        has_rowids=ROWIDS in own,
        has_prepared=PREPARED in own,
        has_nonces=bool(nonces),
    )


def install_steps(
    state: CaptureState, tables: Mapping[str, BaseTable], names: Iterable[str], *, replace: bool
) -> list[str]:
    """The statements that put these relations under capture and mend those that drifted, in order."""
    drift = state.drift(tables, replace=replace)
    steps = []
    for name in drift:
        steps += _drop_triggers(state, name)
        steps.append(f"DELETE FROM {REPLACED} WHERE rel = {state.relations[name].id}")
        if name not in tables:
            steps.append(f"DELETE FROM {RELATIONS} WHERE name = {_literal(name)}")
    wanted = [n for n in dict.fromkeys(names) if n not in state.relations]
    changed = [*wanted, *(name for name in drift if name in tables)]
    marker = _marker_steps(state) if changed or state.installed else []
    if not changed and not steps and not marker:
        return []
    width = max([state.width, _MARK_WIDTH, *(len(tables[name].columns) for name in changed)])
    steps += [*_log_steps(state, width), *marker]
    if drift:
        steps += _new_epoch_steps(state)
    next_id = 1 + max((relation.id for relation in state.relations.values()), default=0)
    for number, name in enumerate(changed, next_id):
        known = state.relations.get(name)
        steps += _relation_steps(tables[name], number, known is not None, replace=replace)
    if changed:
        # The last of all: what comes after it was not made by us.
        steps += [f"DROP VIEW {PREPARED}"] if state.has_prepared else []
        steps.append(f"CREATE VIEW {PREPARED} AS SELECT 1")
    return steps


def remember_journal_mode(mode: str) -> str:
    """The statement that notes which journal mode the source had before it was changed."""
    return f"INSERT OR IGNORE INTO {META} VALUES ('journal_mode', {_literal(mode)})"


def remove_steps(connection: Connection) -> list[str]:
    """The statements that take capture out of the source, its former journal mode restored."""
    state = read_state(connection)
    if not state.installed:
        return []
    steps = [f"DROP TRIGGER {quoted(name)}" for name in state.triggers]
    steps += [f"DROP VIEW {PREPARED}"] if state.has_prepared else []
    marker, rowids = (MARKER,) if state.has_marker else (), (ROWIDS,) if state.has_rowids else ()
    steps += [f"DROP TABLE {table}" for table in (*marker, *rowids, REPLACED, LOG, RELATIONS, META)]
    mode = connection.value(f"SELECT value FROM {META} WHERE name = 'journal_mode'")
    return [*steps, f"PRAGMA journal_mode = {mode}"] if mode else steps


def _log_steps(state: CaptureState, width: int) -> list[str]:
    if state.installed:
        wider = [
            f"ALTER TABLE {table} ADD COLUMN c{i}"
            for table in (LOG, REPLACED)
            for i in range(state.width, width)
        ]
        return wider if state.has_rowids else [*wider, *_ROWIDS_STEPS]
    marks = ", ".join(f"m{i} DEFAULT {value}" for i, value in enumerate(MARK_VALUES))
    values = "".join(f", c{i}" for i in range(width))
    return [
        f"CREATE TABLE {LOG} (seq INTEGER PRIMARY KEY, {marks}, rel INTEGER, op INTEGER, "
        f"nonce INTEGER DEFAULT (random()){values})",
        f"CREATE TABLE {REPLACED} (rel INTEGER, row_key{values}, UNIQUE (rel, row_key))",
        *_ROWIDS_STEPS,
        _CREATE_RELATIONS,
        _CREATE_META,
        f"INSERT INTO {META} VALUES ('epoch', {_NEW_EPOCH}), ('trimmed', 0), ('trimmed_nonce', 0)",
        f"INSERT INTO {LOG} (seq, rel, op, nonce) VALUES (0, 0, 0, 0)",
    ]


def _new_epoch_steps(state: CaptureState) -> list[str]:
    """Give up the history kept so far; numbers go on, so that positions never go backwards."""
    newest = f"SELECT {state.nonce} FROM {LOG} ORDER BY seq DESC LIMIT 1"
    return [
        f"UPDATE {META} SET value = {_NEW_EPOCH} WHERE name = 'epoch'",
        f"UPDATE {META} SET value = (SELECT max(seq) FROM {LOG}) WHERE name = 'trimmed'",
        f"UPDATE {META} SET value = ({newest}) WHERE name = 'trimmed_nonce'",
    ]


def _marker_steps(state: CaptureState) -> list[str]:
    found = state.triggers.get(_MARK_TRIGGER)
    steps = [] if state.has_marker else [_CREATE_MARKER]
    if found not in (None, _CREATE_MARK_TRIGGER):
        steps.append(f"DROP TRIGGER {_MARK_TRIGGER}")
    return steps if found == _CREATE_MARK_TRIGGER else [*steps, _CREATE_MARK_TRIGGER]


def _relation_steps(table: BaseTable, number: int, known: bool, *, replace: bool) -> list[str]:
    if known:
        record = f"UPDATE {RELATIONS} SET id = {number}, shape = {_literal(table.shape)}, reshaped = 1, "
        record += f"since = (SELECT max(seq) FROM {LOG}) WHERE name = {_literal(table.name)}"
    else:
        record = f"INSERT INTO {RELATIONS} SELECT {number}, {_literal(table.name)}, {_literal(table.shape)}, "
        record += f"max(seq), 0 FROM {LOG}"
    return [record, *triggers(table, number, replace=replace).values()]


def _drop_triggers(state: CaptureState, relation: str) -> list[str]:
    names = [_trigger_name(kind, relation) for kind in _KINDS]
    return [f"DROP TRIGGER {quoted(name)}" for name in names if name in state.triggers]


_KINDS = (
    "insert", "delete", "update",
    "clash_insert", "clash_update", "gone_insert", "gone_delete", "gone_update",
)  # fmt: skip


def _trigger_name(kind: str, relation: str) -> str:
    return f"{OWN_PREFIX}{kind}: {relation}"


def triggers(table: BaseTable, number: int, *, replace: bool) -> dict[str, str]:
    """The CREATE TRIGGER statements that capture one relation, by trigger name."""
    name = quoted(table.name)
    new, old = _log_row(table, number, 1, "NEW"), _log_row(table, number, -1, "OLD")
    into = f"INSERT INTO {LOG} (rel, op{_values(table)}) VALUES"
    bodies = {
        "insert": f"AFTER INSERT ON {name} BEGIN {into} {new}; END",
        "delete": f"AFTER DELETE ON {name} BEGIN {into} {old}; END",
        "update": f"AFTER UPDATE ON {name} BEGIN {into} {old}; {into} {new}; END",
    }
    if replace:
        bodies |= _replace_triggers(table, number)
    return {
        trigger: f"CREATE TRIGGER {quoted(trigger)} {body}"
        for trigger, body in ((_trigger_name(kind, table.name), body) for kind, body in bodies.items())
    }


def _values(table: BaseTable, prefix: str = "") -> str:
    return "".join(f", {prefix}c{i}" for i in range(len(table.columns)))


def _log_row(table: BaseTable, number: int, sign: int, row: str) -> str:
    columns = "".join(f", {row}.{quoted(column.name)}" for column in table.columns)
    return f"({number}, {sign}{columns})"


def _replace_triggers(table: BaseTable, number: int) -> dict[str, str]:
    name, clashes = quoted(table.name), _clashes(table)
    # Per constraint, so that each is one index look-up on every insert; the copy itself is rare.
    exists = " OR ".join(f"EXISTS (SELECT 1 FROM {name} AS t WHERE {clash.met_by('t')})" for clash in clashes)
    key_changes = " OR ".join(clash.changes for clash in clashes)
    met = " OR ".join(f"({clash.met_by('t')})" for clash in clashes)
    of_other = f"({met}) AND {_row_key(table, 't')} <> {_row_key(table, 'OLD')}"
    has_copies = f"WHEN EXISTS (SELECT 1 FROM {REPLACED})"
    took_place = f"row_key = {_row_key(table, 'NEW')}"
    moved = f"{took_place} AND row_key <> {_row_key(table, 'OLD')}"
    of_old = f"rel = {number} AND row_key = {_row_key(table, 'OLD')}"
    follow = "".join(f", c{i} = NEW.{quoted(column.name)}" for i, column in enumerate(table.columns))
    return {
        "clash_insert": f"BEFORE INSERT ON {name} WHEN {exists} "
        f"BEGIN {_DROP_COPIES_OF_OTHER_ROWIDS} {_copy_rows(table, number, met)}; END",
        "clash_update": f"BEFORE UPDATE ON {name} WHEN {key_changes} "
        f"BEGIN {_DROP_COPIES_OF_OTHER_ROWIDS} {_copy_rows(table, number, of_other)}; END",
        "gone_insert": f"AFTER INSERT ON {name} {has_copies} "
        f"BEGIN {_DROP_COPIES_OF_OTHER_ROWIDS} {_log_gone(table, number, took_place)} END",
        "gone_delete": f"AFTER DELETE ON {name} {has_copies} "
        f"BEGIN DELETE FROM {REPLACED} WHERE {of_old}; END",
        "gone_update": f"AFTER UPDATE ON {name} {has_copies} BEGIN {_DROP_COPIES_OF_OTHER_ROWIDS} "
        f"UPDATE {REPLACED} SET row_key = NULL WHERE rel = {number} AND {moved}; "
        f"UPDATE {REPLACED} SET row_key = {_row_key(table, 'NEW')}{follow} WHERE {of_old}; "
        f"{_log_gone(table, number, 'row_key IS NULL')} END",
    }


@dataclass(frozen=True)
class _Clash:
    """One unique constraint: its columns as SQL, and how each compares."""

    columns: tuple[str, ...]
    collations: tuple[str, ...]

    def met_by(self, row: str) -> str:
        """SQL: that row holds the key that NEW wants. For a partial index this is a superset."""
        return " AND ".join(
            f"{row}.{column} = NEW.{column} COLLATE {quoted(collation)}"
            for column, collation in zip(self.columns, self.collations, strict=True)
        )

    @property
    def changes(self) -> str:
        """SQL: an update changes this key."""
        return " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in self.columns)


def _clashes(table: BaseTable) -> list[_Clash]:
    """The unique constraints by which REPLACE may delete rows of this table."""
    clashes = []
    if table.rowid is not None:
        clashes.append(_Clash((table.rowid,), ("BINARY",)))
    elif not table.without_rowid:
        raise ConfigurationError(
            f"relation {table.name!r} has columns named rowid, _rowid_ and oid, which hide the identity of "
            "its rows; if no writer uses REPLACE, set the option 'replace: never'"
        )
    for index in table.indexes:
        if not index.unique:
            continue
        if any(column.name is None for column in index.columns):
            raise ConfigurationError(
                f"relation {table.name!r} has a unique index on an expression: rows that REPLACE deletes "
                "by it cannot be captured; if no writer uses REPLACE, set the option 'replace: never'"
            )
        columns = tuple(quoted(column.name or "") for column in index.columns)
        clashes.append(_Clash(columns, tuple(column.collation for column in index.columns)))
    return clashes


def _row_key(table: BaseTable, row: str) -> str:
    """SQL: what identifies the row among all rows of its table at one moment."""
    if table.rowid is not None:
        return f"{row}.{table.rowid}"
    return " || ',' || ".join(f"quote({row}.{quoted(column)})" for column in table.primary_key)


def _copy_rows(table: BaseTable, number: int, condition: str) -> str:
    """SQL: copy the rows `t` of the table that meet the condition and have no copy yet.

    Not by OR IGNORE: in a trigger it is overruled by the OR clause of the statement that fired it.
    """
    key = _row_key(table, "t")
    base = "".join(f", t.{quoted(column.name)}" for column in table.columns)
    return (
        f"INSERT INTO {REPLACED} (rel, row_key{_values(table)}) "
        f"SELECT {number}, {key}{base} FROM {quoted(table.name)} AS t WHERE ({condition}) "
        f"AND NOT EXISTS (SELECT 1 FROM {REPLACED} AS r WHERE r.rel = {number} AND r.row_key = {key})"
    )


def _log_gone(table: BaseTable, number: int, replaced: str) -> str:
    """Statements of an AFTER trigger: log, and drop, the copies whose rows were deleted unseen."""
    if table.rowid is not None:
        same = f"t.{table.rowid} = {REPLACED}.row_key"
    else:
        places = [column.name for column in table.columns]
        same = " AND ".join(f"t.{quoted(c)} = {REPLACED}.c{places.index(c)}" for c in table.primary_key)
    still_there = f"EXISTS (SELECT 1 FROM {quoted(table.name)} AS t WHERE {same})"
    gone = f"rel = {number} AND ({replaced} OR NOT {still_there})"
    return (
        f"INSERT INTO {LOG} (rel, op{_values(table)}) SELECT {number}, -1{_values(table)} "
        f"FROM {REPLACED} WHERE {gone}; DELETE FROM {REPLACED} WHERE {gone};"
    )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
