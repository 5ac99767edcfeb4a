"""Weight: how many rows a table counts as, wherever memory is bounded by a number of rows.

Rows are what operators can imagine, bytes are what memory holds. So a row counts as one as long as it is
small, and a large one as several.
"""

from __future__ import annotations

import pyarrow as pa

ROW_BYTES = 256
"""Up to so many bytes on average, rows count as one each."""


def weight(rows: pa.Table) -> int:
    """The table's rows, or how many of ROW_BYTES bytes have its size if they are larger.

    >>> weight(pa.table({"x": [1, 2, 3]}))
    3
    >>> weight(pa.table({"x": ["y" * 1024] * 3}))
    12
    """
    return max(int(rows.num_rows), int(rows.nbytes) // ROW_BYTES)
