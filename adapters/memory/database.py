"""A database inside the process: counted tables, atomic transactions, an immutable version per commit.

Whoever holds a `Version` holds a snapshot: nothing in it ever changes, so readers need no lock and see
no half of a transaction. The change log is a part of the version, which is why changes and contents
read from one version cannot disagree.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.compute as pc

from algebra.delta import Delta
from algebra.errors import ConfigurationError, DataError
from algebra.schema import COUNT, Column, RelationSchema

Row = Sequence[Any] | Mapping[str, Any]
"""One row: its values in column order, or by column name (a missing name is NULL)."""

MarkRow = tuple[str | None, str | None]
"""A row of the marker table: the id of a global transaction, and its participants, separated by commas."""


@dataclass(frozen=True)
class Commit:
    """What one transaction did to the captured relations, its number in the database, and its marks."""

    ordinal: int
    deltas: Mapping[str, Delta]
    marks: tuple[MarkRow, ...] = ()


@dataclass(frozen=True)
class Capture:
    """The change log. `epoch` tells this log from one that was removed; `floor` is the number of the
    last commit whose changes the log does not hold; `shapes` are the captured relations as they were then."""

    epoch: str
    floor: int
    shapes: Mapping[str, RelationSchema] = field(default_factory=dict)
    log: tuple[Commit, ...] = ()

    @property
    def relations(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    def drifted(self, schemas: Mapping[str, RelationSchema]) -> tuple[str, ...]:
        """The captured relations that are no longer what they were, or another of the same name and shape."""
        return tuple(name for name, shape in self.shapes.items() if schemas.get(name) is not shape)

    def record(self, commit: Commit) -> Capture:
        captured = {name: delta for name, delta in commit.deltas.items() if name in self.relations}
        if not captured and not commit.marks:
            return self
        return replace(self, log=(*self.log, replace(commit, deltas=captured)))

    def trim(self, ordinal: int) -> Capture:
        if ordinal <= self.floor:
            return self
        return replace(self, floor=ordinal, log=tuple(c for c in self.log if c.ordinal > ordinal))


@dataclass(frozen=True)
class Version:
    """The whole database after its `ordinal`-th commit."""

    ordinal: int = 0
    schemas: Mapping[str, RelationSchema] = field(default_factory=dict)
    contents: Mapping[str, Delta] = field(default_factory=dict)
    capture: Capture | None = None

    def table(self, relation: str) -> pa.Table:
        """The rows of one relation, each as often as it is there."""
        counted = self.contents[relation].rows
        counts = counted[COUNT].to_pylist()
        copies = [index for index, count in enumerate(counts) for _ in range(count)]
        return counted.drop_columns([COUNT]).take(pa.array(copies, pa.int64()))


class Transaction:
    """Changes that are collected here and become visible together; get one from `transaction()`."""

    def __init__(self, schemas: Mapping[str, RelationSchema]) -> None:
        self._schemas = schemas
        self.deltas: dict[str, Delta] = {}
        self.marks: list[MarkRow] = []

    def insert(self, relation: str, rows: Iterable[Row] | pa.Table) -> None:
        """Add these rows."""
        self._add(relation, rows, +1)

    def delete(self, relation: str, rows: Iterable[Row] | pa.Table) -> None:
        """Remove each of these rows once; it is an error at commit if one is not there."""
        self._add(relation, rows, -1)

    def update(
        self, relation: str, before: Iterable[Row] | pa.Table, after: Iterable[Row] | pa.Table
    ) -> None:
        """Put the rows of `after` in the place of those of `before`."""
        self._add(relation, before, -1)
        self._add(relation, after, +1)

    def mark(self, id: str | None, participants: str | None) -> None:
        """Say that this is a part of a global transaction: one row for the marker table."""
        self.marks.append((id, participants))

    def _add(self, relation: str, rows: Iterable[Row] | pa.Table, sign: int) -> None:
        schema = self._schemas.get(relation)
        if schema is None:
            raise ConfigurationError(f"the memory database has no relation {relation!r}")
        table = rows.cast(_arrow(schema)) if isinstance(rows, pa.Table) else _table(schema, rows)
        delta = Delta.of_bag(table, sign)
        known = self.deltas.get(relation)
        self.deltas[relation] = known.plus(delta) if known else delta


class MemoryDatabase:
    """A named database in this process, safe for many threads.

    Adapters find it by its name (`memory:///name`) as long as somebody holds it.
    """

    _named: ClassVar[WeakValueDictionary[str, MemoryDatabase]] = WeakValueDictionary()

    def __init__(self, name: str) -> None:
        self.name = name
        self.changed = threading.Condition()
        self._version = Version()
        self._named[name] = self

    @classmethod
    def named(cls, name: str) -> MemoryDatabase:
        """The database of that name, which must exist."""
        database = cls._named.get(name)
        if database is None:
            raise ConfigurationError(f"no memory database is named {name!r}; create MemoryDatabase({name!r})")
        return database

    @property
    def version(self) -> Version:
        """The newest committed version."""
        return self._version

    def create(
        self, relation: str, columns: Mapping[str, pa.DataType], key: Sequence[str] = ()
    ) -> RelationSchema:
        """Add an empty relation."""
        schema = RelationSchema(
            relation,
            tuple(Column(name, type_, nullable=name not in key) for name, type_ in columns.items()),
            tuple(key),
        )

        def add(version: Version) -> Version:
            if relation in version.schemas:
                raise ConfigurationError(f"memory database {self.name!r} has a relation {relation!r} already")
            empty = Delta.of_bag(_table(schema, []))
            return replace(
                version,
                schemas={**version.schemas, relation: schema},
                contents={**version.contents, relation: empty},
            )

        self.change(add)
        return schema

    def alter(self, relation: str, schema: RelationSchema, rows: Iterable[Row]) -> None:
        """Put a relation of this shape, under its own name and with these rows, in the place of another."""
        contents = Delta.of_bag(_table(schema, rows))
        made = replace(schema)  # another object: that is how capture tells it from the one of before

        def put(version: Version) -> Version:
            schemas = {name: known for name, known in version.schemas.items() if name != relation}
            others = {name: known for name, known in version.contents.items() if name != relation}
            return replace(
                version,
                schemas={**schemas, made.name: made},
                contents={**others, made.name: contents},
            )

        self.change(put)

    def drop(self, relation: str) -> None:
        """Take a relation away."""

        def take(version: Version) -> Version:
            schemas = {name: known for name, known in version.schemas.items() if name != relation}
            contents = {name: known for name, known in version.contents.items() if name != relation}
            return replace(version, schemas=schemas, contents=contents)

        self.change(take)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction that commits when the block ends and rolls back when it raises."""
        transaction = Transaction(self._version.schemas)
        yield transaction
        deltas = {name: delta for name, delta in transaction.deltas.items() if not delta.is_empty}
        marks = tuple(transaction.marks)
        if deltas or marks:
            self.change(lambda version: _commit(version, deltas, marks))

    def change(self, step: Callable[[Version], Version]) -> None:
        """Put `step(version)` in the place of the newest version, atomically, and tell who waits."""
        with self.changed:
            self._version = step(self._version)
            self.changed.notify_all()


