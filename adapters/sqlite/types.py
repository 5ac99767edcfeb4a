"""Declared SQLite types and their Arrow types: how a stored value is read, checked and compared.

SQLite types values, not columns: a column's declared type only nudges ("affinity") what is stored. The
ADBC driver, in turn, guesses a result column's type from its first rows and converts what does not fit
without a word in some cases (a number in a text column). So every declared type has a `Codec` that says

- how to ask for a value (`select`) and which constant pins the driver's guess (`sentinel`, `wire`);
- which stored values do not belong to the type and the driver would let pass (`misfit`);
- how to make the Arrow value, vectorised (`decode`);
- how to compare by value (`comparable`, `key`): two spellings of one timestamp are equal.

Base rows and change log rows go through the same codec, which is why both paths agree on every value.

Type losses, all SQLite's own: NaN is stored as NULL; -0.0 is read as 0.0; a DECIMAL with more than 15
digits was rounded to a double when it was stored (unless it is an integer below 2**63). NUMERIC and
DECIMAL without arguments are float64. Columns without a declared type, or with one that SQLite knows
nothing about (JSON, UUID, TIME), are strings in which numbers appear in their text form.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

_MAX_EXACT_INTEGER = 2**53
_DOUBLE_DIGITS = 15


class Comparison(Enum):
    """What two columns must share to be compared by value."""

    NUMBER = "number"
    DECIMAL = "decimal"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "date"
    TIMESTAMP = "timestamp"
    INSTANT = "instant"


@dataclass(frozen=True)
class Codec(ABC):
    """How values of one declared type are read, checked and compared."""

    comparison: ClassVar[Comparison]
    sentinel: ClassVar[str]
    wire: ClassVar[pa.DataType]
    plain: ClassVar[bool] = True
    """Equal values have equal stored forms: indexes serve comparisons, unique constraints are keys."""

    @property
    @abstractmethod
    def arrow(self) -> pa.DataType:
        """The Arrow type of every value of the column."""

    def select(self, column: str) -> str:
        """The SQL expression whose value `decode` understands."""
        return column

    def misfit(self, column: str) -> str | None:
        """SQL that is true for a stored value of another type that the driver would convert silently."""
        return None

    def decode(self, values: pa.Array) -> pa.Array:
        """Arrow values of type `arrow`; raises ArrowInvalid naming a value that is not of the type."""
        return values

    def comparable(self, column: str) -> str:
        """SQL whose values are equal when, and only when, the column's Arrow values are."""
        return column

    def key(self, values: pa.Array) -> list[int] | list[float] | list[str]:
        """Key values (of type `arrow`) as JSON values, in the form of `comparable`."""
        result: list[int] | list[float] | list[str] = values.to_pylist()
        return result

    def key_sql(self, value: str) -> str:
        """SQL that turns one JSON value of `key` into what `comparable` gives."""
        return value


@dataclass(frozen=True)
class Integer(Codec):
    """INTEGER and everything with INT in its name."""

    comparison = Comparison.NUMBER
    sentinel = "0"
    wire = pa.int64()

    @property
    def arrow(self) -> pa.DataType:
        return pa.int64()


@dataclass(frozen=True)
class Boolean(Codec):
    """BOOLEAN: 0 or 1."""

    comparison = Comparison.NUMBER
    sentinel = "0"
    wire = pa.int64()

    @property
    def arrow(self) -> pa.DataType:
        return pa.bool_()

    def decode(self, values: pa.Array) -> pa.Array:
        extremes = pc.min_max(values)
        for value in (extremes["min"].as_py(), extremes["max"].as_py()):
            if value not in (0, 1, None):
                raise pa.ArrowInvalid(f"{value} is neither 0 nor 1")
        return values.cast(pa.bool_())

    def key(self, values: pa.Array) -> list[int] | list[float] | list[str]:
        result: list[int] = values.cast(pa.int64()).to_pylist()
        return result


