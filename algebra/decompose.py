"""Decomposition: one local view per source, and the assembly query that puts them together.

Selections and projections go to the sources, join columns are kept, expressions and theta predicates stay
at the warehouse. Relations of one source that no equality connects become separate local views of that
source, because their local join would be a cross product.

Some algorithms tell rows of a view apart by the keys of the relations they come from. For those the view
shows every key: in the user's own columns where they are plain key columns, else in hidden ones.

Reference: wrapper paper, section 3.3 and Example 4; Strobe paper, section 5.1 (keys).
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa
from sqlglot import exp

from algebra.assembly import (
    KEY_PREFIX,
    RESERVED,
    AssemblyQuery,
    Edge,
    Node,
    is_consolidation_free,
    node_column,
    nodes_read,
)
from algebra.errors import ViewDefinitionError
from algebra.expressions import MAX_DEPTH, Call, ColumnRef, Expression, Literal, Operator, depth
from algebra.keys import ViewKeys
from algebra.local_view import EquiJoin, LocalView, Occurrence, OutputColumn
from algebra.schema import Catalog
from algebra.sql_types import duckdb_type, family
from algebra.view import DIALECT, BoundView, bind_view, bounded_sql, column_of

_Ref = tuple[str, str]
"""(alias, column)"""


@dataclass(frozen=True)
class Decomposition:
    """A view in parts: what each source is asked to show, and how the parts are joined.

    `local_views[i]` is node i of the assembly query. `keys` tells where the view shows each node's key, if
    that was asked for. `hidden` names the last columns of the view that were added for that.
    """

    local_views: tuple[LocalView, ...]
    assembly: AssemblyQuery
    keys: ViewKeys | None = None
    hidden: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of the view, each once."""
        return tuple(dict.fromkeys(local.source for local in self.local_views))


def decompose(
    name: str,
    sql: str,
    catalogs: Mapping[str, Catalog],
    *,
    allow_cross_join: bool = False,
    keys: bool = False,
    per_relation: bool = False,
) -> Decomposition:
    """The local views and the assembly query of a view; ViewDefinitionError if it cannot be kept.

    `keys`: the view shows a key of every relation. `per_relation`: every relation is a local view of its own,
    also where several of one source could be joined there.
    """
    with bounded_sql(sql) as step:
        return _decompose(name, bind_view(sql, catalogs), allow_cross_join, keys, per_relation, step)


def _decompose(
    name: str,
    view: BoundView,
    allow_cross_join: bool,
    keys: bool,
    per_relation: bool,
    step: Callable[[], None],
) -> Decomposition:
    hidden: tuple[tuple[str, exp.Expr], ...] = ()
    if keys:
        hidden = tuple(_hidden_keys(view))
        view = replace(view, projection=(*view.projection, *hidden))
    found = _Decomposer(name, view, allow_cross_join, per_relation, step).run()
    if not keys:
        return found
    return replace(found, keys=_view_keys(view, found), hidden=tuple(column for column, _ in hidden))


def _key_columns(view: BoundView) -> Iterator[_Ref]:
    """The key columns of every relation occurrence."""
    for relation in view.relations:
        if not relation.schema.key:
            raise ViewDefinitionError(
                f"relation {relation.source}.{relation.schema.name} has no key, "
                "and here the view must show a key of every relation"
            )
        for column in relation.schema.key:
            yield relation.alias, column


def _plain_columns(view: BoundView) -> dict[_Ref, str]:
    """Which view column shows a relation's column as it is; the first, if several do."""
    shown: dict[_Ref, str] = {}
    for name, expression in view.projection:
        if isinstance(expression, exp.Column):
            shown.setdefault((expression.table, expression.name), name)
    return shown


def _hidden_keys(view: BoundView) -> Iterator[tuple[str, exp.Expr]]:
    """A column with a name of its own for every key column that the view does not show."""
    shown = _plain_columns(view)
    taken: set[str] = set()
    for alias, column in _key_columns(view):
        if (alias, column) in shown:
            continue
        name = f"{KEY_PREFIX}{alias}_{column}"
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        yield name, column_of(alias, column)


