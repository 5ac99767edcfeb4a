"""MariaDB's declared types as Arrow types: how a column is selected, decoded, and compared with keys.

A value has one Arrow type wherever it shows up: catalog, fetch, changes. The server's text protocol writes
every value as text; Arrow parses whole columns of it. What that text would lose is selected otherwise: FLOAT
is written with six digits, so it is selected as DOUBLE.

Text is compared by its bytes in utf8mb4, whatever its collation says. A collation takes more values for equal
than their bytes do (case, accents, blanks at the end), so `column = key` under it finds all candidates, by an
index if there is one, and the comparison of the bytes decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_WIDEST_DECIMAL = 38
_UTC = pa.timestamp("us", "UTC")
_DAY = "1970-01-01"


class Kind(Enum):
    """What a declared type is at heart; decides how it is read, compared and decoded."""

    INTEGER = "integer"
    BOOLEAN = "boolean"
    YEAR = "year"
    BIT = "bit"
    FLOAT = "float"
    DECIMAL = "decimal"
    TEXT = "text"
    ENUM = "enum"
    SET = "set"
    OPAQUE = "opaque"
    """Shown as the text that the server makes of it (UUID, INET6, …)."""
    BINARY = "binary"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"


@dataclass(frozen=True)
class ColumnType:
    """How one declared type is shown.

    `declared` is MariaDB's own text; `charset` and `collation` are those of text; `members` the values of an
    ENUM or SET in order; `width` the length of a BINARY.
    """

    kind: Kind
    arrow: pa.DataType
    declared: str
    unsigned: bool = False
    charset: str = ""
    collation: str = ""
    members: tuple[str, ...] = ()
    width: int = 0

    def select(self, expression: str) -> str:
        """SQL whose text `decode` understands."""
        if self.kind is Kind.FLOAT and self.arrow == pa.float32():
            return f"CAST({expression} AS DOUBLE)"
        if self.kind is Kind.BIT:
            return f"CAST({expression} AS UNSIGNED)"
        return expression

    def decode(self, column: pa.Array) -> pa.Array:
        """The server's text as values; ArrowInvalid for what the type cannot hold."""
        if self.kind is Kind.BINARY:
            return column
        written = column.cast(pa.string())
        match self.kind:
            case Kind.BOOLEAN:
                return booleans(written.cast(pa.int8()))
            case Kind.FLOAT:
                return written.cast(pa.float64()).cast(self.arrow)
            case Kind.TIMESTAMP:
                return written.cast(pa.timestamp("us")).cast(_UTC)
            case Kind.TIME:
                # Arrow parses times only with a day; what is no time of day is no time of this day.
                return (
                    pc.binary_join_element_wise(_DAY, written, " ").cast(pa.timestamp("us")).cast(self.arrow)
                )
        return written if self.arrow == pa.string() else written.cast(self.arrow)

    @property
    def indexable(self) -> bool:
        """Whether a comparison with keys can go through an index."""
        return self.kind not in (Kind.YEAR, Kind.ENUM, Kind.SET, Kind.OPAQUE)

    @property
    def bytes_sql(self) -> Callable[[str], str]:
        """SQL: the bytes by which a text compares."""
        if self.kind is Kind.OPAQUE:
            return lambda expression: f"CAST(CONVERT(CAST({expression} AS CHAR) USING utf8mb4) AS BINARY)"
        return lambda expression: f"CAST(CONVERT({expression} USING utf8mb4) AS BINARY)"

    @property
    def is_text(self) -> bool:
        return bool(self.arrow == pa.string())

    def key_type(self) -> str:
        """The type of a key's column in JSON_TABLE."""
        match self.kind:
            case Kind.INTEGER | Kind.BOOLEAN | Kind.YEAR | Kind.BIT:
                return "BIGINT UNSIGNED" if pa.types.is_unsigned_integer(self.arrow) else "BIGINT"
            case Kind.FLOAT:
                return "DOUBLE"
            case Kind.DECIMAL:
                return f"DECIMAL({self.arrow.precision},{self.arrow.scale})"
            case Kind.DATE:
                return "DATE"
            case Kind.DATETIME | Kind.TIMESTAMP:
                return "DATETIME(6)"
            case Kind.TIME:
                return "TIME(6)"
        return "LONGTEXT CHARACTER SET ascii"

    def equals_key(self, column: str, key: str) -> str:
        """SQL: the column equals the key, by value."""
        if self.kind is Kind.BINARY:
            return f"{column} = UNHEX({key})"
        if self.kind is Kind.YEAR:
            # Two digits compared with a YEAR would be taken for a year of this century or the last.
            return f"CAST({column} AS UNSIGNED) = {key}"
        if not self.is_text:
            return f"{column} = {key}"
        exact = f"{self.bytes_sql(column)} = UNHEX({key})"
        if self.kind is not Kind.TEXT:
            return exact
        value = f"CONVERT(UNHEX({key}) USING utf8mb4)"
        if self.charset != "utf8mb4":
            value = f"CONVERT({value} USING {self.charset})"
        return f"{column} = {value} COLLATE {self.collation} AND {exact}"

    def key_values(self, values: pa.Array) -> list[str | None]:
        """Keys of this type as JSON takes them: text that JSON_TABLE turns into the value again."""
        if self.is_text or self.kind is Kind.BINARY:
            return [None if v is None else v.hex() for v in values.cast(pa.binary()).to_pylist()]
        if self.kind is Kind.BOOLEAN:
            values = values.cast(pa.int8())
        if self.kind in (Kind.DATETIME, Kind.TIMESTAMP):
            values = values.cast(pa.timestamp("us"))
        if self.kind in (Kind.FLOAT, Kind.DECIMAL):
            return [_number(v) for v in values.to_pylist()]
        return list(values.cast(pa.string()).to_pylist())


