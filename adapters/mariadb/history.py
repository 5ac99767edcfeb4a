"""What both captures share: what each has to offer to the adapter, and the tables in which they remember.

    _lockstep_meta       one row per fact: which capture, the epoch, how far history was trimmed
    _lockstep_relations  the prepared relations, as they were then, and from which position on they count
    _lockstep_global     the marker table (`adapters/global_marks.py`)

The server commits every change of a schema by itself, so a `prepare` that is interrupted leaves a part of its
steps behind. Each step is one that can be found done or undone; a second `prepare` does the rest. The fact
`epoch` is written when the tables are there, and removed first: without it nothing counts as installed.

A relation whose capture was interrupted stays on the list, as the broken one that it is, until it is replaced
or taken off in one transaction with a new epoch (`listing`). So every position of before is refused from then
on, wherever `prepare` is interrupted. Wrong way: *refuse positions before the place where it was mended*, for
whoever has followed everything may stand exactly there.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from adapters.global_marks import MARKER
from adapters.mariadb.catalog import OWN_PREFIX, SourceTable, SourceTables
from adapters.mariadb.connection import Connection
from adapters.mariadb.options import Options
from adapters.mariadb.sql import quote, text
from adapters.spi import COUNT, TRANSACTION, Changes
from algebra.errors import ConfigurationError, PositionTrimmedError, SchemaChangedError
from algebra.position import Position
from algebra.schema import RelationSchema

META = f"{OWN_PREFIX}_meta"
RELATIONS = f"{OWN_PREFIX}_relations"

SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"

MAY_DROP = f"DROP TABLE IF EXISTS {OWN_PREFIX}_probe"
"""The first step, and one without effect: who may not drop could not take back what a refusal leaves."""

_TEXT = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
CREATE_META = (
    f"CREATE TABLE IF NOT EXISTS {META} (name VARCHAR(64) {_TEXT} PRIMARY KEY, value LONGTEXT {_TEXT}) "
    "ENGINE = InnoDB"
)
CREATE_RELATIONS = (
    f"CREATE TABLE IF NOT EXISTS {RELATIONS} (number INT PRIMARY KEY, name VARCHAR(64) {_TEXT} NOT NULL, "
    f"shape LONGTEXT {_TEXT} NOT NULL, since BIGINT NOT NULL, reshaped BOOLEAN NOT NULL, "
    f"identity VARCHAR(255) {_TEXT} NOT NULL, UNIQUE (name)) ENGINE = InnoDB"
)

Shape = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Prepared:
    """One relation as capture knows it.

    `reshaped`: it was under capture before, in another shape or with a hole, so that history up to `since`
    does not count. The epoch refuses who comes from there; this is to say which relation it is about.
    `identity`: what tells the table from another of the same name, where the capture can tell.
    """

    number: int
    name: str
    shape: Shape
    since: int
    reshaped: bool
    identity: str


@dataclass(frozen=True)
class Installed:
    """What is installed in the database; `epoch` is empty if nothing is."""

    own: frozenset[str] = frozenset()
    facts: Mapping[str, str] = field(default_factory=dict)
    relations: tuple[Prepared, ...] = ()

    @property
    def epoch(self) -> str:
        return self.facts.get("epoch", "")

    def prepared(self, name: str) -> Prepared | None:
        return next((relation for relation in self.relations if relation.name == name), None)

    def next_number(self) -> int:
        return 1 + max((relation.number for relation in self.relations), default=0)

    def require(self, source: str, capture: str) -> None:
        """ConfigurationError unless this very capture is installed."""
        if not self.epoch:
            raise ConfigurationError(f"source {source!r} is not prepared: no capture is installed in it")
        if self.facts.get("capture") != capture:
            raise ConfigurationError(
                f"source {source!r} is prepared for capture {self.facts.get('capture')!r}, and configured "
                f"for {capture!r}; remove capture, then prepare again"
            )


def read_installed(connection: Connection, database: str) -> Installed:
    """What capture finds of itself in the database."""
    own = frozenset(
        name
        for (name,) in connection.rows(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME LIKE %s",
            [database, OWN_PREFIX.replace("_", "\\_") + "\\_%"],
        )
    )
    facts: dict[str, str] = dict(connection.rows(f"SELECT name, value FROM {META}")) if META in own else {}
    relations: tuple[Prepared, ...] = ()
    if RELATIONS in own:
        relations = tuple(
            Prepared(number, name, read_shape(shape), since, bool(reshaped), identity)
            for number, name, shape, since, reshaped, identity in connection.rows(
                f"SELECT number, name, shape, since, reshaped, identity FROM {RELATIONS} ORDER BY number"
            )
        )
    return Installed(own, facts, relations)


def read_shape(written: str) -> Shape:
    return tuple((name, declared) for name, declared in json.loads(written))


def set_fact(name: str, value: str) -> str:
    return f"REPLACE INTO {META} VALUES ({text(name)}, {text(value)})"


def set_epoch() -> str:
    """The statement that makes an epoch, by which capture counts as installed."""
    return f"REPLACE INTO {META} VALUES ('epoch', MD5(CONCAT(UUID(), RAND())))"


RENEW_EPOCH = f"REPLACE INTO {META} SELECT name, MD5(CONCAT(UUID(), RAND())) FROM {META} WHERE name = 'epoch'"
"""The statement that refuses all positions of before, if capture is installed."""


def is_replica(connection: Connection) -> bool:
    """Whether the server is applying the changes of another one."""
    ((_, running),) = connection.rows("SHOW GLOBAL STATUS LIKE 'Slaves_running'")
    return int(running) > 0


def relation_row(number: int, table: SourceTable, since: int, *, reshaped: bool, identity: str) -> str:
    """The statement that puts a relation on the list."""
    shape = text(json.dumps(table.shape, ensure_ascii=False))
    return (
        f"REPLACE INTO {RELATIONS} VALUES ({number}, {text(table.name)}, {shape}, {since}, "
        f"{int(reshaped)}, {text(identity)})"
    )


def listing(lost: Iterable[Prepared], rows: Sequence[str]) -> list[str]:
    """The statements that take relations off the list and put others on it, by their `relation_row`.

    Who knew one that was lost must not go on from where it stood: it costs the epoch.
    """
    off = [f"DELETE FROM {RELATIONS} WHERE number = {prepared.number}" for prepared in lost]
    return ["START TRANSACTION", set_epoch(), *off, *rows, "COMMIT"] if off else [*rows]


def removal(installed: Installed) -> list[str]:
    """The statements that take out what both captures have, in an order that can be taken up again."""
    steps = [f"DELETE FROM {META} WHERE name = 'epoch'"] if installed.epoch else []
    last = [MARKER, RELATIONS, META]
    steps += [f"DROP TABLE {quote(name)}" for name in sorted(installed.own - set(last))]
    return [*steps, *(f"DROP TABLE {name}" for name in last if name in installed.own)]


def check_position(
    source: str, installed: Installed, after: Position, current: int, trimmed: int, mark: str | None
) -> None:
    """Raise unless the history after that position is all here.

    A token is `epoch:mark`; `mark` is what belongs to that ordinal now, None if only the epoch counts.
    """
    where = f"source {source!r}"
    epoch, _, found = after.token.partition(":")
    is_foreign = epoch != installed.epoch
    for relation in installed.relations:
        # At `since` itself two histories meet: the one that was given up then, and the one that began.
        last_lost = relation.since if is_foreign else relation.since - 1
        if relation.reshaped and after.ordinal <= last_lost:
            raise SchemaChangedError(
                f"relation {source}.{relation.name} was prepared anew at position {relation.since}; what it "
                f"was at position {after} cannot be followed"
            )
    if is_foreign or (mark is not None and found != mark):
        raise PositionTrimmedError(
            f"{where}: position {after} is not of this history (capture was installed anew, a relation was "
            "lost and prepared again, or the database was restored)"
        )
    if after.ordinal > current:
        raise PositionTrimmedError(
            f"{where}: position {after} is beyond the end of its history ({current}); was the database "
            "restored from a backup?"
        )
    if after.ordinal < trimmed:
        raise PositionTrimmedError(
            f"{where}: history up to {trimmed} was trimmed, position {after} lies before that"
        )


def changed(source: str, relation: str, problem: str) -> SchemaChangedError:
    return SchemaChangedError(
        f"relation {source}.{relation} {problem} since capture was prepared; prepare again"
    )


def drift(prepared: Prepared, table: SourceTable | None) -> str | None:
    """In words, how a relation differs from what was prepared; None if it does not."""
    if table is None:
        return "was dropped or renamed"
    before, now = dict(prepared.shape), dict(table.shape)
    for name in before:
        if name not in now:
            return f"lost column {name!r}"
    for name, declared in now.items():
        if name not in before:
            return f"got column {name!r}"
        if before[name] != declared:
            return f"changed column {name!r} from {before[name]} to {declared}"
    if prepared.shape != table.shape:
        return "has its columns in another order"
    if table.cascade is not None:
        return f"got the cascading foreign key {table.cascade!r}"
    return None


def change_schema(shown: RelationSchema) -> pa.Schema:
    """The schema of a relation's table in `Changes`."""
    fields = [pa.field(column.name, column.type) for column in shown.columns]
    return pa.schema([*fields, pa.field(TRANSACTION, pa.int32()), pa.field(COUNT, pa.int64())])


