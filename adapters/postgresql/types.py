"""PostgreSQL's types as Arrow types: how a column is read, and how its text form becomes values.

A value must have one Arrow type, and one value, wherever it shows up: in the catalog, in a fetch (binary, by
ADBC), in changes (text, from the log). So each type names both ways, and both end in the same check.

What Arrow has no type for is shown as PostgreSQL's own text form: arrays, ranges, enums, uuid, json,
intervals, network addresses, composites. Text compares by its bytes, also where PostgreSQL takes two forms
for equal (intervals, numeric arrays). What has no lasting text form is not supported: `money` depends on
the locale, `regclass` and its like on names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from algebra.errors import DataError

FIRST_DAY, LAST_DAY = -719162, 2932896
"""0001-01-01 and 9999-12-31 in days since 1970: what every engine and every client can hold."""
_DAY = 86_400_000_000

UUID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


@dataclass(frozen=True)
class ColumnType:
    """How one declared type is shown.

    `arrow`: the type shown. `read`: the SQL expression that a fetch reads, `{0}` being the column. `parse`:
    from the type's text form to Arrow. `key`: the SQL element type of an array of key values that a column
    is compared with. `native`: whether the column itself is compared with those, and not its cast; an index
    then helps. `is_text`: whether it compares as text. `key_pattern`: only key values that look so can
    match.
    """

    arrow: pa.DataType
    parse: Callable[[pa.Array], pa.Array]
    key: str
    read: str = "{0}"
    native: bool = True
    is_text: bool = False
    key_pattern: str | None = None

    def shown(self, column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
        """Values as a fetch brought them, as the type shown; DataError for one that does not fit."""
        try:
            if column.type != self.arrow:
                # ADBC marks some columns with extension types over their storage.
                column = _storage(column)
                column = column.cast(self.arrow)
        except pa.ArrowInvalid as error:
            told = f"column {name} has a value that is no {self.arrow}"
            raise DataError(f"column {name}: {error}", told=told) from error
        check(column, name)
        return column

    def parsed(self, column: pa.Array, name: str) -> pa.Array:
        """Values in their text form, as the type shown; DataError for one that does not fit."""
        try:
            values = self.parse(column)
        except (pa.ArrowInvalid, ValueError) as error:
            told = f"column {name} has a value that is no {self.arrow}"
            raise DataError(f"{told}: {error}", told=told) from error
        check(values, name)
        return values


def check(column: pa.Array | pa.ChunkedArray, name: str) -> None:
    """Raise DataError for infinity and for years outside of 1 to 9999."""
    type_ = column.type
    if not (pa.types.is_date32(type_) or pa.types.is_timestamp(type_)) or not len(column):
        return
    unit = 1 if pa.types.is_date32(type_) else _DAY
    numbers = column.cast(pa.int32() if unit == 1 else pa.int64())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is None:
        return
    if bounds["min"] < FIRST_DAY * unit or bounds["max"] >= (LAST_DAY + 1) * unit:
        raise DataError(f"column {name} has a date that is infinite or outside of the years 1 to 9999")


def column_type(name: str, kind: str, category: str, modifier: int, numeric_scale: int) -> ColumnType | None:
    """How a type is shown, or None if it is not supported.

    `name`, `kind` and `category` are pg_type's typname, typtype and typcategory, domains already resolved to
    what they are over; `modifier` is the column's atttypmod.
    """
    if kind == "b" and name in _PLAIN:
        return _PLAIN[name]
    if kind == "b" and name == "numeric":
        return _numeric(modifier, numeric_scale)
    if kind == "e":
        return _AS_TEXT
    if kind in "rmc" or (kind == "b" and category in "ABDINPSTUVGE" and name not in _REFUSED):
        return _AS_TEXT
    return None


def _numeric(modifier: int, numeric_scale: int) -> ColumnType | None:
    precision, scale = 38, numeric_scale
    if modifier >= 4:
        precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
        scale = scale - 2048 if scale >= 1024 else scale  # negative scales are possible
        precision, scale = max(precision, scale, precision - scale), max(scale, 0)
    if precision > 38:
        return None
    arrow = pa.decimal128(precision, scale)
    return ColumnType(arrow, lambda column: column.cast(arrow), "numeric", read="{0}::text")


def _storage(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        return column.cast(column.type.storage_type)
    return column


def _cast_to(arrow: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda column: column.cast(arrow)


def _booleans(column: pa.Array) -> pa.Array:
    # `t` from an output function, `true` from a cast to text.
    return pc.starts_with(column, "t")


def _bytes(column: pa.Array) -> pa.Array:
    """`\\x` and two hexadecimal digits per byte, decoded for all values at once."""
    column = column.cast(pa.binary())
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4).astype(
        np.int64
    )
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    if not len(column):
        return column
    lengths = np.diff(offsets)
    keep = np.ones(int(offsets[-1] - offsets[0]), bool)
    starts = (offsets[:-1] - offsets[0])[lengths > 0]
    keep[starts] = keep[starts + 1] = False
    digits = data[offsets[0] : offsets[-1]][keep].tobytes()
    raw = bytes.fromhex(digits.decode("ascii"))
    ends = np.zeros(len(column) + 1, np.int32)
    np.cumsum(np.maximum(lengths - 2, 0) // 2, out=ends[1:])
    valid = column.is_valid()
    validity = pa.array(valid).buffers()[1] if column.null_count else None
    return pa.Array.from_buffers(pa.binary(), len(column), [validity, pa.py_buffer(ends), pa.py_buffer(raw)])


def _times(column: pa.Array) -> pa.Array:
    day = pc.binary_join_element_wise("1970-01-01", column, " ")
    moments = day.cast(pa.timestamp("us")).cast(pa.int64())
    return moments.cast(pa.time64("us"))


def _same(column: pa.Array) -> pa.Array:
    return column


def _trimmed(column: pa.Array) -> pa.Array:
    """Blanks at the end of `char(n)` mean nothing; PostgreSQL's cast to text drops them, too."""
    return pc.utf8_rtrim(column, characters=" ")


