"""Local views evaluated over the model's bags, in plain Python: the kit's own second opinion on `fetch`."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adapters.conformance.model import Bag
from adapters.conformance.operations import Row
from algebra.expressions import Call, ColumnRef, Expression, Literal, Operator
from algebra.local_view import LocalView, Occurrence
from algebra.schema import RelationSchema

Binding = dict[str, Row]
"""One row for each occurrence joined so far."""

_COMPARISONS: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQ: lambda a, b: a == b,
    Operator.NE: lambda a, b: a != b,
    Operator.LT: lambda a, b: a < b,
    Operator.LE: lambda a, b: a <= b,
    Operator.GT: lambda a, b: a > b,
    Operator.GE: lambda a, b: a >= b,
}


def evaluate(
    query: LocalView,
    schemas: Mapping[str, RelationSchema],
    contents: Mapping[str, Bag],
    keys: tuple[Sequence[str], Sequence[Row]] | None = None,
) -> Bag:
    """The rows of the query: joins, key values and predicates applied, NULL equal to nothing."""
    index = {
        (occurrence.alias, column.name): i
        for occurrence in query.occurrences
        for i, column in enumerate(schemas[occurrence.relation].columns)
    }

    def value(binding: Binding, ref: ColumnRef) -> Any:
        return binding[ref.occurrence][index[ref.occurrence, ref.column]]

    bindings: list[tuple[Binding, int]] = [({}, 1)]
    for occurrence in query.occurrences:
        bindings = _join(bindings, occurrence, query, contents[occurrence.relation], value)

    wanted = {row for row in keys[1] if None not in row} if keys else set()
    answer: Bag = Counter()
    for binding, count in bindings:
        if keys and tuple(value(binding, query.output(name).source) for name in keys[0]) not in wanted:
            continue
        column = functools.partial(value, binding)
        if all(_truth(predicate, column) for predicate in query.predicates):
            answer[tuple(value(binding, column.source) for column in query.columns)] += count
    return answer


def satisfies(query: LocalView, row: Row) -> bool:
    """Whether an output row passes the predicates, all of whose columns it shows."""
    shown = {column.source: i for i, column in enumerate(query.columns)}
    return all(_truth(predicate, lambda ref: row[shown[ref]]) is True for predicate in query.predicates)


def _join(
    bindings: list[tuple[Binding, int]],
    occurrence: Occurrence,
    query: LocalView,
    bag: Bag,
    value: Callable[[Binding, ColumnRef], Any],
) -> list[tuple[Binding, int]]:
    known = set(bindings[0][0]) if bindings else set()
    inner: list[ColumnRef] = []
    outer: list[ColumnRef] = []
    own: list[tuple[ColumnRef, ColumnRef]] = []
    for join in query.joins:
        sides = (join.left, join.right)
        if join.left.occurrence == join.right.occurrence == occurrence.alias:
            own.append(sides)
        for here, there in (sides, sides[::-1]):
            if here.occurrence == occurrence.alias and there.occurrence in known:
                inner.append(here)
                outer.append(there)
    hashed: dict[Row, list[tuple[Row, int]]] = {}
    for row, count in bag.items():
        binding = {occurrence.alias: row}
        if all(value(binding, a) is not None and value(binding, a) == value(binding, b) for a, b in own):
            hashed.setdefault(tuple(value(binding, ref) for ref in inner), []).append((row, count))
    joined = []
    for binding, count in bindings:
        key = tuple(value(binding, ref) for ref in outer)
        if None not in key:
            for row, copies in hashed.get(key, []):
                joined.append(({**binding, occurrence.alias: row}, count * copies))
    return joined


def _truth(expression: Expression, column: Callable[[ColumnRef], Any]) -> Any:
    """The value of an expression in SQL's three-valued logic, None for unknown."""
    match expression:
        case ColumnRef():
            return column(expression)
        case Literal(value):
            return value
        case Call(Operator.IS_NULL, (argument,)):
            return _truth(argument, column) is None
        case Call(operator, arguments):
            return _apply(operator, [_truth(argument, column) for argument in arguments])


def _apply(operator: Operator, values: list[Any]) -> Any:
    if operator is Operator.NOT:
        return None if values[0] is None else not values[0]
    if operator in (Operator.AND, Operator.OR):
        decisive = operator is Operator.OR
        if decisive in values:
            return decisive
        return None if None in values else not decisive
    if operator is Operator.IN:
        return _apply(Operator.OR, [_apply(Operator.EQ, [values[0], other]) for other in values[1:]])
    left, right = values
    return None if left is None or right is None else _COMPARISONS[operator](left, right)
