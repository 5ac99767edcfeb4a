"""Where a run of changes ends that must not have too many rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def run_length(counts: Iterable[tuple[int, int]], entries: int, most_rows: int) -> int:
    """How many of the first entries make a run of at most `most_rows` rows; at least one of them.

    `counts` holds (index of an entry, rows), in any order and several times for one entry; an entry counts as
    a row at least. Who counts each relation's rows in the order of entries may stop after `most_rows` + 1
    of them: the run ends before what was not counted.

    >>> run_length([(0, 2), (1, 1), (1, 1), (2, 5)], 3, most_rows=4)
    2
    >>> run_length([(0, 9)], 3, most_rows=4)
    1
    """
    rows = np.zeros(entries, np.int64)
    for index, count in counts:
        rows[index] += count
    fitting = np.searchsorted(np.cumsum(np.maximum(rows, 1)), most_rows, side="right")
    return max(1, int(fitting))
