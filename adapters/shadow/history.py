"""What histories of captured changes share: their marks, when they are trimmed, and how relations drift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from adapters.spi import COUNT, TRANSACTION
from algebra.errors import ConfigurationError, PositionTrimmedError, SchemaChangedError
from algebra.position import ORIGIN, Position

Shape = tuple[tuple[str, str], ...]
"""What must not change while changes are captured: column names and their types in the source's own words."""


@dataclass(frozen=True)
class Bounds:
    """The stretch of history that can be read: after `trimmed`, up to `current`, within one `epoch`.

    A position's token is `epoch:mark`, where the mark tells the entry at that ordinal from any other that
    could ever have that number. So a history that was restored from a backup is noticed even after it has
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


class TrimPolicy:
    """Decides when acknowledged history is worth a write: enough entries, or enough time since the last.

    `trim`: whether at all. `entries`, `seconds`: 0 means at once.
    """

    def __init__(
        self, clock: Callable[[], float], *, trim: bool = True, entries: int = 10_000, seconds: float = 60.0
    ) -> None:
        self._clock = clock
        self._trim = trim
        self._entries = entries
        self._seconds = seconds
        self._trimmed = 0
        self._tried_at = clock()

    def is_due(self, position: Position) -> bool:
        """Whether to try now; asking counts as a try, so that a held file is not tried again at once.

        Positions that go back are of another history, whose numbers began again: none of it is trimmed yet.
        """
        if position.ordinal < self._trimmed:
            self._trimmed = 0
        entries = position.ordinal - self._trimmed
        if not self._trim or entries <= 0:
            return False
        now = self._clock()
        if entries < self._entries and now - self._tried_at < self._seconds:
            return False
        self._tried_at = now
        return True

    def done(self, trimmed: int) -> None:
        """The history is trimmed up to here now."""
        self._trimmed = trimmed


def change_schema(shown: pa.Schema) -> pa.Schema:
    """The schema of a relation's table in `Changes`."""
    fields = [pa.field(column.name, column.type) for column in shown]
    return pa.schema([*fields, pa.field(TRANSACTION, pa.int32()), pa.field(COUNT, pa.int64())])


def drift(prepared: Shape, now: Shape | None) -> str | None:
    """In words, how a relation differs from what was prepared; None if it does not.

    >>> drift((("id", "INTEGER"),), (("id", "BIGINT"),))
    "changed column 'id' from INTEGER to BIGINT"
    >>> drift((("a", "INTEGER"), ("b", "INTEGER")), (("b", "INTEGER"), ("a", "INTEGER")))
    'changed the order of its columns'
    """
    if now is None:
        return "was dropped"
    was, is_ = dict(prepared), dict(now)
    for name in was.keys() - is_.keys():
        return f"lost column {name!r}"
    for name in is_.keys() - was.keys():
        return f"got column {name!r}"
    for name, declared in is_.items():
        if was[name] != declared:
            return f"changed column {name!r} from {was[name]} to {declared}"
    # Rows are kept by the places of their columns.
    return None if list(was) == list(is_) else "changed the order of its columns"


def changed(source: str, relation: str, problem: str) -> SchemaChangedError:
    return SchemaChangedError(
        f"relation {source}.{relation} {problem} since capture was prepared; prepare again"
    )


def not_prepared(source: str) -> ConfigurationError:
    return ConfigurationError(f"source {source!r} has no capture installed; prepare it first")
