"""Value pools: few values for each column of a view, so chosen that joins meet and predicates sometimes hold.

Columns that the view compares with each other share a pool. Constants that a column is compared with are in
its pool, each with a neighbour below and above. The rest is filled up with small values of the type.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import count, islice, pairwise
from typing import Any, TypeAlias

import pyarrow as pa
from sqlglot import exp

from algebra.schema import Catalog
from algebra.sql_types import family
from algebra.view import BoundView
from lab.values import fits, read_value

ColumnOf: TypeAlias = tuple[str, str, str]
"""Source, relation, column."""

_FEW = 3
_KEYS = 4
_HELD = 0.75
"""How often a pool holds a constant of the view, if there is one."""
_YEAR = 2024
_DAY = datetime.date(_YEAR, 1, 1)
_NOON = datetime.datetime(_YEAR, 1, 1, 12)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.In, exp.Between, exp.Like)


class Pools:
    """The values of each column that a view reads."""

    def __init__(self, view: BoundView, catalogs: Mapping[str, Catalog]) -> None:
        self._types: dict[ColumnOf, pa.DataType] = {}
        self._keys: set[ColumnOf] = set()
        for source, catalog in catalogs.items():
            for relation in catalog:
                self._types |= {(source, relation.name, c.name): c.type for c in relation.columns}
                self._keys |= {(source, relation.name, name) for name in relation.key}
        self._group = {column: column for column in self._types}
        self._constants: dict[ColumnOf, list[Any]] = {column: [] for column in self._types}
        self._read_as: dict[ColumnOf, pa.DataType] = {}
        homes = {r.alias: (r.source, r.schema.name) for r in view.relations}

        def place(column: exp.Column) -> ColumnOf:
            return (*homes[column.table], column.name)

        for expression in (*view.conjuncts, *(e for _, e in view.projection)):
            for comparison in expression.find_all(*_COMPARISONS):
                self._compared(comparison, [place(c) for c in comparison.find_all(exp.Column)])
            for cast in expression.find_all(exp.Cast):
                if isinstance(cast.this, exp.Column) and (type_ := _target(cast.to)) is not None:
                    self._read_as[place(cast.this)] = type_

    def _compared(self, comparison: exp.Expr, columns: Sequence[ColumnOf]) -> None:
        for one, other in pairwise(columns):
            if family(self._types[one]) == family(self._types[other]):
                old, new = self._group[other], self._group[one]
                self._group = {column: new if g == old else g for column, g in self._group.items()}
        for literal in comparison.find_all(exp.Literal):
            for column in columns:
                value = _constant(literal, self._types[column], isinstance(comparison, exp.Like))
                if value is not None:
                    self._constants[column].append(value)

    def chosen(self, rnd: random.Random) -> dict[ColumnOf, Sequence[Any]]:
        """For one scenario, few values of each column; columns that are compared have the same."""
        groups: dict[ColumnOf, list[ColumnOf]] = {}
        for column, group in self._group.items():
            groups.setdefault(group, []).append(column)
        found: dict[ColumnOf, Sequence[Any]] = {}
        for columns in groups.values():
            kept = self._kept(rnd, columns)
            for column in columns:
                type_ = self._types[column]
                converted = [_converted(value, type_) for value in kept]
                # A narrow type may hold none of them.
                found[column] = [v for v in converted if v is not None] or list(islice(_small(type_), 2))
        return found

    def _kept(self, rnd: random.Random, columns: Sequence[ColumnOf]) -> list[Any]:
        constants = _distinct(value for column in columns for value in self._constants[column])
        read_as = next((self._read_as[c] for c in columns if c in self._read_as), None)
        type_ = self._types[columns[0]]
        if read_as is not None and pa.types.is_string(type_):
            # Whatever is no text of such a value makes the view's own expression fail.
            values = [str(value).lower() for value in islice(_small(read_as), _KEYS)]
        else:
            near = (n for constant in constants for n in _neighbours(constant, type_))
            values = _distinct([*constants, *near, *islice(_small(type_), _KEYS)])
        wanted = _KEYS if self._keys.intersection(columns) else rnd.randint(2, _FEW)
        kept = rnd.sample(values, min(wanted, len(values)))
        useful = [constant for constant in constants if constant in values]
        if useful and rnd.random() < _HELD and not any(value in useful for value in kept):
            kept[0] = rnd.choice(useful)
        return kept


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _target(to: exp.DataType) -> pa.DataType | None:
    """The type that text is read as by a cast."""
    if to.is_type(*exp.DataType.NUMERIC_TYPES):
        return pa.int8()
    if to.is_type("boolean"):
        return pa.bool_()
    if to.is_type("date"):
        return pa.date32()
    return pa.timestamp("us") if to.is_type(*exp.DataType.TEMPORAL_TYPES) else None


def _constant(literal: exp.Literal, type_: pa.DataType, pattern: bool) -> Any:
    """A constant of the view as a value of a column; None if it cannot be one."""
    text = f"-{literal.name}" if isinstance(literal.parent, exp.Neg) else literal.name
    try:
        if not literal.is_string:
            return _number(Decimal(text), type_)
    except ArithmeticError:
        return None
    if pa.types.is_string(type_):
        return text.replace("%", "").replace("_", "a") if pattern else text
    if pa.types.is_binary(type_):
        return text.encode()
    value = read_value(text, type_)
    if isinstance(value, datetime.datetime) and value.tzinfo is None and type_.tz:
        value = value.replace(tzinfo=datetime.UTC)
    return value if fits(value, type_) else None


def _number(number: Decimal, type_: pa.DataType) -> Any:
    """A number of the view; for text it may be a length, for dates a year, a month or a day."""
    whole = round(number)
    if pa.types.is_integer(type_):
        return _converted(whole, type_)
    if pa.types.is_floating(type_):
        return _converted(float(number), type_)
    if pa.types.is_string(type_):
        return "a" * whole if 0 < whole <= _KEYS * _FEW else None
    if pa.types.is_date(type_) or pa.types.is_timestamp(type_):
        if not 0 < whole <= datetime.MAXYEAR:
            return None
        day = _DAY.replace(month=min(whole, 12), day=whole) if whole <= 28 else _DAY.replace(year=whole)
        return day if pa.types.is_date(type_) else _at(datetime.datetime.combine(day, _NOON.time()), type_)
    return _converted(number, type_)


def _at(moment: datetime.datetime, type_: pa.DataType) -> datetime.datetime:
    return moment.replace(tzinfo=datetime.UTC if type_.tz else None)


def _converted(value: Any, type_: pa.DataType) -> Any:
    """A value of another type of the same family as one of this type; None if there is none."""
    if pa.types.is_decimal(type_) and isinstance(value, Decimal):
        value = read_value(str(value), type_)
    elif pa.types.is_float32(type_) and isinstance(value, float):
        # As exact as the type can be.
        value = pa.scalar(value, pa.float32()).as_py()
    return value if fits(value, type_) else None


def _neighbours(value: Any, type_: pa.DataType) -> Iterator[Any]:
    """A value that is less and one that is more, as far as the type has them."""
    if isinstance(value, str):
        yield from (value[:-1], value + (value[-1:] or "a"))
    elif isinstance(value, bytes):
        yield from (value[:-1], value + b"\x00")
    elif not isinstance(value, bool | datetime.time):
        for neighbour in (value - _step(type_), value + _step(type_)):
            if (found := _converted(neighbour, type_)) is not None:
                yield found


def _step(type_: pa.DataType) -> Any:
    if pa.types.is_decimal(type_):
        return Decimal(1).scaleb(-type_.scale)
    if pa.types.is_date(type_):
        return datetime.timedelta(days=1)
    return datetime.timedelta(seconds=1) if pa.types.is_timestamp(type_) else 1


def _small(type_: pa.DataType) -> Iterator[Any]:
    """Values of a type, smallest first; those of two types of one family begin alike."""
    if pa.types.is_boolean(type_):
        yield from (False, True)
        return
    make = next((make for is_of, make in _MAKERS if is_of(type_)), lambda n: n)
    for n in count(1):
        value = make(n)
        if pa.types.is_timestamp(type_):
            value = _at(value, type_)
        elif pa.types.is_decimal(type_):
            value = _converted(value, type_) or Decimal(n).scaleb(-type_.scale)
        if not fits(value, type_):
            return
        yield value


_MAKERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[int], Any]], ...] = (
    (pa.types.is_floating, lambda n: n / 2),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_string, lambda n: chr(ord("a") + (n - 1) % 26)),
    (pa.types.is_binary, lambda n: bytes([n % 256])),
    (pa.types.is_date, lambda n: _DAY + datetime.timedelta(days=n - 1)),
    (pa.types.is_time, lambda n: datetime.time(n % 24)),
    (pa.types.is_timestamp, lambda n: _NOON + datetime.timedelta(hours=n - 1)),
)
