"""What a snapshot shows, told by transaction ids: `pg_current_snapshot()` in Python."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Visibility:
    """A cut through the history: every transaction below `xmax` that is not in `running` is over.

    >>> cut = Visibility.of("10:14:11,12")
    >>> [cut.shows(xid) for xid in (9, 10, 11, 13, 14)]
    [True, True, False, True, False]
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Visibility:
        """From PostgreSQL's text form, `xmin:xmax:running,…`, whatever follows after another colon."""
        xmin, xmax, running, *_ = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, running.split(","))) if running else frozenset())

    def shows(self, xid: int) -> bool:
        """Whether the transaction, if it committed, is shown."""
        return xid < self.xmax and xid not in self.running

    def whole(self, xid: int) -> int:
        """The 64-bit id of a recent transaction, of which the log has the lower 32 bits.

        >>> Visibility(0, (1 << 32) + 5, frozenset()).whole(0xFFFFFFFF) == 0xFFFFFFFF
        True
        """
        distance = (xid - self.xmax + (1 << 31)) % (1 << 32) - (1 << 31)
        return self.xmax + distance
