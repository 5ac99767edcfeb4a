"""Row images of the binlog as Arrow columns.

The library decodes row by row into dictionaries of Python values; besides the time, what a value is gets lost
on the way (a zero date, an empty set and NULL look alike, YEAR 0000 becomes 1900, negative times come out
wrong). So the library reads the stream and the table maps, and the row images are taken apart here.

A row image is a bitmap of NULLs and then the values that are there, each in the format of its type. The
table map tells how wide each is: nearly all types have a fixed width, text and binary bring their length. One
short Python step per value notes where it lies; decoding is done once per relation, for all rows of all
transactions at once, by NumPy and Arrow. It is done in portions, since a binary array ends at 2 GiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pymysqlreplication.constants import FIELD_TYPE

from adapters.mariadb.catalog import SourceColumn
from adapters.mariadb.types import ColumnType, Kind, booleans
from adapters.mariadb.wire import slices
from algebra.errors import ConfigurationError

_FIXED = {
    FIELD_TYPE.TINY: 1,
    FIELD_TYPE.SHORT: 2,
    FIELD_TYPE.INT24: 3,
    FIELD_TYPE.LONG: 4,
    FIELD_TYPE.LONGLONG: 8,
    FIELD_TYPE.FLOAT: 4,
    FIELD_TYPE.DOUBLE: 8,
    FIELD_TYPE.YEAR: 1,
    FIELD_TYPE.DATE: 3,
    FIELD_TYPE.NEWDATE: 3,
}
_TIMES = {FIELD_TYPE.TIMESTAMP2: 4, FIELD_TYPE.DATETIME2: 5, FIELD_TYPE.TIME2: 3}
_DIGITS_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_DIGITS = 9
"""A DECIMAL is stored in groups of nine digits, four bytes each; what is left over takes fewer bytes."""

_CODECS = {
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "koi8r": "koi8-r",
}
PORTION_BYTES = 1 << 29
"""A byte of some character set takes three in UTF-8 at most."""
_PORTION_ROWS = 1 << 23
"""A BINARY has 255 bytes at most, and its zeros at the end are not in the image."""

_UTF8 = ("utf8mb4", "utf8mb3", "utf8", "ascii")
_LATIN1 = "latin1"


@dataclass(frozen=True)
class Field:
    """How one column lies in a row image: `width` bytes, or a length in `prefix` bytes and so many."""

    width: int
    prefix: int = 0
    scale: int = 0
    """Digits of fractional seconds."""


def field_of(column: Any) -> Field | None:
    """How a column of a table map lies in the image; None for a type that is not known here."""
    if column.type in _FIXED:
        return Field(_FIXED[column.type])
    if column.type in _TIMES:
        return Field(_TIMES[column.type] + (column.fsp + 1) // 2, scale=column.fsp)
    if column.type in (FIELD_TYPE.VARCHAR, FIELD_TYPE.STRING, FIELD_TYPE.VAR_STRING):
        return Field(0, prefix=2 if column.max_length > 255 else 1)
    if column.type == FIELD_TYPE.BLOB:
        return Field(0, prefix=column.length_size)
    if column.type == FIELD_TYPE.NEWDECIMAL:
        integral = column.precision - column.decimals
        groups = integral // _DIGITS + column.decimals // _DIGITS
        rest = _DIGITS_BYTES[integral % _DIGITS] + _DIGITS_BYTES[column.decimals % _DIGITS]
        return Field(4 * groups + rest)
    if column.type in (FIELD_TYPE.ENUM, FIELD_TYPE.SET):
        return Field(column.size)
    if column.type == FIELD_TYPE.BIT:
        return Field(column.bytes)
    return None


@dataclass
class Images:
    """The row images of one relation, noted as they come and decoded in the end."""

    fields: tuple[Field, ...]
    data: bytearray = field(default_factory=bytearray)
    begins: list[list[int]] = field(default_factory=list)
    lengths: list[list[int]] = field(default_factory=list)
    transactions: list[int] = field(default_factory=list)
    signs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begins = [[] for _ in self.fields]
        self.lengths = [[] for _ in self.fields]

    def add(self, body: bytes, transaction: int, signs: tuple[int, ...]) -> None:
        """Note the images of one rows event; `signs` says what the images of one row do, in order."""
        base, place, end = len(self.data), 0, len(body)
        self.data += body
        bitmap = (len(self.fields) + 7) // 8
        steps = [
            (1 << i, f.width, f.prefix, self.begins[i].append, self.lengths[i].append)
            for i, f in enumerate(self.fields)
        ]
        number = int.from_bytes
        count = 0
        while place < end:
            nulls = number(body[place : place + bitmap], "little")
            place += bitmap
            for bit, width, prefix, begin, length in steps:
                if nulls & bit:
                    begin(base + place)
                    length(-1)
                    continue
                if prefix:
                    width = number(body[place : place + prefix], "little")
                    place += prefix
                begin(base + place)
                length(width)
                place += width
            count += 1
        self.transactions += [transaction] * count
        self.signs += list(signs) * (count // len(signs))

    def column(self, place: int, column: SourceColumn) -> pa.Array | pa.ChunkedArray:
        """All values of one column, in order; ArrowInvalid for one that its type cannot hold."""
        begin = np.array(self.begins[place], np.int64)
        length = np.array(self.lengths[place], np.int64)
        null = length < 0
        length[null] = 0
        found = self.fields[place]
        data = bytes(self.data)
        type_ = column.shown
        if found.prefix:
            parts = [
                _strings(slices(data, begin[part], length[part], null[part]), type_)
                for part in _portions(begin, begin + length)
            ]
            return pa.chunked_array(parts, type_.arrow)
        raw = np.zeros((len(begin), found.width), np.uint8)
        there = ~null
        raw[there] = np.frombuffer(data, np.uint8)[begin[there][:, None] + np.arange(found.width)]
        values = _fixed(raw[there], found, type_)
        if not null.any():
            return values
        places = np.cumsum(there) - 1
        return values.take(pa.array(places, mask=null))


def check_decodable(source: str, relation: str, column: SourceColumn) -> None:
    """ConfigurationError if the binlog's form of this column cannot be decoded."""
    type_ = column.shown
    known = (*_UTF8, _LATIN1, *_CODECS)
    where = f"column {source}.{relation}.{column.name}"
    remedy = "use capture: trigger, or name the column in option `exclude`"
    if type_.kind is Kind.TEXT and type_.charset not in known:
        raise ConfigurationError(f"{where} has the character set {type_.charset}; {remedy}")
    if type_.kind is Kind.OPAQUE or column.compressed:
        raise ConfigurationError(f"{where} has type {column.declared}, which the binlog obscures; {remedy}")


