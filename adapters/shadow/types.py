"""Arrow types by the DuckDB types whose values they are."""

from __future__ import annotations

import re

import pyarrow as pa

PLAIN: dict[str, pa.DataType] = {
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
"""Types without arguments, by DuckDB's name."""

FLOATS = frozenset({"FLOAT", "DOUBLE"})
"""DuckDB's types in which 0.0 and -0.0 are two values that compare as equal."""

_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_NAMES = {arrow: name for name, arrow in PLAIN.items()}


def duckdb_name(arrow: pa.DataType) -> str | None:
    """The DuckDB type whose values are this Arrow type, or None if there is none.

    >>> duckdb_name(pa.decimal128(10, 2))
    'DECIMAL(10,2)'
    """
    if pa.types.is_decimal128(arrow):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    return _NAMES.get(arrow)


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a DuckDB type as `duckdb_name` spells it.

    >>> arrow_type("DECIMAL(10,2)")
    Decimal128Type(decimal128(10, 2))
    """
    decimal = _DECIMAL.fullmatch(name)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else PLAIN[name]
