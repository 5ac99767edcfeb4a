"""The reference engine: the formulas of the papers, row by row, in plain Python.

It is the measure of all other engines and the lab's engine for small data. It shares no join code with
them: relations are bags in dictionaries, expressions are interpreted here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
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
            return of(expression.this) is None
        case exp.In():
            left = of(expression.this)
            members = [of(e) for e in expression.expressions]
            return None if left is None else True if left in members else None if None in members else False
        case exp.Coalesce():
            for part in (expression.this, *expression.expressions):
                if (found := of(part)) is not None:
                    return found
            return None
        case exp.Case():
            for branch in expression.args["ifs"]:
                if of(branch.this) is True:
                    return of(branch.args["true"])
            default = expression.args.get("default")
            return None if default is None else of(default)
        case exp.Nullif():
            left = of(expression.this)
            return None if left == of(expression.expression) else left
        case exp.Cast():
            return _cast(of(expression.this), expression.to)
        case exp.Upper() | exp.Lower() | exp.Length() | exp.Abs() | exp.Neg():
            inner = of(expression.this)
            return None if inner is None else _UNARY[type(expression)](inner)
        case exp.Binary():
            left, right = of(expression.this), of(expression.expression)
            operation = _OPERATIONS.get(type(expression))
            if operation is not None:
                return None if left is None or right is None else operation(left, right)
    raise ViewDefinitionError(f"the reference engine does not know {expression.sql()}")


_UNARY: Mapping[type[exp.Expr], Callable[[Any], Any]] = {
    exp.Upper: lambda a: a.upper(),
    exp.Lower: lambda a: a.lower(),
    exp.Length: len,
    exp.Abs: abs,
    exp.Neg: lambda a: -a,
}

_OPERATIONS: Mapping[type[exp.Expr], Callable[[Any, Any], Any]] = {
    exp.EQ: lambda a, b: a == b,
    exp.NEQ: lambda a, b: a != b,
    exp.LT: lambda a, b: a < b,
    exp.LTE: lambda a, b: a <= b,
    exp.GT: lambda a, b: a > b,
    exp.GTE: lambda a, b: a >= b,
    exp.Add: lambda a, b: a + b,
    exp.Sub: lambda a, b: a - b,
    exp.Mul: lambda a, b: a * b,
    exp.Div: lambda a, b: a / b,
    exp.DPipe: lambda a, b: f"{a}{b}",
}


def _cast(value: Any, to: exp.DataType) -> Any:
    if value is None:
        return None
    if to.is_type("double", "float"):
        return float(value)
    if to.is_type(*exp.DataType.INTEGER_TYPES):
        return int(value)
    if to.is_type(*exp.DataType.TEXT_TYPES):
        return str(value)
    raise ViewDefinitionError(f"the reference engine does not cast to {to.sql()}")
