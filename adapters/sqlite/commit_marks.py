"""Where transactions end in the change log, as far as it is known.

The change log is a row of numbers 1, 2, 3, ...; a transaction is an interval of it. The write-ahead log
tells where intervals end, except for stretches that were written while nobody followed it. This module
keeps the known ends and answers, for any stretch, into which entries it falls and which of them may be
several transactions in one. It may say "several" of what was one; it never splits a transaction.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from adapters.sqlite.wal import UNKNOWN


@dataclass(frozen=True)
class Entries:
    """A stretch of the change log as consecutive entries: where each ends, and which are batched."""

    ends: tuple[int, ...]
    batched: frozenset[int]


class CommitMarks:
    """Known ends of transactions, in ascending order."""

    def __init__(self) -> None:
        self.clear()

    @property
    def last(self) -> int:
        """The largest known end, or -1."""
        return self._ends[-1] if self._ends else -1

    def clear(self) -> None:
        """Know nothing."""
        self._ends = array("q")
        self._batched: set[int] = set()
        self._gap = True
        self._in_doubt = False
        self._confirmed = -1

    def skip(self) -> None:
        """From here on commits may have passed unseen: the next one's start is not known.

        Nor is it known of ends beyond the last snapshot whether they still count.
        """
        del self._ends[bisect_right(self._ends, self._confirmed) :]
        self._gap = True

    def lose(self) -> None:
        """Know nothing: all this is of another history, but for commits beyond the next snapshot, if any."""
        self.clear()
        self._in_doubt = True

    def add(self, last_rows: Iterable[int]) -> None:
        """Note what each further commit left as the last row of the change log.

        Row 0 exists only to be the single row of a new change log: its commit begins a new history.
        A row that is not beyond the last one comes from a commit that appended nothing. UNKNOWN says that
        the pages did not fit together, or were of two histories, so that what they said since the last
        snapshot is not relied on.
        """
        for row in last_rows:
            if row == 0:
                self.clear()
                self._ends, self._gap, self._confirmed = array("q", [0]), False, 0
            elif row == UNKNOWN:
                self.skip()
                self._in_doubt = True
            elif row > self.last:
                self._ends.append(row)
                if self._gap:
                    self._batched.add(row)
                self._gap = self._in_doubt = False

    def confirm(self, row: int) -> None:
        """A snapshot ends at this row, after all commits it shows were polled: a transaction ends here.

        If no commit said so, it lies in an unseen stretch, and whatever comes next starts right here;
        unless one of the polled commits is unknown, for that one may lie beyond the snapshot.
        """
        if row > self.last:
            self._ends.append(row)
            self._batched.add(row)
            self._gap = self._in_doubt
        self._confirmed = row

    def forget(self, before: int) -> None:
        """Drop ends that lie before the last one at or below this row."""
        keep = max(0, bisect_right(self._ends, before) - 1)
        self._batched.difference_update(self._ends[:keep])
        del self._ends[:keep]

    def entries(self, after: int, upto: int, most_rows: int | None = None) -> Entries:
        """The entries of the rows after `after` up to `upto`, both ends of transactions themselves.

        With `most_rows`, only the first of them: those that have so many rows together, at least one.
        """
        if after >= upto:
            return Entries((), frozenset())
        first, beyond = bisect_right(self._ends, after), bisect_right(self._ends, upto)
        if most_rows is not None and first < beyond:
            last = max(first + 1, bisect_right(self._ends, after + most_rows, first, beyond))
            if upto > after + most_rows and self._ends[last - 1] < upto:
                beyond, upto = last, self._ends[last - 1]
        ends = list(self._ends[first:beyond])
        batched = {index for index, end in enumerate(ends) if end in self._batched}
        if ends and (first == 0 or self._ends[first - 1] != after):
            batched.add(0)
        if not ends or ends[-1] < upto:
            batched.add(len(ends))
            ends.append(upto)
        return Entries(tuple(ends), frozenset(batched))
