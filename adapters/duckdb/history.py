"""What both captures share: the marks of a history, and what each capture has to offer to the adapter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import duckdb
import pyarrow as pa

from adapters.duckdb.catalog import SourceRelation, SourceTables
from adapters.duckdb.options import Options
from adapters.duckdb.watch import Signature
from adapters.spi import COUNT, TRANSACTION, CaptureProfile, Changes
from algebra.errors import PositionTrimmedError, SchemaChangedError
from algebra.position import ORIGIN, Position
from algebra.schema import RelationSchema

Shape = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Bounds:
    """The stretch of history that can be read: after `trimmed`, up to `current`, within one `epoch`.

    A position's token is `epoch:mark`, where the mark tells the entry at that ordinal from any other that
    could ever have that number. So a source that was restored from a backup is noticed even after it has
    been written further than where it was before.
    """

    source: str
    epoch: str
    trimmed: int
    current: int

    def token(self, mark: str) -> str:
        return f"{self.epoch}:{mark}"

    def check(self, after: Position) -> None:
        """Raise PositionTrimmedError unless the history after that position is all here."""
        if after.ordinal < self.trimmed:
            raise PositionTrimmedError(
                f"source {self.source!r}: the history after position {after} was trimmed up to {self.trimmed}"
            )
        if after.ordinal == ORIGIN.ordinal and not after.token:
            return
        if after.token.partition(":")[0] != self.epoch or after.ordinal > self.current:
            raise self.foreign(after)

    def check_mark(self, after: Position, mark: str) -> None:
        """Raise PositionTrimmedError unless the entry at that position is the one it was made from."""
        if after.token and after.token != self.token(mark):
            raise self.foreign(after)

    def foreign(self, after: Position) -> PositionTrimmedError:
        return PositionTrimmedError(
            f"source {self.source!r}: position {after} is not of this history "
            "(capture was installed anew, or the file was replaced)"
        )


class History(ABC):
    """The captured history as one snapshot shows it."""

    @property
    @abstractmethod
    def position(self) -> Position:
        """The position of the state that the snapshot shows."""

    @abstractmethod
    def changes(self, after: Position) -> Changes:
        """All entries after that position."""


class Capture(ABC):
    """A way to learn what changed; the adapter owns the file, the capture what it keeps about it."""

    profile: ClassVar[CaptureProfile]
    """What this capture can do, and what it asks of the source."""

    @abstractmethod
    def prepare(self, relations: Sequence[str], *, dry_run: bool) -> list[str]:
        """As in the contract."""

    @abstractmethod
    def remove(self, *, dry_run: bool) -> list[str]:
        """As in the contract."""

    @abstractmethod
    def history(
        self, connection: duckdb.DuckDBPyConnection, tables: SourceTables, signature: Signature | None
    ) -> AbstractContextManager[History]:
        """The history that belongs to the file as it is attached; `signature` is that of exactly this
        state, or None if it is not known."""

    @abstractmethod
    def acknowledge(self, position: Position) -> None:
        """As in the contract."""


class TrimPolicy:
    """Decides when acknowledged history is worth a write: enough entries, or enough time since the last."""

    def __init__(self, options: Options, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        self._trimmed = 0
        self._tried_at = clock()

    def is_due(self, position: Position) -> bool:
        """Whether to try now; asking counts as a try, so that a held file is not tried again at once."""
        entries = position.ordinal - self._trimmed
        if not self._options.trim or entries <= 0:
            return False
        now = self._clock()
        if entries < self._options.trim_entries and now - self._tried_at < self._options.trim_seconds:
            return False
        self._tried_at = now
        return True

    def done(self, trimmed: int) -> None:
        """The history is trimmed up to here now."""
        self._trimmed = trimmed


def change_schema(shown: RelationSchema) -> pa.Schema:
    """The schema of a relation's table in `Changes`."""
    fields = [pa.field(column.name, column.type) for column in shown.columns]
    return pa.schema([*fields, pa.field(TRANSACTION, pa.int32()), pa.field(COUNT, pa.int64())])


def check_shapes(source: str, prepared: Mapping[str, Shape], tables: SourceTables) -> None:
    """Raise SchemaChangedError, naming the relation, if one is no longer as it was prepared."""
    for name, shape in prepared.items():
        problem = drift(shape, tables.relations.get(name))
        if problem:
            raise changed(source, name, problem)


def changed(source: str, relation: str, problem: str) -> SchemaChangedError:
    return SchemaChangedError(
        f"relation {source}.{relation} {problem} since capture was prepared; prepare again"
    )


def drift(prepared: Shape, relation: SourceRelation | None) -> str | None:
    """In words, how a relation differs from what was prepared; None if it does not."""
    if relation is None:
        return "was dropped"
    before, now = dict(prepared), dict(relation.shape)
    for name in before.keys() - now.keys():
        return f"lost column {name!r}"
    for name in now.keys() - before.keys():
        return f"got column {name!r}"
    for name, declared in now.items():
        if before[name] != declared:
            return f"changed column {name!r} from {before[name]} to {declared}"
    return None
