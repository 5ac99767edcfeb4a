"""The shadow of one source: a DuckDB file kept by the wrapper that is the state at a position, and its past.

It holds the rows of every prepared relation as last seen, and the differences that led there, until they are
acknowledged (`layout.py`). A cycle (`cycle.py`) brings it to a newer state of the source; everything between
two cycles is one batched entry of the history.

How answers and changes agree: **answers come from the shadow too** (`snapshot.py`). The shadow is the state
at the position that its history ends with, so agreement needs nothing of the source but that one cycle reads
one state of it. Wrong ways: fetch from the source in the read transaction of the cycle (needs a consistent
transaction that stays open while answers are read, compares by the source's collations, converts types a
second way, and loads the source with every maintenance query); fetch from the source later (not the same
state). The price is nothing new: a capture by difference has the copy anyway. What it gains: between two
cycles a snapshot does not touch the source at all.

Only an adapter whose source cannot change while it is being read may answer from the source instead: the
DuckDB adapter holds the file, which nobody can write meanwhile.

The shadow says which database it is of, and is not opened for another one. Two configurations may come to
one folder by a default or a copied option; where their tables are alike, the difference between two databases
would pass for what one of them did.

The file is attached for moments only (`engine.py`), so that other commands get their turn. It has a folder of
its own, which only the wrapper's user can read: DuckDB makes log files beside it, with rows, and asks nobody
for their mode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa

from adapters.shadow import layout
from adapters.shadow.cycle import Cycle, check_key
from adapters.shadow.engine import Engine, LockedError, one, transaction
from adapters.shadow.extent import Extent
from adapters.shadow.history import Bounds, Shape, TrimPolicy, change_schema, drift, not_prepared
from adapters.shadow.layout import CYCLES, META, RELATIONS, SHADOW, Kept, Step
from adapters.shadow.sql import quote
from adapters.shadow.types import duckdb_name
from adapters.spi import COUNT, TRANSACTION, Changes
from algebra.errors import ConfigurationError, PositionTrimmedError
from algebra.position import Position
from algebra.private_files import make_private_folder
from algebra.schema import Column, RelationSchema


class SourceState(ABC):
    """The source as one read transaction of it shows it: what an adapter gives to its shadow."""

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, Shape]:
        """Every relation that is there now, by name, also those that cannot be shown."""

    @abstractmethod
    def schema(self, relation: str) -> RelationSchema:
        """The relation as it is shown; ConfigurationError if it is not there or cannot be shown."""

    @abstractmethod
    def rows(self, relation: str) -> Extent:
        """All its rows; nothing is read before the extent is scanned."""


@dataclass(frozen=True)
class Content:
    """What a shadow file holds; `epoch` is empty if there is none."""

    epoch: str = ""
    trimmed: int = 0
    mark: str = ""
    relations: tuple[Kept, ...] = ()


NOTHING = Content()


def shadow_file(folder: Path) -> Path:
    """The file that keeps the state and the differences, in the shadow's folder."""
    return folder / "shadow.duckdb"


