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
    capture, a visibility snapshot). Two positions of one history with the same ordinal are the same place;
    a source that was restored and written further has another history, which `place` tells apart.

    >>> Position(3) < Position(4)
    True
    """

    ordinal: int
    token: str = ""

    @property
    def place(self) -> tuple[int, str]:
        """The ordinal and the token: what no position of another history has."""
        return self.ordinal, self.token

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