def _portions(begin: np.ndarray, end: np.ndarray) -> Iterator[slice]:
    """Runs of values that fit one binary array each, and still do when they are decoded or padded."""
    first = 0
    while first < len(begin):
        after = int(np.searchsorted(end, begin[first] + PORTION_BYTES, side="right"))
        after = min(max(after, first + 1), first + _PORTION_ROWS)
        yield slice(first, after)
        first = after


def _strings(values: pa.Array, type_: ColumnType) -> pa.Array:
    if type_.kind is Kind.BINARY:
        return _padded(values, type_.width) if type_.width else values
    if type_.charset in _UTF8:
        return values.cast(pa.string())
    encoded = values.dictionary_encode()
    decode = _from_latin1 if type_.charset == _LATIN1 else _CODECS[type_.charset]
    texts = [
        decode(value) if callable(decode) else value.decode(decode)
        for value in encoded.dictionary.to_pylist()
    ]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(texts, pa.string())).cast(pa.string())


def _from_latin1(value: bytes) -> str:
    """MariaDB's latin1 is Windows' code page 1252, with its five unused bytes as control characters."""
    try:
        return value.decode("cp1252")
    except UnicodeDecodeError:
        return "".join(
            bytes([b]).decode("latin-1" if b in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else "cp1252") for b in value
        )


def _padded(values: pa.Array, width: int) -> pa.Array:
    """BINARY(n) comes without its zeros at the end."""
    encoded = values.dictionary_encode()
    full = [value.ljust(width, b"\0") for value in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(full, pa.binary())).cast(pa.binary())


def _fixed(raw: np.ndarray, found: Field, type_: ColumnType) -> pa.Array:
    match type_.kind:
        case Kind.INTEGER:
            return pa.array(_little(raw, signed=not type_.unsigned)).cast(type_.arrow)
        case Kind.BOOLEAN:
            return booleans(pa.array(_little(raw, signed=True)).cast(pa.int8()))
        case Kind.YEAR:
            years = raw[:, 0].astype(np.int16)
            return pa.array(np.where(years == 0, 0, years + 1900).astype(np.int16))
        case Kind.FLOAT:
            kind = "<f4" if found.width == 4 else "<f8"
            return pa.array(np.ascontiguousarray(raw).view(kind).reshape(-1))
        case Kind.DECIMAL:
            return _decimals(raw, type_.arrow)
        case Kind.BIT:
            return pa.array(_big(raw).astype(np.uint64))
        case Kind.ENUM:
            members = pa.array(["", *type_.members], pa.string())
            return members.take(pa.array(_little(raw, signed=False)))
        case Kind.SET:
            return _sets(_little(raw, signed=False), type_.members)
        case Kind.DATE:
            packed = _little(raw, signed=False).astype(np.int64)
            days = _days(packed >> 9, packed >> 5 & 15, packed & 31)
            return pa.array(days.astype(np.int32), pa.int32()).cast(pa.date32())
        case Kind.DATETIME:
            return pa.array(_datetimes(raw, found.scale), pa.int64()).cast(type_.arrow)
        case Kind.TIMESTAMP:
            seconds = _big(raw[:, :4]).astype(np.int64)
            micros = seconds * 1_000_000 + _fraction(raw[:, 4:], found.scale)
            if len(micros) and not micros.all():
                raise pa.ArrowInvalid("0000-00-00 00:00:00 is no time")
            return pa.array(micros, pa.int64()).cast(type_.arrow)
        case Kind.TIME:
            return pa.array(_times(raw, found.scale), pa.int64()).cast(type_.arrow)
    raise NotImplementedError(f"no row image of {type_.declared} is of fixed width")