class Shadow:
    """The shadow of one source, in a folder of its own.

    `database` tells what is shadowed from any other database, and may be shown: its address without
    credentials.
    """

    def __init__(
        self, engine: Engine, folder: Path, database: str, policy: TrimPolicy, *, lock_timeout: float = 30.0
    ) -> None:
        self._engine = engine
        self._source = engine.source
        self._folder = folder
        self._database = database
        self._file = shadow_file(folder)
        self._policy = policy
        self._lock_timeout = lock_timeout
        self._names: tuple[str, ...] = ()

    @property
    def lost(self) -> tuple[str, ...]:
        """The relations that this process prepared, if the file is gone since: prepare them again.

        That starts a new history; positions of the old one are refused.
        """
        return () if self._file.exists() else self._names

    def prepare(self, state: SourceState, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        """Keep these relations from now on; returns each step. Relations that drifted are taken anew."""
        # Planned before anything is opened: what is refused must not leave a file behind.
        planned = _plan(self._source, self._database, NOTHING, state, relations)
        exists = self._file.exists()
        created = [] if exists else [f"create {self._folder}"]
        if dry_run and not exists:
            return created + [str(step) for step in planned]
        try:
            with self._attached() as connection:
                steps = _plan(self._source, self._database, self._read(connection), state, relations)
                if steps and not dry_run:
                    known = self._read(connection).relations
                    with transaction(connection):
                        for step in steps:
                            step.run(connection)
                        for kept in self._read(connection).relations:
                            if kept not in known:
                                check_key(connection, self._source, kept)
                self._names = tuple(kept.name for kept in self._read(connection).relations)
        except BaseException:
            if not exists:
                self.remove()
            raise
        return created + [str(step) for step in steps]

    def remove(self, *, dry_run: bool = False) -> list[str]:
        """Delete the shadow; returns each step."""
        if not self._folder.is_dir():
            return []
        if not dry_run:
            self._names = ()
            for file in self._folder.glob(f"{self._file.name}*"):  # with the log files that DuckDB made
                file.unlink()
            with suppress(OSError):  # somebody else has files in it
                self._folder.rmdir()
        return [f"delete {self._folder}"]

    @contextmanager
    def opened(self) -> Iterator[OpenShadow]:
        """What the shadow holds, until the block is left; without a file, a shadow that holds nothing."""
        with ExitStack() as stack:
            if self._file.exists():
                connection = stack.enter_context(self._attached())
                held = OpenShadow(connection, self._source, lambda: self._read(connection))
                self._names = tuple(held.relations)
            else:
                held = OpenShadow(self._engine.connection, self._source, lambda: NOTHING)
            stack.callback(held.close)
            yield held

    def acknowledge(self, position: Position) -> None:
        """Forget the differences up to a position of this history, if it is worth it and the file free."""
        if not self._policy.is_due(position) or not self._file.exists():
            return
        try:
            with self._attached(timeout=0) as connection, transaction(connection):
                trimmed = _trim(connection, self._source, self._read(connection), position)
        except LockedError:
            return
        self._policy.done(trimmed)

    @contextmanager
    def _attached(self, timeout: float | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
        if not self._file.exists():
            self._make_folder()
        timeout = self._lock_timeout if timeout is None else timeout
        with self._engine.attached_file(SHADOW, self._file, write=True, timeout=timeout) as connection:
            yield connection

    def _make_folder(self) -> None:
        if not self._folder.absolute().parent.is_dir():
            raise ConfigurationError(
                f"source {self._source!r}: the folder of shadow {self._folder} does not exist"
            )
        try:
            make_private_folder(self._folder)
        except OSError as error:
            raise ConfigurationError(
                f"source {self._source!r}: the folder of its shadow, {self._folder}, cannot be made: "
                f"{error.strerror or 'there is a file of that name'}"
            ) from None

    def _read(self, connection: duckdb.DuckDBPyConnection) -> Content:
        columns = connection.execute(
            "SELECT column_name FROM duckdb_columns() WHERE database_name = $1 AND table_name = 'meta'",
            [SHADOW],
        ).fetchall()
        if not columns:
            return NOTHING
        found = one(connection, f"SELECT format FROM {META}") if ("format",) in columns else None
        if found is None or found[0] != layout.FORMAT:
            raise ConfigurationError(
                f"source {self._source!r}: {self._file} was made by another version of Lockstep; "
                "remove capture and prepare again"
            )
        if (layout.DATABASE,) not in columns:
            layout.note_database(self._database).run(connection)
        *meta, database = one(connection, f"SELECT epoch, trimmed, mark, {layout.DATABASE} FROM {META}")
        if database != self._database:
            raise self._foreign(database)
        rows = connection.execute(
            f"SELECT number, relation, definition, note FROM {RELATIONS} ORDER BY number"
        ).fetchall()
        epoch, trimmed, mark = meta
        return Content(epoch, trimmed, mark, tuple(layout.read_definition(*row) for row in rows))

    def _foreign(self, database: str) -> ConfigurationError:
        where = f"source {self._source!r}: {self._folder} is the shadow of another database"
        remedy = (
            "name another folder in option `shadow`; or, if it is the same database at a new address, "
            "`lockstep adapter remove` and `prepare`, then refresh the views"
        )
        return ConfigurationError(f"{where}, {database}; {remedy}", told=f"{where}; {remedy}")


class OpenShadow:
    """A shadow whose file is attached."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, source: str, read: Callable[[], Content]
    ) -> None:
        self.connection = connection
        self.source = source
        self._content_of = read
        self._content = read()
        self._borrowed: list[str] = []

    @property
    def relations(self) -> Mapping[str, Kept]:
        """The prepared relations by name; none if there is no shadow."""
        return {kept.name: kept for kept in self._content.relations}

    @property
    def prepared(self) -> bool:
        """Whether there is a shadow."""
        return bool(self._content.epoch)

    @property
    def position(self) -> Position:
        """The position of the state that the shadow holds."""
        bounds = self._bounds()
        return Position(bounds.current, bounds.token(self._marks(bounds.current - 1)[-1]))

    def changes(self, after: Position) -> Changes:
        """What the cycles after a position found."""
        bounds = self._bounds()
        bounds.check(after)
        at, *later = self._marks(after.ordinal - 1)
        bounds.check_mark(after, at)
        positions = tuple(
            Position(ordinal, bounds.token(mark)) for ordinal, mark in enumerate(later, after.ordinal + 1)
        )
        if not positions:
            return Changes((), {})
        return Changes(positions, self._rows(after), frozenset(range(len(positions))))

    def drifted(self, state: SourceState) -> dict[str, str]:
        """The prepared relations that are no longer as they were prepared, with the reason in words."""
        found = {kept.name: _drift(self.source, kept, state) for kept in self._content.relations}
        return {name: problem for name, problem in found.items() if problem}

    @contextmanager
    def cycle(self, now: float = 0.0) -> Iterator[Cycle]:
        """One cycle: committed as one entry when the block is left, if anything differed; else undone."""
        if not self._content.epoch:
            raise not_prepared(self.source)
        ordinal = self._bounds().current + 1
        with transaction(self.connection):
            cycle = Cycle(self.connection, self.source, self.relations, ordinal, now)
            yield cycle
            if cycle.found:
                self.connection.execute(f"INSERT INTO {CYCLES} VALUES ($1, $2)", [ordinal, uuid4().hex])
        self._content = self._content_of()

    def borrow(self, schema: RelationSchema, rows: Extent) -> Borrowed:
        """The rows of a relation that is not prepared, readable until the shadow is closed."""
        borrowed = Borrowed(len(self._borrowed), schema.columns)
        with rows.scanned(self.connection) as scan:
            self.connection.execute(f"CREATE TABLE {borrowed.table} AS SELECT {borrowed.cast} FROM {scan}")
        self._borrowed.append(borrowed.table)
        return borrowed

    def close(self) -> None:
        """Drop what was borrowed."""
        for table in self._borrowed:
            self.connection.execute(f"DROP TABLE {table}")
        self._borrowed.clear()

    def _bounds(self) -> Bounds:
        if not self._content.epoch:
            raise not_prepared(self.source)
        return _bounds(self.connection, self.source, self._content)

    def _marks(self, after: int) -> list[str]:
        """The marks of all entries after an ordinal, led by that of the trimmed stretch if it is reached."""
        rows = self.connection.execute(
            f"SELECT mark FROM {CYCLES} WHERE ordinal > $1 ORDER BY ordinal", [after]
        ).fetchall()
        marks = [str(row[0]) for row in rows]
        return [self._content.mark, *marks] if after < self._content.trimmed else marks

    def _rows(self, after: Position) -> Mapping[str, pa.Table]:
        tables = {}
        for kept in self._content.relations:
            rows = self.connection.sql(
                f"SELECT {', '.join(kept.columns)}, CAST(ordinal - $1 - 1 AS INTEGER) AS {TRANSACTION}, "
                f"copies AS {COUNT} FROM {kept.diff} WHERE ordinal > $1 ORDER BY ordinal",
                params=[after.ordinal],
            ).to_arrow_table()
            if rows.num_rows:
                schema = change_schema(kept.arrow)
                tables[kept.name] = rows.rename_columns(schema.names).cast(schema)
        return tables


@dataclass(frozen=True)
class Borrowed:
    """A relation that is not prepared, in the engine's memory for one snapshot; see `Readable`."""

    number: int
    columns: tuple[Column, ...]

    @property
    def table(self) -> str:
        return f"memory.main.{quote(f'_lockstep_borrowed_{self.number}')}"

    @property
    def cast(self) -> str:
        types = [duckdb_name(column.type) for column in self.columns]
        return ", ".join(f"CAST(c{i} AS {type_}) AS c{i}" for i, type_ in enumerate(types))

    def origin(self, alias: str) -> str:
        return f"{self.table} AS {alias}"

    def read(self, column: str, alias: str) -> str:
        return f"{alias}.c{next(i for i, c in enumerate(self.columns) if c.name == column)}"


def _plan(
    source: str, database: str, content: Content, state: SourceState, names: Sequence[str]
) -> list[Step]:
    wanted = {name: state.schema(name) for name in names}
    steps = [] if content.epoch else list(layout.create_base(database))
    broken = [kept for kept in content.relations if _drift(source, kept, state)]
    healthy = [kept for kept in content.relations if kept not in broken]
    for kept in broken:
        steps += layout.drop_relation(kept)
        if kept.name in state.shapes:
            wanted.setdefault(kept.name, state.schema(kept.name))
    if broken:
        steps += layout.new_epoch(healthy)
    number = max((kept.number for kept in content.relations), default=0)
    for name, schema in wanted.items():
        if name not in {kept.name for kept in healthy}:
            number += 1
            kept = Kept.of(source, number, schema, state.shapes[name])
            steps += layout.create_relation(kept, state.rows(name))
    return steps


def _drift(source: str, kept: Kept, state: SourceState) -> str | None:
    now = state.shapes.get(kept.name)
    problem = drift(kept.shape, now)
    if problem or now is None:
        return problem
    wanted = Kept.of(source, kept.number, state.schema(kept.name), now)
    if wanted.key != kept.key:
        return f"changed its key from ({', '.join(kept.key)}) to ({', '.join(wanted.key)})"
    for (name, _), before, stored in zip(kept.shape, kept.stored, wanted.stored, strict=True):
        if before != stored:
            return f"is shown with column {name!r} as {stored}, not {before},"
    return None


def _bounds(connection: duckdb.DuckDBPyConnection, source: str, content: Content) -> Bounds:
    row = one(connection, f"SELECT max(ordinal) FROM {CYCLES}")
    current = max(content.trimmed, row[0] or 0)
    return Bounds(source, content.epoch, content.trimmed, current)


def _trim(connection: duckdb.DuckDBPyConnection, source: str, content: Content, position: Position) -> int:
    """Delete the differences up to a position of this history; returns how far it is trimmed now."""
    if not content.epoch:
        return 0
    row = one(connection, f"SELECT mark FROM {CYCLES} WHERE ordinal = $1", [position.ordinal])
    if row is None:
        return content.trimmed
    try:
        _bounds(connection, source, content).check_mark(position, row[0])
    except PositionTrimmedError:
        # A position of another history: nothing of this one was acknowledged by it.
        return content.trimmed
    for kept in content.relations:
        connection.execute(f"DELETE FROM {kept.diff} WHERE ordinal <= $1", [position.ordinal])
    connection.execute(f"DELETE FROM {CYCLES} WHERE ordinal <= $1", [position.ordinal])
    connection.execute(f"UPDATE {META} SET trimmed = $1, mark = $2", [position.ordinal, row[0]])
    return position.ordinal
