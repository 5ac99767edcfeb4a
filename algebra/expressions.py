"""Structured predicates: the only conditions that travel to a wrapper.

A wrapper never sees SQL text. What a view wants filtered near its source is a tree of `ColumnRef`,
`Literal` and `Call` with a closed set of operators whose meaning is the same everywhere (two-valued
comparison, SQL's three-valued logic). Anything richer is evaluated at the warehouse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa


class Operator(Enum):
    """The operators a wrapper understands; IN takes the column first, then its values."""

    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    AND = "AND"
    OR = "OR"
    NOT = "NOT"
    IS_NULL = "IS NULL"
    IN = "IN"


@dataclass(frozen=True)
class ColumnRef:
    """A column of one relation occurrence of a local view."""

    occurrence: str
    column: str


@dataclass(frozen=True)
class Literal:
    """A constant with its Arrow type; `value` is what `pa.scalar(value, type)` accepts."""

    value: bool | int | float | str | None
    type: pa.DataType


@dataclass(frozen=True)
class Call:
    """An operator applied to its arguments."""

    operator: Operator
    arguments: tuple[Expression, ...]


Expression = ColumnRef | Literal | Call

MAX_DEPTH = 32
"""How deep a predicate that travels may be nested: protobuf reads 100 levels of messages, two for each
call."""


def depth(expression: Expression) -> int:
    """How deep calls are nested in an expression; 0 for a column or a literal."""
    if not isinstance(expression, Call):
        return 0
    return 1 + max(map(depth, expression.arguments), default=0)


def column_refs(expression: Expression) -> Iterator[ColumnRef]:
    """Every column the expression reads, with repetitions."""
    match expression:
        case ColumnRef():
            yield expression
        case Call(_, arguments):
            for argument in arguments:
                yield from column_refs(argument)
        case Literal():
            return
