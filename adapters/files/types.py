"""Types of files: by the names that SQL and Arrow have for them, and from text to value.

Text becomes a value exactly or not at all: no rounding, no guessed formats. What pyarrow's own readers do
not convert (binary values everywhere, dates in JSON) is read as text and converted here.
"""

from __future__ import annotations

import functools
import re

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

_NAMES: dict[str, pa.DataType] = {
    **dict.fromkeys(("boolean", "bool", "logical"), pa.bool_()),
    **dict.fromkeys(("tinyint", "int8"), pa.int8()),
    **dict.fromkeys(("smallint", "int16"), pa.int16()),
    **dict.fromkeys(("integer", "int", "int32"), pa.int32()),
    **dict.fromkeys(("bigint", "int64", "long"), pa.int64()),
    **dict.fromkeys(("utinyint", "uint8"), pa.uint8()),
    **dict.fromkeys(("usmallint", "uint16"), pa.uint16()),
    **dict.fromkeys(("uinteger", "uint32"), pa.uint32()),
    **dict.fromkeys(("ubigint", "uint64"), pa.uint64()),
    **dict.fromkeys(("real", "float32"), pa.float32()),
    **dict.fromkeys(("double", "double precision", "float", "float64"), pa.float64()),
    **dict.fromkeys(("varchar", "text", "string", "char", "utf8"), pa.string()),
    **dict.fromkeys(("blob", "binary", "bytea", "varbinary"), pa.binary()),
    **dict.fromkeys(("date", "date32", "date32[day]"), pa.date32()),
    **dict.fromkeys(("time", "time64", "time64[us]"), pa.time64("us")),
    **dict.fromkeys(("timestamp", "datetime", "timestamp[us]"), pa.timestamp("us")),
    **dict.fromkeys(
        ("timestamptz", "timestamp with time zone", "timestamp[us, tz=utc]"), pa.timestamp("us", "UTC")
    ),
}
_DECIMAL = re.compile(r"(?:decimal|numeric|decimal128)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_LENGTH = re.compile(r"(varchar|char|varbinary|binary)\s*\(\s*\d+\s*\)")


_HEX = "([0-9a-fA-F]{2})*"
_TIME = r"\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?"


def named_type(name: str) -> pa.DataType | None:
    """The Arrow type of a declared name, or None if there is none.

    >>> named_type("Numeric(10, 2)"), named_type("TIMESTAMPTZ"), named_type("point")
    (Decimal128Type(decimal128(10, 2)), TimestampType(timestamp[us, tz=UTC]), None)
    """
    lowered = " ".join(name.lower().split())
    decimal = _DECIMAL.fullmatch(lowered)
    if decimal:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        return pa.decimal128(precision, scale) if 1 <= precision <= 38 and scale <= precision else None
    length = _LENGTH.fullmatch(lowered)
    return _NAMES.get(length[1] if length else lowered)


def as_text_first(type_: pa.DataType, *, dates: bool) -> bool:
    """Whether a column of this type is to be read as text and converted by `from_text`."""
    return pa.types.is_binary(type_) or (dates and pa.types.is_temporal(type_))


def from_text(values: pa.ChunkedArray | pa.Array, type_: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """Texts as values of the type; ArrowInvalid if one is none. Binary values are written in hexadecimal."""
    if pa.types.is_binary(type_):
        return _converted(values, _HEX, "unhex(t)", "hexadecimal").cast(type_)
    if pa.types.is_time(type_):
        return _converted(values, _TIME, "TRY_CAST(t AS TIME)", "a time").cast(type_)
    return values.cast(type_)


def _converted(values: pa.ChunkedArray | pa.Array, form: str, expression: str, what: str) -> pa.ChunkedArray:
    """What DuckDB makes of texts that have this form; ArrowInvalid for others."""
    with scratch() as connection:
        connection.register("texts", pa.table({"t": values}))
        found: pa.ChunkedArray = connection.sql(
            f"SELECT CASE WHEN regexp_full_match(t, '{form}') THEN {expression} END AS v FROM texts"
        ).to_arrow_table()["v"]
    wrong = pc.and_(pc.is_null(found), pc.is_valid(values))
    first = pc.index(wrong, pa.scalar(True)).as_py()
    if first >= 0:
        raise pa.ArrowInvalid(f"{values[first].as_py()[:80]!r} is not {what}")
    return found


def scratch() -> duckdb.DuckDBPyConnection:
    """A connection to an engine in memory, for functions on values that pyarrow has not; close it."""
    return _engine().cursor()


@functools.cache
def _engine() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"autoinstall_known_extensions": False, "threads": 1})
