"""DuckDB's declared types as Arrow types, with the expression that reads a column as exactly that type.

A value must have one Arrow type wherever it shows up: catalog, fetch, changes. DuckDB's own export is
nearly that; what it would hand over as a dictionary (ENUM), lossily (TIMETZ) or wrapped around (HUGEINT
beyond 38 digits) is cast in SQL instead, where a value that does not fit is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

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


_PLAIN: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIME_NS": pa.time64("ns"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP_S": pa.timestamp("s"),
    "TIMESTAMP_MS": pa.timestamp("ms"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
}
_AS_TEXT = {"UUID", "JSON", "BIT", "BIGNUM", "TIME WITH TIME ZONE"}
_AS_DECIMAL = {"HUGEINT", "UHUGEINT"}
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
_DUCKDB_NAMES = {arrow: name for name, arrow in _PLAIN.items()}


def column_type(declared: str) -> ColumnType | None:
    """How a declared type is shown, or None if it is not supported (nested types, intervals, ...)."""
    if declared in _PLAIN:
        return ColumnType(_PLAIN[declared], declared)
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


def duckdb_name(arrow: pa.DataType) -> str | None:
    """The DuckDB type whose values are this Arrow type, or None if there is none."""
    if pa.types.is_decimal128(arrow):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    return _DUCKDB_NAMES.get(arrow)
