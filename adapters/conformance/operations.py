"""What a writer is asked to do, as data: the kit's model and the source's writer read the same list."""

from __future__ import annotations

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


Operation = Insert | Delete | Update | Overwrite | Mark


@dataclass(frozen=True)
class Transaction:
    """Operations that take effect together, or, when it does not commit, not at all."""

    operations: tuple[Operation, ...]
    commits: bool = True
