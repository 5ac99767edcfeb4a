"""Assembly queries: a view rewritten over nodes, and nothing but nodes.

The same structure serves twice. At the mediator the nodes are the local views of the sources, and the
assembly query is the wrapper paper's AQ. Inside a wrapper the nodes are the relations of one local view.
That is why one sweep serves both.

Columns of node i appear in expressions as `n<i>.<column>`, so an expression is independent of names that
users or sources chose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from algebra.expressions import Call, ColumnRef, Expression, Literal, Operator
from algebra.local_view import LocalView
from algebra.schema import Catalog

SEQUENCE = "_seq"
"""Orders all deltas of a batch: which states a partial result may see."""
LOW = "_lo"
HIGH = "_hi"
VERSION = "_version"
ROW = "_row"
"""Numbers rows that are to be told apart."""
RESERVED = frozenset({"_count", "_tx", SEQUENCE, LOW, HIGH, VERSION, ROW})
"""Names that Lockstep adds to rows; no base or view column may bear them."""
KEY_PREFIX = "_key_"
"""Begins the names of view columns that are stored for maintenance alone; no other view column's may."""


def node_column(node: int, column: str) -> exp.Column:
    """The expression `n<node>.<column>`."""
    return exp.column(exp.to_identifier(column, quoted=True), table=exp.to_identifier(f"n{node}"))


@dataclass(frozen=True)
class Node:
    """A relation the sweep visits. `distinct`: no row occurs twice. `filter` reads this node alone."""

    name: str
    schema: pa.Schema
    distinct: bool
    filter: exp.Expr | None = None


@dataclass(frozen=True)
class Edge:
    """A join between two nodes: all pairs of `on` (left column, right column) are equal.

    Without pairs the nodes meet only in a theta predicate, or in none.
    """

    left: int
    right: int
    on: tuple[tuple[str, str], ...]

    def seen_from(self, node: int) -> tuple[int, tuple[tuple[str, str], ...]]:
        """The neighbour, and the pairs as (this node's column, the neighbour's column)."""
        if node == self.left:
            return self.right, self.on
        return self.left, tuple((right, left) for left, right in self.on)


