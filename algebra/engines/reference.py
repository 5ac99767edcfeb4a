"""The reference engine: the formulas of the papers, row by row, in plain Python.

It is the measure of all other engines and the lab's engine for small data. It shares no join code with
them: relations are bags in dictionaries, expressions are interpreted here.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlglot import exp

from algebra.assembly import HIGH, LOW, SEQUENCE, VERSION, AssemblyQuery, Node
from algebra.engines.contract import EARLIEST, LATEST, Engine, Extent, Relation, Start, ViewChange
from algebra.errors import OrderingViolationError, ViewDefinitionError
from algebra.local_view import Keys
from algebra.plan import Hop, SweepPlan
from algebra.schema import COUNT

Row = dict[str, Any]


_NAN = float("nan")
"""The one NaN of this engine: an object equals itself as a part of a tuple, as NaN does in SQL."""


def _rows(table: Relation) -> list[Row]:
    rows: list[Row] = table.to_pylist()
    floating = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    for name in floating:
        for row in rows:
            if row[name] is not None and math.isnan(row[name]):
                row[name] = _NAN
    return rows


def _table(schema: pa.Schema, rows: Sequence[Row]) -> Relation:
    return pa.Table.from_pylist(list(rows), schema=schema)


def _with(schema: pa.Schema, *names: str) -> pa.Schema:
    return pa.schema([*schema, *(pa.field(name, pa.int64()) for name in names)])


class ReferenceEngine(Engine):
    """Joins by nested loops over Python rows."""

    name = "reference"

    def select(self, node: Node, rows: Relation) -> Relation:
        if node.filter is None:
            return rows
        condition = node.filter

        def holds(row: Row) -> bool:
            return evaluate(condition, lambda _, name: row[name]) is True

        kept = [row for row in _rows(rows) if holds(row)]
        return _table(rows.schema, kept)

    def keys(self, rows: Sequence[Relation], hop: Hop, query: AssemblyQuery) -> Relation:
        target = query.nodes[hop.target].schema
        columns = {b: a for a, b in reversed(hop.on)}
        names = list(dict.fromkeys(b for _, b in hop.on))
        found = {tuple(row[columns[b]] for b in names) for table in rows for row in _rows(table)}
        values = [dict(zip(names, v, strict=True)) for v in found if None not in v]
        return _table(pa.schema([target.field(b) for b in names]), values)

    def history(self, node: Node, answer: Relation, pending: Relation, keys: Keys | None) -> Relation:
        names = node.schema.names
        wanted = None if keys is None else {tuple(r.values()) for r in _rows(keys.values)}
        final: Counter[tuple[Any, ...]] = Counter()
        for row in _rows(answer):
            final[tuple(row[c] for c in names)] += row.get(COUNT, 1)
        steps: dict[tuple[Any, ...], Counter[int]] = {}
        for row in _rows(pending):
            if wanted is None or tuple(row[c] for c in (keys.columns if keys else ())) in wanted:
                steps.setdefault(tuple(row[c] for c in names), Counter())[row[SEQUENCE]] += row[COUNT]
        rows: list[Row] = []
        for values in {**final, **steps}:
            count, high = final[values], LATEST
            for at in sorted(steps.get(values, ()), reverse=True):
                rows.append(dict(zip(names, values, strict=True)) | {COUNT: count, LOW: at, HIGH: high})
                count, high = count - steps[values][at], at
            rows.append(dict(zip(names, values, strict=True)) | {COUNT: count, LOW: EARLIEST, HIGH: high})
        if any(row[COUNT] < 0 for row in rows):
            raise OrderingViolationError(
                f"the answer for {node.name!r} lacks rows that its own changes report: "
                "changes and answers of this source do not agree"
            )
        return _table(_with(node.schema, COUNT, LOW, HIGH), [row for row in rows if row[COUNT]])

    def assemble(self, plan: SweepPlan, starts: Sequence[Start], directory: Path | None) -> ViewChange:
        counts: Counter[tuple[Any, ...]] = Counter()
        for start in starts:
            for delta in _rows(start.deltas):
                at = delta[SEQUENCE]
                for rows, count in self._extend({start.node: delta}, delta[COUNT], at, start.hops):
                    for values in self._result(plan.query, rows):
                        counts[(*values, at // plan.width)] += count
        schema = _with(plan.query.schema, COUNT, VERSION)
        result = [
            dict(zip(plan.query.schema.names, key[:-1], strict=True)) | {COUNT: count, VERSION: key[-1]}
            for key, count in counts.items()
            if count
        ]
        return ViewChange(table=_table(schema, result))

    def _extend(
        self,
        rows: dict[int, Row],
        count: int,
        at: int,
        hops: Sequence[tuple[Hop, Relation]],
    ) -> Iterator[tuple[dict[int, Row], int]]:
        if not hops:
            yield rows, count
            return
        (hop, relation), *rest = hops
        for row in _rows(relation):
            if row[LOW] <= at < row[HIGH] and _matches(rows[hop.origin], row, hop.on):
                yield from self._extend(rows | {hop.target: row}, count * row[COUNT], at, rest)

    def _result(self, query: AssemblyQuery, rows: Mapping[int, Row]) -> Iterator[tuple[Any, ...]]:
        """The result row of one combination of node rows, if it satisfies all conditions."""

        def value(node: int, name: str) -> Any:
            return rows[node][name]

        for edge in query.edges:
            if not _matches(rows[edge.left], rows[edge.right], edge.on):
                return
        if all(evaluate(predicate, value) is True for predicate in query.filters):
            yield tuple(evaluate(e, value) for _, e in query.projection)

    def begin(self, node: int, deltas: Relation) -> Relation:
        return deltas.rename_columns([c if c == COUNT else f"n{node}.{c}" for c in deltas.column_names])

    def partial_keys(self, partial: Relation, hop: Hop, query: AssemblyQuery) -> Relation:
        columns = list(dict.fromkeys(a for a, _ in hop.on))
        rows = partial.select([f"n{hop.origin}.{a}" for a in columns]).rename_columns(columns)
        return self.keys([rows], hop, query)

    def join(self, partial: Relation, hop: Hop, rows: Relation) -> Relation:
        joined = []
        on = [(f"n{hop.origin}.{a}", b) for a, b in hop.on]
        added = [c for c in rows.column_names if c != COUNT]
        for left in _rows(partial):
            for right in _rows(rows):
                if _matches(left, right, on):
                    row = left | {f"n{hop.target}.{c}": right[c] for c in added}
                    joined.append(row | {COUNT: left[COUNT] * right.get(COUNT, 1)})
        fields = [f for f in partial.schema if f.name != COUNT]
        fields += [rows.schema.field(c).with_name(f"n{hop.target}.{c}") for c in added]
        return _table(_with(pa.schema(fields), COUNT), joined)

    def minus(self, left: Relation, right: Relation) -> Relation:
        names = [c for c in left.column_names if c != COUNT]
        counts: Counter[tuple[Any, ...]] = Counter()
        for table, sign in ((left, 1), (right, -1)):
            for row in _rows(table):
                counts[tuple(row[c] for c in names)] += sign * row[COUNT]
        rows = [dict(zip(names, v, strict=True)) | {COUNT: n} for v, n in counts.items() if n]
        return _table(left.schema, rows)

    def project(self, query: AssemblyQuery, partial: Relation) -> Relation:
        counts: Counter[tuple[Any, ...]] = Counter()
        for row in _rows(partial):
            rows = {i: {c: row[f"n{i}.{c}"] for c in node.schema.names} for i, node in enumerate(query.nodes)}
            for values in self._result(query, rows):
                counts[values] += row[COUNT]
        return _counted(query, counts)

    def extent(self, query: AssemblyQuery, extents: Sequence[Extent], directory: Path | None) -> ViewChange:
        counts: Counter[tuple[Any, ...]] = Counter()
        selected = [
            _rows(self.select(node, _counted_extent(node, extent)))
            for node, extent in zip(query.nodes, extents, strict=True)
        ]

        def combine(i: int, rows: dict[int, Row]) -> None:
            if i == len(selected):
                for values in self._result(query, rows):
                    counts[values] += math.prod(row[COUNT] for row in rows.values())
                return
            for row in selected[i]:
                joined = rows | {i: row}
                if all(
                    _matches(joined[e.left], joined[e.right], e.on)
                    for e in query.edges
                    if max(e.left, e.right) == i
                ):
                    combine(i + 1, joined)

        combine(0, {})
        return ViewChange(table=_counted(query, counts))


def _counted_extent(node: Node, extent: Extent) -> Relation:
    names = node.schema.names
    counts: Counter[tuple[Any, ...]] = Counter()
    tables = [pq.read_table(path) for path in extent.files]
    for table in [*tables, *([] if extent.table is None else [extent.table])]:
        counts.update(tuple(row[c] for c in names) for row in _rows(table))
    minus: list[Row] = [] if extent.minus is None else _rows(extent.minus)
    for row in minus:
        counts[tuple(row[c] for c in names)] -= row[COUNT]
    rows = [dict(zip(names, values, strict=True)) | {COUNT: n} for values, n in counts.items() if n]
    return _table(_with(node.schema, COUNT), rows)


def _counted(query: AssemblyQuery, counts: Counter[tuple[Any, ...]]) -> Relation:
    names = query.schema.names
    rows = [dict(zip(names, values, strict=True)) | {COUNT: n} for values, n in counts.items() if n]
    return _table(_with(query.schema, COUNT), rows)


def _matches(left: Row, right: Row, on: Sequence[tuple[str, str]]) -> bool:
    return all(
        left[a] is not None and (left[a] == right[b] or (left[a] is _NAN and right[b] is _NAN)) for a, b in on
    )


def evaluate(expression: exp.Expr, value: Callable[[int, str], Any]) -> Any:
    """An expression over node columns, by SQL's three-valued logic; None is NULL (unknown)."""

    def of(part: exp.Expr) -> Any:
        return evaluate(part, value)

    match expression:
        case exp.Column():
            table = expression.table
            return value(int(table[1:]) if table else 0, expression.name)
        case exp.Paren():
            return of(expression.this)
        case exp.Literal():
            if expression.is_string:
                return expression.name
            text = expression.name
            return int(text) if text.lstrip("-").isdigit() else Decimal(text)
        case exp.Boolean():
            return bool(expression.this)
        case exp.Null():
            return None
        case exp.And():
            sides = (of(expression.this), of(expression.expression))
            return False if False in sides else None if None in sides else True
        case exp.Or():
            sides = (of(expression.this), of(expression.expression))
            return True if True in sides else None if None in sides else False
        case exp.Not():
            inner = of(expression.this)
            return None if inner is None else not inner
        case exp.Is():
            # IS NULL, IS TRUE or IS FALSE; Python has one object of each.
            return of(expression.this) is of(expression.expression)
        case exp.In():
            left = of(expression.this)
            found = [_compared(exp.EQ, left, of(e)) for e in expression.expressions]
            return None if left is None else True if True in found else None if None in found else False
        case exp.Between():
            inner = of(expression.this)
            low = _compared(exp.GTE, inner, of(expression.args["low"]))
            high = _compared(exp.LTE, inner, of(expression.args["high"]))
            return False if False in (low, high) else None if None in (low, high) else True
        case exp.Like():
            left, right = of(expression.this), of(expression.expression)
            if left is None or right is None:
                return None
            return bool(_like(right).fullmatch(left)) is not bool(expression.args.get("negate"))
        case exp.Coalesce():
            for part in (expression.this, *expression.expressions):
                if (found := of(part)) is not None:
                    return found
            return None
        case exp.Case():
            operand = expression.args.get("this")
            for branch in expression.args["ifs"]:
                condition = of(branch.this)
                if operand is not None:
                    condition = _compared(exp.EQ, of(operand), condition)
                if condition is True:
                    return of(branch.args["true"])
            default = expression.args.get("default")
            return None if default is None else of(default)
        case exp.Nullif():
            left = of(expression.this)
            return None if _compared(exp.EQ, left, of(expression.expression)) else left
        case exp.Greatest() | exp.Least():
            parts = [of(part) for part in (expression.this, *expression.expressions)]
            best = max if isinstance(expression, exp.Greatest) else min
            return best((part for part in parts if part is not None), default=None)
        case exp.TryCast():
            try:
                return _cast(of(expression.this), expression.to)
            except (ValueError, ArithmeticError):
                return None
        case exp.Cast():
            return _cast(of(expression.this), expression.to)
    if (unary := _UNARY.get(type(expression))) is not None:
        inner = of(expression.this)
        return None if inner is None else unary(inner)
    if type(expression) in _COMPARISONS:
        return _compared(type(expression), of(expression.this), of(expression.args["expression"]))
    if (operation := _OPERATIONS.get(type(expression))) is not None:
        left, right = of(expression.this), of(expression.args["expression"])
        return None if left is None or right is None else operation(*_numbers(left, right))
    raise ViewDefinitionError(f"the reference engine does not know {expression.sql()}")