class History(ABC):
    """The captured history as one snapshot shows it, and the tables as they are in it."""

    tables: SourceTables

    @property
    @abstractmethod
    def position(self) -> Position:
        """The position of the state that the snapshot shows."""

    @abstractmethod
    def changes(self, after: Position, most_rows: int | None) -> Changes:
        """The entries after that position: all, or a first run of them, as in the contract."""


@dataclass(frozen=True)
class Followed:
    """The source that a capture follows: its name, its options, and how its tables are read."""

    name: str
    options: Options
    read_tables: Callable[[Connection], SourceTables]
    clock: Callable[[], float]


class Capture(ABC):
    """A way to learn what changed."""

    def __init__(self, followed: Followed) -> None:
        self._source = followed.name
        self._options = followed.options
        self._database = followed.options.server.database
        self._read_tables = followed.read_tables
        self._clock = followed.clock
        self._was_blind = False

    @abstractmethod
    def plan(self, connection: Connection, tables: SourceTables, names: Sequence[str]) -> list[str]:
        """The statements that put these relations under capture and mend those that drifted, in order."""

    @abstractmethod
    def removal(self, connection: Connection) -> list[str]:
        """The statements that take capture out."""

    @abstractmethod
    def begin(self, connection: Connection) -> History:
        """Open the read transaction on this connection, and show its history."""

    @abstractmethod
    def changed(self, connection: Connection) -> bool:
        """Whether there may be something that the last snapshot did not show."""

    @abstractmethod
    def acknowledge(self, connection: Connection, position: Position) -> None:
        """Trim what may be trimmed."""

    @abstractmethod
    def blind(self, connection: Connection) -> str | None:
        """Why changes of the database pass this capture by, and the remedy; None if it sees all."""

    def require_sight(self, connection: Connection, *, follows: bool) -> None:
        """ConfigurationError if changes pass this capture by.

        Who `follows` may have missed some by now, whatever is set right later: that costs the epoch.
        """
        problem = self.blind(connection)
        if follows and problem is not None and not self._was_blind:
            # Not possible before anything is prepared, nor without the rights to do that.
            with suppress(ConfigurationError, SchemaChangedError):
                connection.execute(RENEW_EPOCH)
        self._was_blind = follows and problem is not None
        if problem is not None:
            raise ConfigurationError(f"source {self._source!r}: {problem}")

    def is_installed(self, connection: Connection) -> bool:
        """Whether some capture is installed as a whole."""
        return bool(read_installed(connection, self._database).epoch)

    def check_rights(self, connection: Connection, tables: SourceTables) -> None:
        """ConfigurationError if a right is missing that would be missed only later."""
        for table in tables.tables.values():
            columns = ", ".join(quote(column.name) for column in table.columns) or "1"
            connection.rows(f"SELECT {columns} FROM {tables.path(table.name)} LIMIT 0")

    @abstractmethod
    def close(self) -> None:
        """Let go of further connections."""