def _view_keys(view: BoundView, found: Decomposition) -> ViewKeys:
    shown = _plain_columns(view)
    keys = set(_key_columns(view))

    def of_node(local: LocalView) -> Iterator[tuple[str, str]]:
        for output in local.columns:
            ref = (output.source.occurrence, output.source.column)
            if ref in keys:
                yield output.name, shown[ref]

    return ViewKeys(tuple(tuple(of_node(local)) for local in found.local_views))


class _Decomposer:
    def __init__(
        self,
        name: str,
        view: BoundView,
        allow_cross_join: bool,
        per_relation: bool,
        step: Callable[[], None],
    ) -> None:
        self.name = name
        self.view = view
        self.allow_cross_join = allow_cross_join
        self.per_relation = per_relation
        self.step = step
        self.equalities: list[tuple[_Ref, _Ref]] = []
        self.predicates: list[tuple[str, Expression]] = []
        self.residuals: list[exp.Expr] = []

    def run(self) -> Decomposition:
        for conjunct in self.view.conjuncts:
            self._classify(conjunct)
        components = self._components()
        node_of = {alias: i for i, component in enumerate(components) for alias in component}
        needed = self._needed(node_of)
        local_views = tuple(
            self._local_view(i, component, components, needed) for i, component in enumerate(components)
        )
        output = {
            (c.source.occurrence, c.source.column): (i, c.name)
            for i, local in enumerate(local_views)
            for c in local.columns
        }
        nodes = tuple(Node(local.name, local.arrow, local.distinct) for local in local_views)
        edges = self._edges(node_of, output)
        filters = tuple(_over_nodes(residual, output, self.step) for residual in self.residuals)
        projection = tuple((name, _over_nodes(e, output, self.step)) for name, e in self.view.projection)
        self._check_connected(nodes, edges, filters)
        one_node_per_source = len({v.source for v in local_views}) == len(local_views)
        assembly = AssemblyQuery(
            nodes=nodes,
            edges=edges,
            filters=filters,
            projection=projection,
            schema=_result_schema(nodes, projection, filters),
            # With several nodes in one source, the terms of one transaction may cancel.
            consolidation_free=one_node_per_source and is_consolidation_free(nodes, edges, projection),
        )
        return Decomposition(local_views, assembly)

    def _classify(self, conjunct: exp.Expr) -> None:
        """Sort a conjunct into equality between relations, local predicate, or residual."""
        aliases = {column.table for column in conjunct.find_all(exp.Column)}
        bare = conjunct.unnest()
        if isinstance(bare, exp.EQ):
            left, right = bare.this.unnest(), bare.expression.unnest()
            if isinstance(left, exp.Column) and isinstance(right, exp.Column) and len(aliases) == 2:
                self._check_comparable(left, right)
                self.equalities.append(((left.table, left.name), (right.table, right.name)))
                return
        if len(aliases) == 1:
            predicate = self._structured(bare)
            if predicate is not None and depth(predicate) <= MAX_DEPTH:
                self.predicates.append((aliases.pop(), predicate))
                return
        self.residuals.append(conjunct)

    def _type(self, column: exp.Column) -> pa.DataType:
        return self.view.relation(column.table).schema.column(column.name).type

    def _check_comparable(self, left: exp.Column, right: exp.Column) -> None:
        one, other = family(self._type(left)), family(self._type(right))
        if one != other:
            raise ViewDefinitionError(
                f"{left.table}.{left.name} is {one} and {right.table}.{right.name} is {other}: "
                "they cannot be joined with =; compare a CAST of one of them"
            )

    def _structured(self, expression: exp.Expr) -> Expression | None:
        """The predicate as a structure that may travel; None if a wrapper could not decide it the same."""
        expression = expression.unnest()
        match expression:
            case exp.And() | exp.Or():
                # A chain is one call of many arguments: nested as it is parsed, a long one would be too deep.
                parts = [self._structured(part) for part in expression.flatten()]
                if any(part is None for part in parts):
                    return None
                operator = Operator.AND if isinstance(expression, exp.And) else Operator.OR
                return Call(operator, tuple(part for part in parts if part is not None))
            case exp.Not():
                inner = self._structured(expression.this)
                return None if inner is None else Call(Operator.NOT, (inner,))
            case exp.Is() if isinstance(expression.expression, exp.Null):
                column = expression.this.unnest()
                if isinstance(column, exp.Column):
                    return Call(Operator.IS_NULL, (_ref(column),))
                return None
            case exp.In():
                column = expression.this.unnest()
                if not isinstance(column, exp.Column):
                    return None
                values = [_literal(value, self._type(column)) for value in expression.expressions]
                if any(value is None for value in values):
                    return None
                return Call(Operator.IN, (_ref(column), *(v for v in values if v is not None)))
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                return self._comparison(expression)
        return None

    def _comparison(self, expression: exp.Expr) -> Expression | None:
        left, right = expression.this.unnest(), expression.expression.unnest()
        operator = _COMPARISONS[type(expression)]
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            if family(self._type(left)) != family(self._type(right)):
                return None
            return Call(operator, (_ref(left), _ref(right)))
        if isinstance(left, exp.Column):
            value = _literal(right, self._type(left))
            return None if value is None else Call(operator, (_ref(left), value))
        if isinstance(right, exp.Column):
            value = _literal(left, self._type(right))
            return None if value is None else Call(operator, (value, _ref(right)))
        return None

    def _components(self) -> list[list[str]]:
        """The aliases of each node: relations of one source connected by equalities, in FROM order."""
        if self.per_relation:
            return [[relation.alias] for relation in self.view.relations]
        component = {relation.alias: relation.alias for relation in self.view.relations}
        for (left, _), (right, _) in self.equalities:
            if self.view.relation(left).source == self.view.relation(right).source:
                old, new = component[right], component[left]
                component = {alias: new if c == old else c for alias, c in component.items()}
        groups: dict[str, list[str]] = {}
        for relation in self.view.relations:
            groups.setdefault(component[relation.alias], []).append(relation.alias)
        return list(groups.values())

    def _needed(self, node_of: Mapping[str, int]) -> dict[str, list[str]]:
        """The columns of each occurrence that the assembly query reads, in order of first use."""
        refs: list[_Ref] = [
            (c.table, c.name)
            for _, expression in self.view.projection
            for c in expression.find_all(exp.Column)
        ]
        for left, right in self.equalities:
            if node_of[left[0]] != node_of[right[0]]:
                refs += [left, right]
        refs += [(c.table, c.name) for r in self.residuals for c in r.find_all(exp.Column)]
        needed: dict[str, list[str]] = {relation.alias: [] for relation in self.view.relations}
        for alias, column in dict.fromkeys(refs):
            needed[alias].append(column)
        return needed

    def _local_view(
        self,
        index: int,
        component: list[str],
        components: list[list[str]],
        needed: Mapping[str, list[str]],
    ) -> LocalView:
        source = self.view.relation(component[0]).source
        of_source = [c for c in components if self.view.relation(c[0]).source == source]
        suffix = "" if len(of_source) == 1 else f".{of_source.index(component) + 1}"
        joins = tuple(
            EquiJoin(ColumnRef(*left), ColumnRef(*right))
            for left, right in self.equalities
            if left[0] in component and right[0] in component
        )
        columns = self._output_columns(component, needed)
        shown = {(c.source.occurrence, c.source.column) for c in columns}
        return LocalView(
            name=f"{self.name}.{source}{suffix}",
            source=source,
            occurrences=tuple(Occurrence(a, self.view.relation(a).schema.name) for a in component),
            joins=joins,
            predicates=tuple(p for alias, p in self.predicates if alias in component),
            columns=columns,
            distinct=self._is_distinct(component, shown, joins),
        )

    def _output_columns(
        self, component: list[str], needed: Mapping[str, list[str]]
    ) -> tuple[OutputColumn, ...]:
        refs = [(alias, column) for alias in component for column in needed[alias]]
        if not refs:  # only existence matters; some column must carry the rows
            alias = component[0]
            schema = self.view.relation(alias).schema
            refs = [(alias, schema.key[0] if schema.key else schema.columns[0].name)]
        names = [column for _, column in refs]
        columns: list[OutputColumn] = []
        taken: set[str] = set()
        for alias, column in refs:
            name = column if names.count(column) == 1 else f"{alias}_{column}"
            while name.lower() in taken or name.lower() in RESERVED:
                name += "_"
            taken.add(name.lower())
            type_ = self.view.relation(alias).schema.column(column).type
            columns.append(OutputColumn(name, ColumnRef(alias, column), type_))
        return tuple(columns)

    def _is_distinct(self, component: list[str], shown: set[_Ref], joins: tuple[EquiJoin, ...]) -> bool:
        """Whether a key of every occurrence is shown, or equal to something shown."""
        known = set(shown)
        grown = True
        while grown:
            grown = False
            for join in joins:
                pair = {(join.left.occurrence, join.left.column), (join.right.occurrence, join.right.column)}
                if pair & known and not pair <= known:
                    known |= pair
                    grown = True
            for alias in component:
                # A shown key determines the whole row, so all its columns are as good as shown.
                schema = self.view.relation(alias).schema
                whole = {(alias, c.name) for c in schema.columns}
                if schema.key and {(alias, k) for k in schema.key} <= known and not whole <= known:
                    known |= whole
                    grown = True
        return all(
            bool(self.view.relation(a).schema.key)
            and {(a, k) for k in self.view.relation(a).schema.key} <= known
            for a in component
        )

    def _edges(self, node_of: Mapping[str, int], output: Mapping[_Ref, tuple[int, str]]) -> tuple[Edge, ...]:
        pairs: dict[tuple[int, int], list[tuple[str, str]]] = {}
        for left, right in self.equalities:
            if node_of[left[0]] == node_of[right[0]]:
                continue
            (i, a), (j, b) = output[left], output[right]
            if i > j:
                (i, a), (j, b) = (j, b), (i, a)
            if (a, b) not in pairs.setdefault((i, j), []):
                pairs[i, j].append((a, b))
        return tuple(Edge(i, j, tuple(on)) for (i, j), on in pairs.items())

    def _check_connected(
        self, nodes: tuple[Node, ...], edges: tuple[Edge, ...], filters: tuple[exp.Expr, ...]
    ) -> None:
        reached = {0}
        links = [{edge.left, edge.right} for edge in edges] + [nodes_read(f) for f in filters]
        grown = True
        while grown:
            grown = False
            for link in links:
                if link & reached and not link <= reached:
                    reached |= link
                    grown = True
        if len(reached) < len(nodes) and not self.allow_cross_join:
            apart = ", ".join(node.name for i, node in enumerate(nodes) if i not in reached)
            raise ViewDefinitionError(
                f"no predicate connects {apart} with the rest of the view; "
                "add a join condition or allow cross joins explicitly"
            )