def knows(expression: exp.Expr) -> bool:
    """Whether this engine can evaluate an expression."""
    return all(
        _caster(part.to) is not None
        if isinstance(part, exp.Cast)
        else isinstance(part, _STRUCTURE) or type(part) in (*_UNARY, *_COMPARISONS, *_OPERATIONS)
        for part in expression.walk()
    )


_STRUCTURE: tuple[type[exp.Expr], ...] = (
    exp.Column,
    exp.Identifier,
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.Paren,
    exp.And,
    exp.Or,
    exp.Not,
    exp.Is,
    exp.In,
    exp.Between,
    exp.Like,
    exp.Case,
    exp.If,
    exp.Coalesce,
    exp.Nullif,
    exp.Greatest,
    exp.Least,
    exp.DataType,
    exp.DataTypeParam,
)

_UNARY: Mapping[type[exp.Expr], Callable[[Any], Any]] = {
    exp.Upper: lambda a: a.upper(),
    exp.Lower: lambda a: a.lower(),
    exp.Length: len,
    exp.Abs: abs,
    exp.Neg: lambda a: -a,
    exp.Year: lambda a: a.year,
    exp.Month: lambda a: a.month,
    exp.Day: lambda a: a.day,
}

_COMPARISONS: Mapping[type[exp.Expr], Callable[[Any, Any], bool]] = {
    exp.EQ: lambda a, b: bool(a == b),
    exp.NEQ: lambda a, b: bool(a != b),
    exp.LT: lambda a, b: bool(a < b),
    exp.LTE: lambda a, b: bool(a <= b),
    exp.GT: lambda a, b: bool(a > b),
    exp.GTE: lambda a, b: bool(a >= b),
}

