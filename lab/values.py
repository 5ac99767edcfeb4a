"""The columns of scenarios: which types there are, which Python values these have, and both as text.

Numbers, text, true, false and null are written as such. Values of other types are written as quoted text,
which the column's type tells how to read: '1.50', '2024-02-29', '2024-02-29 12:00:00', '\\x00ff'.
"""

from __future__ import annotations

import datetime
import re
import struct
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

TYPES: Mapping[str, pa.DataType] = {
    "int": pa.int64(),
    "text": pa.string(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float": pa.float32(),
    "blob": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
"""The types of a scenario's columns, by the names its text gives them; further, decimal(p,s)."""

_NAMES = {type_: name for name, type_ in TYPES.items()}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_MAX_DIGITS = 38
_EXACT = Context(prec=_MAX_DIGITS)


def type_name(type_: pa.DataType) -> str:
    """The name of a type that `type_of` gives back."""
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    return _NAMES[type_]


def type_of(name: str) -> pa.DataType | None:
    """The type of that name, if there is one."""
    if name in TYPES:
        return TYPES[name]
    if found := _DECIMAL.fullmatch(name):
        precision, scale = int(found[1]), int(found[2])
        if 0 < precision <= _MAX_DIGITS and scale <= precision:
            return pa.decimal128(precision, scale)
    return None


def fits(value: Any, type_: pa.DataType) -> bool:
    """Whether a column of that type can hold exactly this value."""
    if value is None:
        return True
    if pa.types.is_boolean(type_):
        return isinstance(value, bool)
    if pa.types.is_integer(type_):
        return isinstance(value, int) and not isinstance(value, bool) and _in_range(value, type_)
    if pa.types.is_floating(type_):
        return isinstance(value, float) and (type_ != pa.float32() or _as_float(value) == value)
    if pa.types.is_decimal(type_):
        return isinstance(value, Decimal) and _scaled(value, type_) == value
    if pa.types.is_timestamp(type_):
        return isinstance(value, datetime.datetime) and (value.tzinfo is not None) == (type_.tz is not None)
    if pa.types.is_date(type_):
        return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    if pa.types.is_time(type_):
        return isinstance(value, datetime.time)
    return isinstance(value, bytes if pa.types.is_binary(type_) else str)


def _in_range(value: int, type_: pa.DataType) -> bool:
    if pa.types.is_unsigned_integer(type_):
        return bool(0 <= value < 1 << type_.bit_width)
    return bool(-(1 << type_.bit_width - 1) <= value < 1 << type_.bit_width - 1)


def _as_float(value: float) -> float:
    """The nearest float of 32 bits."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf")


def _scaled(value: Decimal, type_: pa.DataType) -> Decimal | None:
    """The value with the digits after the point that its type has; None if it has more."""
    try:
        scaled = value.quantize(Decimal(1).scaleb(-type_.scale), context=_EXACT)
    except InvalidOperation:
        return None
    return scaled if scaled == value and len(scaled.as_tuple().digits) <= type_.precision else None


def format_value(value: Any) -> str:
    """A value as scenarios and transcripts write it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    return "'" + text.replace("'", "''") + "'"


def read_value(written: Any, type_: pa.DataType) -> Any:
    """The value that a column of that type has where text says `written`; as it is if it cannot be read."""
    read = next((read for is_of, read in _READERS if is_of(type_)), None)
    if not isinstance(written, str) or read is None:
        return written
    try:
        value = read(written)
    except (ValueError, ArithmeticError):
        return written
    scaled = _scaled(value, type_) if isinstance(value, Decimal) else None
    return value if scaled is None else scaled


def _instant(text: str) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(text)
    return found.astimezone(datetime.UTC) if found.tzinfo else found


def _bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError("no bytes")
    return bytes.fromhex(text[2:])


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[str], Any]], ...] = (
    (pa.types.is_decimal, Decimal),
    (pa.types.is_date, datetime.date.fromisoformat),
    (pa.types.is_time, datetime.time.fromisoformat),
    (pa.types.is_timestamp, _instant),
    (pa.types.is_binary, _bytes),
)