def _commit(version: Version, deltas: Mapping[str, Delta], marks: tuple[MarkRow, ...]) -> Version:
    if marks and version.capture is None:
        raise ConfigurationError("the memory database has no marker table: no capture is prepared")
    contents = dict(version.contents)
    for relation, delta in deltas.items():
        contents[relation] = contents[relation].plus(delta)
        _check(version.schemas[relation], contents[relation])
    ordinal = version.ordinal + 1
    capture = version.capture.record(Commit(ordinal, deltas, marks)) if version.capture else None
    return replace(version, ordinal=ordinal, contents=contents, capture=capture)


def _check(schema: RelationSchema, content: Delta) -> None:
    """Refuse what a database refuses: to delete a row that is not there, to break a key."""
    if content.is_empty:
        return
    if pc.min(content.rows[COUNT]).as_py() < 0:
        raise DataError(f"a row to delete is not in {schema.name!r}")
    if schema.key:
        keys = content.rows.group_by(list(schema.key), use_threads=False).aggregate([(COUNT, "sum")])
        if pc.max(keys[f"{COUNT}_sum"]).as_py() > 1:
            raise DataError(f"two rows of {schema.name!r} have the same key {', '.join(schema.key)}")


def _table(schema: RelationSchema, rows: Iterable[Row]) -> pa.Table:
    names = [column.name for column in schema.columns]
    values = [tuple(map(row.get, names)) if isinstance(row, Mapping) else tuple(row) for row in rows]
    wrong = next((row for row in values if len(row) != len(names)), None)
    if wrong is not None:
        raise DataError(f"relation {schema.name!r} has {len(names)} columns, the row {wrong!r} has not")
    columns = zip(*values, strict=True) if values else ([] for _ in names)
    arrays = [pa.array(column, c.type) for column, c in zip(columns, schema.columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_arrow(schema))


def _arrow(schema: RelationSchema) -> pa.Schema:
    """The types alone: counted rows of a change and of an answer must fit together, NOT NULL or not."""
    return pa.schema([(column.name, column.type) for column in schema.columns])