@dataclass(frozen=True)
class AssemblyQuery:
    """SELECT projection FROM nodes WHERE edges AND filters.

    `consolidation_free`: no two combinations of node rows give one result row, so that joining deltas in
    normal form gives a result in normal form.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    filters: tuple[exp.Expr, ...]
    projection: tuple[tuple[str, exp.Expr], ...]
    schema: pa.Schema
    consolidation_free: bool

    @property
    def computed(self) -> tuple[exp.Expr, ...]:
        """All expressions that are more than a column."""
        parts = [e for _, e in self.projection if not isinstance(e, exp.Column)]
        return (*parts, *self.filters, *(node.filter for node in self.nodes if node.filter is not None))

    def column_type(self, column: exp.Column) -> pa.DataType:
        """The type of a column `n<i>.<column>`."""
        return self.nodes[int(column.table[1:])].schema.field(column.name).type

    @property
    def is_portable(self) -> bool:
        """Whether every engine gives the same values: no text function, no cast but to DOUBLE, spelled out or
        not, and no decimals that may outgrow their type.

        Engines differ in corners there (case of ß, rounding of a cast decimal, text of a cast double).
        """
        return not any(
            isinstance(part, (exp.Upper, exp.Lower, exp.Substring, exp.Trim))
            or (isinstance(part, exp.Cast) and not part.to.is_type("double"))
            for expression in self.computed
            for part in expression.walk()
        ) and all(map(self._has_one_meaning, self.computed))

    def _has_one_meaning(self, expression: exp.Expr) -> bool:
        """Whether engines agree on how an expression converts and rounds what it reads."""
        types = [self.column_type(column) for column in expression.find_all(exp.Column)]
        constants = list(expression.find_all(exp.Literal))
        if pa.float32() in types:
            # Beside a constant or a decimal, some compute with 32 bits and some with 64.
            return False
        text = pa.string() in types or any(constant.is_string for constant in constants)
        if text and (
            any(pa.types.is_floating(t) or pa.types.is_time(t) or getattr(t, "tz", None) for t in types)
            or any(not constant.is_string and not constant.is_int for constant in constants)
            or expression.find(exp.Cast) is not None
        ):
            return False
        numbers = [constant for constant in constants if not constant.is_string]
        exact = any(map(pa.types.is_decimal, types)) or any(not number.is_int for number in numbers)
        digits = sum(map(_digits, types)) + sum(len(number.name) for number in numbers)
        return not exact or digits < _MOST_DIGITS

    @property
    def is_plain(self) -> bool:
        """Whether the result is made of node columns alone: no expression has to be evaluated."""
        return not self.filters and all(isinstance(e, exp.Column) for _, e in self.projection)


_MOST_DIGITS = 38
"""Decimals with more are not had, and engines differ in what they leave out."""


def _digits(type_: pa.DataType) -> int:
    """How many decimal digits exact numbers of a type have at most."""
    if pa.types.is_decimal(type_):
        return int(type_.precision)
    return 20 if pa.types.is_integer(type_) else 0


def nodes_read(expression: exp.Expr) -> set[int]:
    """The nodes whose columns an expression reads."""
    return {int(column.table[1:]) for column in expression.find_all(exp.Column)}


_BINARY: Mapping[Operator, type[exp.Expr]] = {
    Operator.EQ: exp.EQ,
    Operator.NE: exp.NEQ,
    Operator.LT: exp.LT,
    Operator.LE: exp.LTE,
    Operator.GT: exp.GT,
    Operator.GE: exp.GTE,
}


def predicate_to_sql(predicate: Expression, node_of: Mapping[str, int]) -> exp.Expr:
    """A structured predicate as an expression over nodes; `node_of` maps occurrence aliases to nodes."""
    match predicate:
        case ColumnRef(occurrence, column):
            return node_column(node_of[occurrence], column)
        case Literal(value, type_):
            return literal_to_sql(value, type_)
        case Call(operator, arguments):
            operands = [exp.paren(predicate_to_sql(a, node_of)) for a in arguments]
            if operator in _BINARY:
                return _BINARY[operator](this=operands[0], expression=operands[1])
            match operator:
                case Operator.AND:
                    return exp.and_(*operands)
                case Operator.OR:
                    return exp.or_(*operands)
                case Operator.NOT:
                    return exp.not_(operands[0])
                case Operator.IS_NULL:
                    return exp.Is(this=operands[0], expression=exp.null())
                case Operator.IN:
                    return exp.In(this=operands[0], expressions=operands[1:])
    raise AssertionError(f"unknown expression {predicate!r}")


def literal_to_sql(value: object, type_: pa.DataType) -> exp.Expr:
    """A constant of the given type, as every engine reads it."""
    if value is None:
        return exp.null()
    if pa.types.is_boolean(type_):
        return exp.true() if value else exp.false()
    if pa.types.is_integer(type_):
        return exp.Literal.number(str(int(str(value))))
    if pa.types.is_floating(type_):
        return exp.cast(exp.Literal.number(repr(float(str(value)))), "DOUBLE")
    text = exp.Literal.string(str(value))
    if pa.types.is_date(type_):
        return exp.cast(text, "DATE")
    if pa.types.is_timestamp(type_):
        return exp.cast(text, "TIMESTAMPTZ" if type_.tz else "TIMESTAMP")
    if pa.types.is_decimal(type_):
        return exp.cast(text, f"DECIMAL({type_.precision},{type_.scale})")
    return text


def local_assembly(view: LocalView, catalog: Catalog) -> AssemblyQuery:
    """The assembly query of one local view over its own relations: what a wrapper's sweep runs on."""
    node_of = {occurrence.alias: i for i, occurrence in enumerate(view.occurrences)}
    filters: list[exp.Expr] = []
    node_filters: dict[int, list[exp.Expr]] = {}
    for predicate in view.predicates:
        expression = predicate_to_sql(predicate, node_of)
        read = nodes_read(expression)
        if len(read) == 1:
            node_filters.setdefault(read.pop(), []).append(expression)
        else:
            filters.append(expression)
    nodes = []
    for i, occurrence in enumerate(view.occurrences):
        schema = catalog.relation(occurrence.relation)
        columns = view.columns_read(occurrence.alias) or (schema.columns[0].name,)
        conjuncts = node_filters.get(i)
        nodes.append(
            Node(
                name=occurrence.alias,
                schema=pa.schema([pa.field(c, schema.column(c).type) for c in columns]),
                distinct=bool(schema.key) and set(schema.key) <= set(columns),
                filter=exp.and_(*conjuncts) if conjuncts else None,
            )
        )
    pairs: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for join in view.joins:
        left, right = node_of[join.left.occurrence], node_of[join.right.occurrence]
        if left == right:
            filters.append(
                exp.EQ(
                    this=node_column(left, join.left.column), expression=node_column(right, join.right.column)
                )
            )
        elif left < right:
            pairs.setdefault((left, right), []).append((join.left.column, join.right.column))
        else:
            pairs.setdefault((right, left), []).append((join.right.column, join.left.column))
    return AssemblyQuery(
        nodes=tuple(nodes),
        edges=tuple(Edge(left, right, tuple(on)) for (left, right), on in pairs.items()),
        filters=tuple(filters),
        projection=tuple(
            (c.name, node_column(node_of[c.source.occurrence], c.source.column)) for c in view.columns
        ),
        schema=view.arrow,
        # A transaction may change several relations of one local view; their terms may cancel.
        consolidation_free=False,
    )


def is_consolidation_free(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    projection: Sequence[tuple[str, exp.Expr]],
) -> bool:
    """Whether every column of every node can be told from a result row, and no node row occurs twice."""
    if not all(node.distinct for node in nodes):
        return False
    known = {(int(e.table[1:]), e.name) for _, e in projection if isinstance(e, exp.Column)}
    equal = [((edge.left, left), (edge.right, right)) for edge in edges for left, right in edge.on]
    grown = True
    while grown:
        grown = False
        for one, other in equal:
            if (one in known) != (other in known):
                known |= {one, other}
                grown = True
    return all((i, name) in known for i, node in enumerate(nodes) for name in node.schema.names)
