"""DuckDB's declared types as Arrow types, with the expression that reads a column as exactly that type.

A value must have one Arrow type wherever it shows up: catalog, fetch, changes. DuckDB's own export is
nearly that; what it would hand over as a dictionary (ENUM), lossily (TIMETZ) or wrapped around (HUGEINT
beyond 38 digits) is cast in SQL instead, where a value that does not fit is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from adapters.shadow.types import PLAIN

VARCHAR = "VARCHAR"


@dataclass(frozen=True)
class ColumnType:
    """How one declared type is shown (`arrow`), read (`cast`, a DuckDB type or None for as it is) and
    logged (`stored`, the DuckDB type of the log's column)."""

    arrow: pa.DataType
    stored: str
    cast: str | None = None

    def read(self, expression: str, *, collated: bool = False) -> str:
        """The expression with values of the shown type; text compares by its bytes."""
        if self.cast is not None:
            return f"CAST({expression} AS {self.cast})"
        if collated and self.arrow == pa.string():
            return f'({expression} COLLATE "binary")'
        return expression


_AS_TEXT = {"UUID", "JSON", "BIT", "BIGNUM", "TIME WITH TIME ZONE"}
_AS_DECIMAL = {"HUGEINT", "UHUGEINT"}
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")


def column_type(declared: str) -> ColumnType | None:
    """How a declared type is shown, or None if it is not supported (nested types, intervals, ...)."""
    if declared in PLAIN:
        return ColumnType(PLAIN[declared], declared)
    if declared in _AS_TEXT:
        return ColumnType(pa.string(), declared, VARCHAR)
    if declared in _AS_DECIMAL:
        return ColumnType(pa.decimal128(38, 0), declared, "DECIMAL(38,0)")
    if declared.startswith("ENUM(") and declared.endswith(")"):
        # Logged as text: a log column of the enum type would tie the owner's type to our table.
        return ColumnType(pa.string(), VARCHAR, VARCHAR)
    decimal = _DECIMAL.fullmatch(declared)
    if decimal:
        return ColumnType(pa.decimal128(int(decimal[1]), int(decimal[2])), declared)
    return None
