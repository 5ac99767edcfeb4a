"""Rows for which a predicate cannot be decided: two decimals of which one does not fit the other's type.

The engine's words about them repeat a value, and it does not know what it works for. To whoever keeps the
local view it is an error in the source's data: that local view is lost, and others go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from algebra.errors import DataError


@contextmanager
def deciding(view: str) -> Iterator[None]:
    """Work on the rows of a local view: DataError if its predicates cannot be decided for one of them."""
    try:
        yield
    except (duckdb.ConversionException, duckdb.OutOfRangeException):
        raise DataError(f"local view {view!r}: its predicates cannot be decided for some row") from None