@dataclass(frozen=True)
class Real(Codec):
    """REAL, DOUBLE, FLOAT."""

    comparison = Comparison.NUMBER
    sentinel = "0.0"
    wire = pa.float64()

    @property
    def arrow(self) -> pa.DataType:
        return pa.float64()

    def decode(self, values: pa.Array) -> pa.Array:
        # A trigger may still see the -0.0 that SQLite stores as 0.0; adding zero makes them one value.
        return pc.add(values, 0.0)

    def key(self, values: pa.Array) -> list[int] | list[float] | list[str]:
        # json.dumps writes infinity as SQLite reads it (JSON5); NaN would be read as NULL: no match.
        result: list[float] = values.to_pylist()
        return result


@dataclass(frozen=True)
class Numeric(Real):
    """NUMERIC or DECIMAL without arguments: integers and reals, as float64."""

    def misfit(self, column: str) -> str | None:
        return (
            f"typeof({column}) = 'integer' AND "
            f"{column} NOT BETWEEN -{_MAX_EXACT_INTEGER} AND {_MAX_EXACT_INTEGER}"
        )


@dataclass(frozen=True)
class Text(Codec):
    """TEXT, VARCHAR, CHAR, CLOB. `strict`: the table cannot hold anything else."""

    strict: bool = False

    comparison = Comparison.TEXT
    sentinel = "''"
    wire = pa.string()

    @property
    def arrow(self) -> pa.DataType:
        return pa.string()

    def misfit(self, column: str) -> str | None:
        return None if self.strict else f"typeof({column}) = 'blob'"

    def decode(self, values: pa.Array) -> pa.Array:
        # The driver passes bytes on as they are; the cast from binary is what validates UTF-8.
        return values.cast(pa.binary()).cast(pa.string())


@dataclass(frozen=True)
class UncheckedText(Text):
    """The bytes of a text, which may not be UTF-8; NULL for whatever is not text. Never refuses a value."""

    @property
    def arrow(self) -> pa.DataType:
        return pa.binary()

    def select(self, column: str) -> str:
        return f"iif(typeof({column}) = 'text', {column}, NULL)"

    def misfit(self, column: str) -> str | None:
        return None

    def decode(self, values: pa.Array) -> pa.Array:
        return values.cast(pa.binary())


@dataclass(frozen=True)
class Anything(Text):
    """No declared type, or one SQLite knows nothing about: text, with numbers in their text form."""

    plain = False

    def select(self, column: str) -> str:
        return (
            f"CASE typeof({column}) WHEN 'real' THEN printf('%!.17g', {column}) "
            f"ELSE CAST({column} AS TEXT) END"
        )

    def misfit(self, column: str) -> str | None:
        return f"typeof({column}) = 'blob'"

    def comparable(self, column: str) -> str:
        return self.select(column)


@dataclass(frozen=True)
class Bytes(Codec):
    """BLOB."""

    comparison = Comparison.BYTES
    sentinel = "x''"
    wire = pa.binary()

    @property
    def arrow(self) -> pa.DataType:
        return pa.binary()

    def misfit(self, column: str) -> str | None:
        return f"typeof({column}) NOT IN ('blob', 'null')"

    def key(self, values: pa.Array) -> list[int] | list[float] | list[str]:
        return [value.hex() for value in values.to_pylist()]

    def key_sql(self, value: str) -> str:
        return f"unhex({value})"