_OPERATIONS: Mapping[type[exp.Expr], Callable[[Any, Any], Any]] = {
    exp.Add: lambda a, b: a + b,
    exp.Sub: lambda a, b: a - b,
    exp.Mul: lambda a, b: a * b,
    exp.Div: lambda a, b: a / b,
    exp.DPipe: lambda a, b: f"{_to_text(a)}{_to_text(b)}",
}


def _compared(operator: type[exp.Expr], left: Any, right: Any) -> bool | None:
    """A comparison; a constant that is written as text has the type of what it is compared with."""
    if left is None or right is None:
        return None
    if isinstance(right, str) and not isinstance(left, str):
        right = _parsed(right, left)
    elif isinstance(left, str) and not isinstance(right, str):
        left = _parsed(left, right)
    if isinstance(left, datetime.datetime) != isinstance(right, datetime.datetime):
        left, right = (_to_timestamp(value) for value in (left, right))
    return _COMPARISONS[operator](left, right)


def _parsed(text: str, example: Any) -> Any:
    """A text as a value of the example's type."""
    if isinstance(example, bool):
        return _to_boolean(text)
    if isinstance(example, datetime.datetime):
        return _to_instant(text) if example.tzinfo else _to_timestamp(text)
    if isinstance(example, datetime.date):
        return _to_date(text)
    if isinstance(example, datetime.time):
        return datetime.time.fromisoformat(text)
    return text.encode() if isinstance(example, bytes) else Decimal(text)


