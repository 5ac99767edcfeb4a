"""Positions: how far one source's history has been followed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering


@total_ordering
@dataclass(frozen=True)
class Position:
    """A mark of "all transactions up to here" in one source.

    `ordinal` orders positions of one source totally and never goes backwards. `token` is the adapter's
    own, opaque to everyone else: whatever it needs beyond the ordinal to resume (an epoch of the
    capture, a visibility snapshot). Two positions of one source with the same ordinal are the same place.

    >>> Position(3) < Position(4)
    True
    """

    ordinal: int
    token: str = ""

    def __lt__(self, other: Position) -> bool:
        return self.ordinal < other.ordinal

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and self.ordinal == other.ordinal

    def __hash__(self) -> int:
        return hash(self.ordinal)

    def __str__(self) -> str:
        return str(self.ordinal)


ORIGIN = Position(0)
"""Before the first transaction of any source."""