_AS_TEXT = ColumnType(pa.string(), _same, "text", read="{0}::text", native=False, is_text=True)

_AS_OUTPUT = replace(_AS_TEXT, read="CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END")
"""Of some types, a cast to text is another text than their output, which the log has."""

_PLAIN: dict[str, ColumnType] = {
    "bool": ColumnType(pa.bool_(), _booleans, "bool"),
    "int2": ColumnType(pa.int16(), _cast_to(pa.int16()), "int8"),
    "int4": ColumnType(pa.int32(), _cast_to(pa.int32()), "int8"),
    "int8": ColumnType(pa.int64(), _cast_to(pa.int64()), "int8"),
    "oid": ColumnType(pa.int64(), _cast_to(pa.int64()), "int8", read="{0}::int8", native=False),
    "float4": ColumnType(pa.float32(), _cast_to(pa.float32()), "float8"),
    "float8": ColumnType(pa.float64(), _cast_to(pa.float64()), "float8"),
    "text": ColumnType(pa.string(), _same, "text", is_text=True),
    "varchar": ColumnType(pa.string(), _same, "text", read="{0}::text", is_text=True),
    "bpchar": ColumnType(pa.string(), _trimmed, "text", read="{0}::text", native=False, is_text=True),
    "bytea": ColumnType(pa.binary(), _bytes, "bytea"),
    "date": ColumnType(pa.date32(), _cast_to(pa.date32()), "date"),
    "timestamp": ColumnType(pa.timestamp("us"), _cast_to(pa.timestamp("us")), "timestamp"),
    "timestamptz": ColumnType(pa.timestamp("us", "UTC"), _cast_to(pa.timestamp("us", "UTC")), "timestamptz"),
    "time": ColumnType(pa.time64("us"), _times, "time"),
    "inet": _AS_OUTPUT,
    "cidr": _AS_OUTPUT,
    "xml": _AS_OUTPUT,
    "char": _AS_OUTPUT,
    "uuid": ColumnType(pa.string(), _same, "uuid", read="{0}::text", key_pattern=UUID),
}

_REFUSED = {
    "money", "regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper",
    "regoperator", "regproc", "regprocedure", "regrole", "regtype", "xid", "cid", "tid", "xid8",
    "pg_node_tree", "aclitem", "refcursor", "pg_ddl_command",
}  # fmt: skip
