"""Arrow types by their SQL names, in the dialect views are written in."""

from __future__ import annotations

import pyarrow as pa

from algebra.errors import ViewDefinitionError

_SIMPLE = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
}


def duckdb_type(type_: pa.DataType) -> str:
    """The type's name in DuckDB's SQL; ViewDefinitionError for a type Lockstep does not carry."""
    if type_ in _SIMPLE:
        return _SIMPLE[type_]
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        return "TIMESTAMPTZ" if type_.tz else "TIMESTAMP"
    if pa.types.is_decimal128(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    raise ViewDefinitionError(f"columns of type {type_} are not supported in a view")


def family(type_: pa.DataType) -> str:
    """Types of one family compare by value with `=` in every source and engine."""
    if pa.types.is_integer(type_):
        return "integer"
    if pa.types.is_floating(type_):
        return "float"
    if pa.types.is_decimal(type_):
        return "decimal"
    if pa.types.is_timestamp(type_):
        return "timestamp with time zone" if type_.tz else "timestamp"
    return {pa.string(): "text", pa.binary(): "binary", pa.bool_(): "boolean", pa.date32(): "date"}.get(
        type_, str(type_)
    )