@dataclass(frozen=True)
class Decimal(Codec):
    """DECIMAL(p, s): stored as integer, real or text; a value with more digits than `scale` is refused."""

    precision: int = 18
    scale: int = 0

    comparison = Comparison.DECIMAL
    sentinel = "''"
    wire = pa.string()
    plain = False

    @property
    def arrow(self) -> pa.DataType:
        make = pa.decimal128 if self.precision <= 38 else pa.decimal256
        return make(self.precision, self.scale)

    def select(self, column: str) -> str:
        # A double carries 15 decimal digits faithfully: below that, what was written is what is read,
        # also for the last-bit noise of sums. Above it, the double's own value is all there is.
        exact = f"1e{_DOUBLE_DIGITS - self.scale}"
        return (
            f"CASE typeof({column}) WHEN 'real' THEN CASE WHEN abs({column}) < {exact} "
            f"THEN printf('%!.{_DOUBLE_DIGITS}g', {column}) ELSE printf('%!.{self.scale}f', {column}) END "
            f"ELSE CAST({column} AS TEXT) END"
        )

    def misfit(self, column: str) -> str | None:
        return f"typeof({column}) = 'blob'"

    def decode(self, values: pa.Array) -> pa.Array:
        return values.cast(self.arrow)

    def comparable(self, column: str) -> str:
        return decimal_text(column, self.scale)

    def key(self, values: pa.Array) -> list[int] | list[float] | list[str]:
        texts = [format(value, f".{self.scale}f") for value in values.to_pylist()]
        return [_one_spelling(text) for text in texts]


@dataclass(frozen=True)
class Date(Codec):
    """DATE: the text YYYY-MM-DD, nothing else."""

    comparison = Comparison.DATE
    sentinel = "''"
    wire = pa.string()

    @property
    def arrow(self) -> pa.DataType:
        return pa.date32()

    def misfit(self, column: str) -> str | None:
        return f"typeof({column}) NOT IN ('text', 'null')"

    def decode(self, values: pa.Array) -> pa.Array:
        require(values, r"^\d{4}-\d\d-\d\d$", "a date of the form YYYY-MM-DD")
        return values.cast(pa.date32())

    def key(self, values: pa.Array) -> list[int] | list[float] | list[str]:
        result: list[str] = values.cast(pa.string()).to_pylist()
        return result


@dataclass(frozen=True)
class Timestamp(Codec):
    """TIMESTAMP, DATETIME: ISO text without a zone, up to microseconds."""

    comparison = Comparison.TIMESTAMP
    sentinel = "''"
    wire = pa.string()
    plain = False

    @property
    def arrow(self) -> pa.DataType:
        return pa.timestamp("us")

    def misfit(self, column: str) -> str | None:
        return f"typeof({column}) NOT IN ('text', 'null')"

    def decode(self, values: pa.Array) -> pa.Array:
        pattern = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?$"
        require(values, pattern, "a timestamp of the form YYYY-MM-DD HH:MM:SS[.ffffff]")
        return values.cast(self.arrow)

    def comparable(self, column: str) -> str:
        # One spelling: a blank between date and time, seconds written, no zeros at the fraction's end.
        padded = f"({column} || substr('0000-00-00 00:00:00', length({column}) + 1))"
        fraction = f"rtrim(rtrim(substr({column}, 20), '0'), '.')"
        return f"(substr({padded}, 1, 10) || ' ' || substr({padded}, 12, 8) || {fraction})"

    def key(self, values: pa.Array) -> list[int] | list[float] | list[str]:
        return timestamp_text(values)


