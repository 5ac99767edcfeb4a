"""What a writer is asked to do, as data: the kit's model and the source's writer read the same list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = tuple[Any, ...]
"""Values in the table's column order, as plain Python values."""


@dataclass(frozen=True)
class Insert:
    """Add these rows, with one statement where the source can."""

    relation: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Delete:
    """Remove one copy of this row; other copies stay."""

    relation: str
    row: Row


@dataclass(frozen=True)
class Update:
    """Change one copy of this row in place."""

    relation: str
    before: Row
    after: Row


@dataclass(frozen=True)
class Overwrite:
    """Write this row over the one with the same key by the statement the source has for that.

    `before` is the row that is there, or None. REPLACE, ON CONFLICT DO UPDATE, MERGE: captures miss them.
    """

    relation: str
    before: Row | None
    after: Row


@dataclass(frozen=True)
class Mark:
    """Write this row into the marker table: the transaction is a part of a global one."""

    id: str | None
    participants: str | None


@dataclass(frozen=True)
class Fill:
    """Add the rows `(i, i)` for `count` numbers from `first` on, with one statement where the source can.

    The table has two integer columns.
    """

    relation: str
    first: int
    count: int

    @property
    def insert(self) -> Insert:
        """The same, row by row."""
        return Insert(self.relation, tuple((i, i) for i in range(self.first, self.first + self.count)))


@dataclass(frozen=True)
class Raise:
    """Add `by` to the second of two integer columns in every row, with one statement."""

    relation: str
    by: int


@dataclass(frozen=True)
class Empty:
    """Remove every row, with one statement."""

    relation: str


@dataclass(frozen=True)
class Savepoint:
    """A point of the transaction to which a part of it can be rolled back."""

    name: str


@dataclass(frozen=True)
class RollbackTo:
    """Undo what this transaction did since the savepoint, which stays."""

    name: str


Operation = Insert | Delete | Update | Overwrite | Mark | Fill | Raise | Empty | Savepoint | RollbackTo
RowOperation = Insert | Delete | Update | Overwrite | Mark | Fill | Raise | Empty
"""What is left when savepoints are resolved."""


@dataclass(frozen=True)
class Transaction:
    """Operations that take effect together, or, when it does not commit, not at all."""

    operations: tuple[Operation, ...]
    commits: bool = True


def effective(operations: Sequence[Operation]) -> list[RowOperation]:
    """The operations that count at commit: savepoints resolved, what was rolled back left out.

    For writers that collect a transaction and carry it out at its commit.

    >>> effective([Empty("a"), Savepoint("s"), Empty("b"), RollbackTo("s"), Empty("c")])
    [Empty(relation='a'), Empty(relation='c')]
    """
    kept: list[RowOperation] = []
    savepoints: dict[str, int] = {}
    for operation in operations:
        match operation:
            case Savepoint(name):
                savepoints[name] = len(kept)
            case RollbackTo(name):
                del kept[savepoints[name] :]
            case _:
                kept.append(operation)
    return kept