def _little(raw: np.ndarray, *, signed: bool) -> np.ndarray:
    width = raw.shape[1]
    full = np.zeros((len(raw), 8), np.uint8)
    full[:, :width] = raw
    if signed and width < 8:
        full[:, width:] = np.where(raw[:, width - 1 : width] & 0x80, 0xFF, 0)
    return np.ascontiguousarray(full).view("<i8" if signed else "<u8").reshape(-1)


def _big(raw: np.ndarray) -> np.ndarray:
    full = np.zeros((len(raw), 8), np.uint8)
    full[:, 8 - raw.shape[1] :] = raw
    return np.ascontiguousarray(full).view(">u8").reshape(-1).astype(np.uint64)


def _fraction(raw: np.ndarray, scale: int) -> np.ndarray | int:
    """Microseconds from the bytes of the fraction, which hold two digits each."""
    if not scale:
        return 0
    return np.asarray(_big(raw).astype(np.int64) * 10 ** (6 - 2 * raw.shape[1]))


def _days(year: np.ndarray, month: np.ndarray, day: np.ndarray) -> np.ndarray:
    wrong = (year < 1) | (month < 1) | (month > 12) | (day < 1)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise pa.ArrowInvalid(f"{year[at]:04d}-{month[at]:02d}-{day[at]:02d} is no date")
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    first = months.astype("datetime64[D]").astype(np.int64)
    following = (months + 1).astype("datetime64[D]").astype(np.int64)
    if (first + day - 1 >= following).any():
        raise pa.ArrowInvalid("a day that its month has not is no date")
    return np.asarray(first + day - 1)


def _datetimes(raw: np.ndarray, scale: int) -> np.ndarray:
    packed = _big(raw[:, :5]).astype(np.int64) - (1 << 39)
    date, clock = packed >> 17, packed & 0x1FFFF
    days = _days((date >> 5) // 13, (date >> 5) % 13, date & 31)
    seconds = (clock >> 12) * 3600 + (clock >> 6 & 63) * 60 + (clock & 63)
    return np.asarray((days * 86_400 + seconds) * 1_000_000 + _fraction(raw[:, 5:], scale))


def _times(raw: np.ndarray, scale: int) -> np.ndarray:
    packed = _big(raw[:, :3]).astype(np.int64) - (1 << 23)
    micros = ((packed >> 12) * 3600 + (packed >> 6 & 63) * 60 + (packed & 63)) * 1_000_000
    if (packed < 0).any() or (micros >= 86_400_000_000).any():
        raise pa.ArrowInvalid("a TIME outside of one day is no time of day")
    return np.asarray(micros + _fraction(raw[:, 3:], scale))


def _decimals(raw: np.ndarray, arrow: pa.DataType) -> pa.Array:
    """The first bit is the sign; a negative number has all bits inverted."""
    precision, scale = arrow.precision, arrow.scale
    negative = raw[:, 0] < 0x80
    raw = raw.copy()
    raw[:, 0] ^= 0x80
    raw[negative] ^= 0xFF
    integral = precision - scale
    digits = [integral % _DIGITS] + [_DIGITS] * (integral // _DIGITS)
    split = len(digits)
    digits += [_DIGITS] * (scale // _DIGITS) + [scale % _DIGITS]
    texts: list[pa.Array] = [pa.array(np.where(negative, "-0", "0"), pa.string())]
    place = 0
    for index, count in enumerate(digits):
        if index == split:
            texts.append(pa.array(["."] * len(raw), pa.string()))
        if count:
            width = _DIGITS_BYTES[count]
            number = pa.array(_big(raw[:, place : place + width])).cast(pa.string())
            texts.append(pc.utf8_lpad(number, count, "0"))
            place += width
    joined = pc.binary_join_element_wise(*texts, pa.scalar("", pa.string()))
    return joined.cast(arrow)


def _sets(masks: np.ndarray, members: Sequence[str]) -> pa.Array:
    different, places = np.unique(masks, return_inverse=True)
    texts = [",".join(m for i, m in enumerate(members) if int(mask) >> i & 1) for mask in different]
    return pa.array(texts, pa.string()).take(pa.array(places))