@dataclass(frozen=True)
class Instant(Codec):
    """TIMESTAMPTZ: ISO text with Z or an offset; without one SQLite, and so we, take it as UTC."""

    comparison = Comparison.INSTANT
    sentinel = "''"
    wire = pa.string()
    plain = False

    @property
    def arrow(self) -> pa.DataType:
        return pa.timestamp("us", "UTC")

    def misfit(self, column: str) -> str | None:
        return f"typeof({column}) NOT IN ('text', 'null')"

    def decode(self, values: pa.Array) -> pa.Array:
        zone = r"(Z|[+-](0\d|1[0-4]):[0-5]\d)"
        pattern = rf"^\d{{4}}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{{1,6}})?{zone}?$"
        require(values, pattern, "a timestamp of the form YYYY-MM-DD HH:MM:SS[.ffffff][Z or +HH:MM]")
        zoned = pc.match_substring_regex(values, rf"{zone}$")
        return pc.if_else(zoned, values, pc.binary_join_element_wise(values, "Z", "")).cast(self.arrow)

    def comparable(self, column: str) -> str:
        rest = f"substr({column}, 20)"
        offset = f"ltrim({rest}, '.0123456789')"
        # Not by strftime's own fraction: it rounds to milliseconds.
        fraction = f"rtrim(rtrim(substr({rest}, 1, length({rest}) - length({offset})), '0'), '.')"
        return f"(strftime('%Y-%m-%d %H:%M:%S', substr({column}, 1, 19) || {offset}) || {fraction})"

    def key(self, values: pa.Array) -> list[int] | list[float] | list[str]:
        return timestamp_text(values.cast(pa.timestamp("us")))


def decimal_text(column: str, scale: int) -> str:
    """SQL for a number, rounded to this scale, as text: no zeros at its end but one after the point."""
    return (
        f"CASE typeof({column}) WHEN 'real' THEN printf('%!.{max(scale, 1)}f', {column}) "
        f"WHEN 'integer' THEN {column} || '.0' ELSE {column} END"
    )


def _one_spelling(number: str) -> str:
    """A decimal number's text as `decimal_text` writes it."""
    whole, _, fraction = number.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}"


def timestamp_text(values: pa.Array) -> list[str]:
    """Timestamps (microseconds, no zone) in the one spelling that `comparable` produces."""
    text = pc.strftime(values, format="%Y-%m-%d %H:%M:%S")
    result: list[str] = pc.replace_substring_regex(text, r"\.?0+$", "").to_pylist()
    return result


def require(values: pa.Array, pattern: str, what: str) -> None:
    """Raise ArrowInvalid naming the first text that does not match."""
    wrong = values.filter(pc.invert(pc.match_substring_regex(values, pattern)))
    if len(wrong):
        raise pa.ArrowInvalid(f"{wrong[0].as_py()!r} is not {what}")


_DECLARATION = re.compile(r"^\s*([^()]*?)\s*(?:\(\s*([^)]*?)\s*\)\s*(.*?)\s*)?$", re.DOTALL)


def codec_for(declared: str | None, *, strict: bool = False) -> Codec:
    """The codec of a column with this declared type; `strict`: of a STRICT table."""
    match = _DECLARATION.match(declared or "")
    words, arguments, rest = match.groups() if match else (declared or "", None, None)
    name = " ".join(f"{words} {rest or ''}".upper().split())
    if name in ("BOOL", "BOOLEAN"):
        return Boolean()
    if name == "DATE":
        return Date()
    if name in ("TIMESTAMPTZ", "DATETIMETZ") or name.endswith("WITH TIME ZONE"):
        return Instant()
    if name in ("TIMESTAMP", "DATETIME", "TIMESTAMP WITHOUT TIME ZONE"):
        return Timestamp()
    if name in ("DECIMAL", "NUMERIC", "DEC", "NUMBER", "MONEY"):
        return _decimal(arguments)
    # From here on SQLite's own affinity rules, in their order.
    if "INT" in name:
        return Integer()
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return Text(strict)
    if "BLOB" in name:
        return Bytes()
    if any(part in name for part in ("REAL", "FLOA", "DOUB")):
        return Real()
    return Anything()


def _decimal(arguments: str | None) -> Codec:
    parts = [part.strip() for part in (arguments or "").split(",")]
    if not all(part.isdigit() for part in parts) or len(parts) > 2:
        return Numeric()
    precision, scale = int(parts[0]), int(parts[1]) if len(parts) == 2 else 0
    if not (1 <= precision <= 76 and scale <= min(precision, _DOUBLE_DIGITS)):
        return Numeric()
    return Decimal(precision, scale)