_COMPARISONS: Mapping[type[exp.Expr], Operator] = {
    exp.EQ: Operator.EQ,
    exp.NEQ: Operator.NE,
    exp.LT: Operator.LT,
    exp.LTE: Operator.LE,
    exp.GT: Operator.GT,
    exp.GTE: Operator.GE,
}


def _ref(column: exp.Column) -> ColumnRef:
    return ColumnRef(column.table, column.name)


def _literal(expression: exp.Expr, type_: pa.DataType) -> Literal | None:
    """A constant in the type of the column it is compared with; None if it does not fit exactly."""
    expression = expression.unnest()
    negative = isinstance(expression, exp.Neg)
    if negative:
        expression = expression.this.unnest()
    if isinstance(expression, exp.Boolean):
        return Literal(bool(expression.this), type_) if pa.types.is_boolean(type_) else None
    if not isinstance(expression, exp.Literal):
        return None
    text = f"-{expression.name}" if negative else expression.name
    try:
        if expression.is_string:
            if pa.types.is_string(type_):
                return Literal(text, type_)
            if pa.types.is_date(type_):
                return Literal(datetime.date.fromisoformat(text).isoformat(), type_)
            if pa.types.is_timestamp(type_) and type_.tz is None:
                moment = datetime.datetime.fromisoformat(text)
                return Literal(moment.isoformat(sep=" "), type_) if moment.tzinfo is None else None
            return None
        if pa.types.is_integer(type_):
            return Literal(int(text), type_)
        if pa.types.is_floating(type_):
            number = float(text)
            # Sources do not agree on what is larger than any number of theirs.
            return Literal(number, type_) if math.isfinite(number) else None
        if pa.types.is_decimal(type_):
            exact = decimal.Decimal(text)
            scaled = exact.quantize(decimal.Decimal(1).scaleb(-type_.scale))
            return Literal(str(scaled), type_) if scaled == exact else None
    except (ValueError, decimal.InvalidOperation):
        return None
    return None