def _number(value: float | Decimal | None) -> str | None:
    return None if value is None else format(value, "f") if isinstance(value, Decimal) else repr(value)


def booleans(values: pa.Array) -> pa.Array:
    """0 and 1 as booleans; ArrowInvalid for any other number."""
    bounds = pc.min_max(values).as_py()
    low, high = bounds["min"], bounds["max"]
    if low is not None and (low < 0 or high > 1):
        wrong = low if low < 0 else high
        raise pa.ArrowInvalid(f"{wrong} is no boolean (option `booleans: false` shows TINYINT(1) as numbers)")
    return pc.not_equal(values, pa.scalar(0, values.type))


def equal(left: str, left_type: ColumnType, right: str, right_type: ColumnType) -> str | None:
    """SQL: two columns are equal by value; None if their types cannot be compared so."""
    if left_type.is_text != right_type.is_text:
        return None
    if not left_type.is_text:
        if (left_type.kind is Kind.BINARY) != (right_type.kind is Kind.BINARY):
            return None
        years = [Kind.YEAR, Kind.BIT]
        one = f"CAST({left} AS UNSIGNED)" if left_type.kind in years else left
        other = f"CAST({right} AS UNSIGNED)" if right_type.kind in years else right
        return f"{one} = {other}"
    exact = f"{left_type.bytes_sql(left)} = {right_type.bytes_sql(right)}"
    kinds = {left_type.kind, right_type.kind}
    same = (left_type.charset, left_type.collation) == (right_type.charset, right_type.collation)
    return f"{left} = {right} AND {exact}" if kinds == {Kind.TEXT} and same else exact


_INTEGERS = {
    "tinyint": (pa.int8(), pa.uint8()),
    "smallint": (pa.int16(), pa.uint16()),
    "mediumint": (pa.int32(), pa.uint32()),
    "int": (pa.int32(), pa.uint32()),
    "bigint": (pa.int64(), pa.uint64()),
}
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
_BINARIES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_OPAQUE = {"uuid", "inet4", "inet6"}
_MEMBER = re.compile(r"'((?:[^']|'')*)'")
_DECIMAL = re.compile(r"\w+\((\d+),(\d+)\)")
_LENGTH = re.compile(r"\w+\((\d+)\)")


def column_type(
    name: str, declared: str, charset: str | None, collation: str | None, *, show_booleans: bool
) -> ColumnType | None:
    """How a column is shown; None if its type is not supported. `name` is the bare type (DATA_TYPE)."""

    def simple(kind: Kind, arrow: pa.DataType, **more: Any) -> ColumnType:
        return ColumnType(kind, arrow, declared, **more)

    unsigned = " unsigned" in declared
    length = _LENGTH.match(declared)
    if name == "tinyint" and declared == "tinyint(1)" and show_booleans:
        return simple(Kind.BOOLEAN, pa.bool_())
    if name in _INTEGERS:
        return simple(Kind.INTEGER, _INTEGERS[name][unsigned], unsigned=unsigned)
    if name in _TEXTS:
        return simple(Kind.TEXT, pa.string(), charset=charset or "utf8mb4", collation=collation or "")
    if name in _BINARIES:
        fixed = int(length[1]) if name == "binary" and length else 0
        return simple(Kind.BINARY, pa.binary(), width=fixed)
    if name in _OPAQUE:
        return simple(Kind.OPAQUE, pa.string())
    if name in ("enum", "set"):
        members = tuple(m.replace("''", "'") for m in _MEMBER.findall(declared))
        kind = Kind.ENUM if name == "enum" else Kind.SET
        return simple(kind, pa.string(), members=members, charset=charset or "", collation=collation or "")
    if name == "decimal":
        digits = _DECIMAL.match(declared)
        if digits is None or int(digits[1]) > _WIDEST_DECIMAL:
            return None
        return simple(Kind.DECIMAL, pa.decimal128(int(digits[1]), int(digits[2])), unsigned=unsigned)
    return {
        "float": simple(Kind.FLOAT, pa.float32()),
        "double": simple(Kind.FLOAT, pa.float64()),
        "date": simple(Kind.DATE, pa.date32()),
        "datetime": simple(Kind.DATETIME, pa.timestamp("us")),
        "timestamp": simple(Kind.TIMESTAMP, _UTC),
        "time": simple(Kind.TIME, pa.time64("us")),
        "year": simple(Kind.YEAR, pa.int16()),
        "bit": simple(Kind.BIT, pa.uint64()),
    }.get(name)