def _numbers(left: Any, right: Any) -> tuple[Any, Any]:
    """A float makes the other number a float."""
    if isinstance(left, float) and isinstance(right, Decimal):
        return left, float(right)
    if isinstance(left, Decimal) and isinstance(right, float):
        return float(left), right
    return left, right


def _like(pattern: str) -> re.Pattern[str]:
    parts = ({"%": ".*", "_": "."}.get(character, re.escape(character)) for character in pattern)
    return re.compile("".join(parts), re.DOTALL)


def _cast(value: Any, to: exp.DataType) -> Any:
    if value is None:
        return None
    if (cast := _caster(to)) is None:
        raise ViewDefinitionError(f"the reference engine does not cast to {to.sql()}")
    return cast(value)


def _caster(to: exp.DataType) -> Callable[[Any], Any] | None:
    """How values become values of a type."""
    if to.is_type("double", "float"):
        return float
    if to.is_type(*exp.DataType.INTEGER_TYPES):
        return _to_integer
    if to.is_type(*exp.DataType.TEXT_TYPES):
        return _to_text
    if to.is_type("decimal"):
        parameters = [int(part.name) for part in to.expressions]
        scale = parameters[1] if len(parameters) > 1 else 0 if parameters else 3
        return lambda value: _decimal(value).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
    return next((cast for name, cast in _CASTS.items() if to.is_type(name)), None)


def _decimal(value: Any) -> Decimal:
    return Decimal(repr(value) if isinstance(value, float) else value)


def _to_integer(value: Any) -> int:
    if isinstance(value, float):
        return round(value)
    return int(_decimal(value).to_integral_value(ROUND_HALF_UP))


def _to_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _to_boolean(value: Any) -> bool:
    if not isinstance(value, str):
        return bool(value)
    if value.lower() not in _BOOLEANS:
        raise ValueError(f"{value!r} is no boolean")
    return _BOOLEANS[value.lower()]


def _to_date(value: Any) -> datetime.date:
    if isinstance(value, str):
        return datetime.date.fromisoformat(value)
    date: datetime.date = value.date() if isinstance(value, datetime.datetime) else value
    return date


def _to_timestamp(value: Any) -> datetime.datetime:
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    if not isinstance(value, datetime.datetime):
        return datetime.datetime.combine(value, datetime.time())
    if value.tzinfo is not None:
        raise ValueError(f"{value} as a local time depends on the session's time zone")
    return value


def _to_instant(value: Any) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(found, datetime.datetime) or found.tzinfo is None:
        raise ValueError(f"{value} as an instant depends on the session's time zone")
    return found


_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}

_CASTS: Mapping[str, Callable[[Any], Any]] = {
    "boolean": _to_boolean,
    "date": _to_date,
    "timestamp": _to_timestamp,
    "timestampntz": _to_timestamp,
    "timestamptz": _to_instant,
}