def _over_nodes(
    expression: exp.Expr, output: Mapping[_Ref, tuple[int, str]], step: Callable[[], None]
) -> exp.Expr:
    """The expression with `<alias>.<column>` replaced by `n<i>.<output column>`."""

    def replace(part: exp.Expr) -> exp.Expr:
        step()
        if isinstance(part, exp.Column):
            return node_column(*output[part.table, part.name])
        return part

    return expression.copy().transform(replace)


def _result_schema(
    nodes: tuple[Node, ...],
    projection: tuple[tuple[str, exp.Expr], ...],
    filters: tuple[exp.Expr, ...],
) -> pa.Schema:
    """The view's columns and types, as the embedded engine types them; this also checks all types."""
    columns = ", ".join(
        f"{e.sql(dialect=DIALECT)} AS {exp.to_identifier(name, quoted=True).sql(dialect=DIALECT)}"
        for name, e in projection
    )
    where = " AND ".join(f"({f.sql(dialect=DIALECT)})" for f in filters)
    with duckdb.connect() as connection:
        for i, node in enumerate(nodes):
            for field in node.schema:
                duckdb_type(field.type)
            connection.register(f"n{i}", node.schema.empty_table())
        tables = ", ".join(f"n{i}" for i in range(len(nodes)))
        sql = f"SELECT {columns} FROM {tables}" + (f" WHERE {where}" if where else "")
        try:
            found = connection.sql(sql).to_arrow_table().schema
        except duckdb.Error as error:
            raise ViewDefinitionError(f"type error in the view: {_first_line(error)}") from None
    fields = []
    for (name, expression), field in zip(projection, found, strict=True):
        type_ = field.type
        if isinstance(expression, exp.Column):
            type_ = nodes[int(expression.table[1:])].schema.field(expression.name).type
        elif pa.types.is_timestamp(type_):
            type_ = pa.timestamp("us", "UTC" if type_.tz else None)
        elif pa.types.is_null(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
            type_ = pa.string()
        duckdb_type(type_)
        fields.append(pa.field(name, type_))
    return pa.schema(fields)


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0]
    return text.split(": ", 1)[-1]


def readable_sql(local_view: LocalView) -> str:
    """The local view as SQL for people to read; nothing executes it."""
    return "\n".join(_readable_lines(local_view))


def _readable_lines(view: LocalView) -> Iterator[str]:
    from algebra.assembly import predicate_to_sql

    def name(ref: ColumnRef) -> str:
        return f"{ref.occurrence}.{ref.column}"

    shown = [name(c.source) + (f" AS {c.name}" if c.name != c.source.column else "") for c in view.columns]
    yield f"SELECT {', '.join(shown)}"
    tables = [o.relation if o.alias == o.relation else f"{o.relation} {o.alias}" for o in view.occurrences]
    yield f"FROM {', '.join(tables)}"
    node_of = {o.alias: i for i, o in enumerate(view.occurrences)}
    conditions = [f"{name(j.left)} = {name(j.right)}" for j in view.joins]
    for predicate in view.predicates:

        def alias(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column):
                return exp.column(part.name, table=view.occurrences[int(part.table[1:])].alias)
            return part

        conditions.append(predicate_to_sql(predicate, node_of).transform(alias).sql(dialect=DIALECT))
    if conditions:
        yield f"WHERE {' AND '.join(conditions)}"
