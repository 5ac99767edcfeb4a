"""Local view and keys to one SQLite SELECT: bound values only, comparisons by value.

Keys travel as one bound JSON text (`json_each`), so no temporary table and no write right is needed.
There are two ways to look them up, and each is several times slower than the other where it does not
belong. *By key*: for each key, look up its rows through an index; good for few matches. *By scan*: read
the whole table and test each row against the set of keys; good when a large part of the rows match. The
planner cannot know which (it does not look into the JSON), so the caller decides and the statement is
written so that it has no choice: CROSS JOIN fixes the order, a unary plus hides a column from indexes.

The driver cannot be interrupted: a statement that tests a huge product of tables for keys, and finds none,
would be at it for hours, and nobody asked whether to go on. So such a test lets about one in a thousand of
those pass that fail it. By them the caller gets a batch now and then, and looks at the time; `Select.holds`
tells them from the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from adapters.sqlite.rows import ResultColumn
from adapters.sqlite.schema import BaseTable, TableColumn, quoted
from adapters.sqlite.types import Comparison, Decimal, Integer, decimal_text
from algebra.errors import RefusedError
from algebra.expressions import Call, ColumnRef, Expression, Literal, Operator
from algebra.local_view import Keys, LocalView

Parameter = int | float | str

_NOW_AND_THEN = "random() & 1023 = 0"


@dataclass(frozen=True)
class Select:
    """A statement in the form that `read_rows` takes.

    `holds`: SQL, what a row must meet to count; "" where all do.
    """

    columns: tuple[ResultColumn, ...]
    tail: str
    parameters: tuple[Parameter, ...]
    holds: str = ""


@dataclass(frozen=True)
class KeyColumn:
    """One key column: which occurrence's column it restricts."""

    occurrence: str
    table: BaseTable
    column: TableColumn

    @property
    def sql(self) -> str:
        return f"{quoted(self.occurrence)}.{quoted(self.column.name)}"


class FetchBuilder:
    """Writes the SELECTs for one local view over the given tables (by relation name)."""

    def __init__(self, query: LocalView, tables: Mapping[str, BaseTable]) -> None:
        self._query = query
        self._tables = {o.alias: tables[o.relation] for o in query.occurrences}

    def all_rows(self) -> Select:
        """Every row of the local view."""
        return self._select(self._from(), self._conditions(), [])

    def by_key(self, keys: Keys, first: str) -> Select:
        """Rows that match a key, each key looked up on its own, in the occurrence `first` to begin with."""
        found = self.key_columns(keys)
        matches = " AND ".join(
            equal(column, key_value(column.column, "k.value", place, len(found)))
            for place, column in enumerate(found)
        )
        rest = [o.alias for o in self._query.occurrences if o.alias != first]
        source = f"json_each(?) AS k CROSS JOIN {self._occurrence(first)}"
        source += "".join(f" JOIN {self._occurrence(alias)}" for alias in rest)
        return self._select(source, [matches, *self._conditions()], [key_json(found, keys)])

    def by_scan(self, keys: Keys) -> Select:
        """Rows that match a key, every row tested against the set of keys."""
        found = self.key_columns(keys)
        left = ", ".join(_hidden(column) for column in found)
        right = ", ".join(
            key_value(column.column, "k.value", place, len(found)) for place, column in enumerate(found)
        )
        # By number: `holds` has it once more.
        condition = f"({left}) IN (SELECT {right} FROM json_each(?1) AS k)"
        holds = condition if len(self._tables) > 1 else ""
        tested = f"({condition} OR {_NOW_AND_THEN})" if holds else condition
        return self._select(self._from(), [tested, *self._conditions()], [key_json(found, keys)], holds)

    def count_by_key(self, column: KeyColumn, keys: Keys) -> tuple[str, tuple[Parameter, ...]]:
        """A statement that counts the rows of one occurrence that a single-column key matches."""
        condition = equal(column, key_value(column.column, "k.value", 0, 1))
        sql = f"SELECT count(*) FROM json_each(?) AS k CROSS JOIN {self._occurrence(column.occurrence)}"
        return f"{sql} ON {condition}", (key_json([column], keys),)

    def key_columns(self, keys: Keys) -> list[KeyColumn]:
        """What each key column restricts, in the order of the keys."""
        refs = [self._query.output(name).source for name in keys.columns]
        return [KeyColumn(ref.occurrence, self._tables[ref.occurrence], self._column(ref)) for ref in refs]

    def _select(
        self, source: str, conditions: Sequence[str], parameters: Sequence[Parameter], holds: str = ""
    ) -> Select:
        pushed, literals = self._pushed()
        where = " AND ".join([*conditions, *pushed])
        tail = f"FROM {source} WHERE {where}" if where else f"FROM {source}"
        return Select(self._columns(), tail, (*parameters, *literals), holds)

    def _columns(self) -> tuple[ResultColumn, ...]:
        result = []
        for output in self._query.columns:
            relation, column = self._tables[output.source.occurrence].name, self._column(output.source)
            origin = f"{self._query.source}.{relation}.{column.name}"
            result.append(ResultColumn(output.name, _sql(output.source), column.codec, origin))
        return tuple(result)

    def _from(self) -> str:
        return " JOIN ".join(self._occurrence(o.alias) for o in self._query.occurrences)

    def _occurrence(self, alias: str) -> str:
        return f"{quoted(self._tables[alias].name)} AS {quoted(alias)}"

    def _conditions(self) -> list[str]:
        return [
            _join_condition(_sql(j.left), self._column(j.left), _sql(j.right), self._column(j.right))
            for j in self._query.joins
        ]

    def _column(self, ref: ColumnRef) -> TableColumn:
        return self._tables[ref.occurrence].column(ref.column)

    def _pushed(self) -> tuple[list[str], list[Parameter]]:
        """The predicates that SQLite decides exactly as they are meant; the caller applies all again."""
        conditions, parameters = [], []
        for predicate in self._query.predicates:
            literals: list[Parameter] = []
            sql = self._predicate(predicate, literals)
            if sql is not None:
                conditions.append(sql)
                parameters += literals
        return conditions, parameters

    def _predicate(self, expression: Expression, literals: list[Parameter]) -> str | None:
        if not isinstance(expression, Call):
            return None
        operator, arguments = expression.operator, expression.arguments
        match operator:
            case Operator.AND | Operator.OR | Operator.NOT:
                parts = [self._predicate(argument, literals) for argument in arguments]
                if any(part is None for part in parts):
                    return None
                if operator is Operator.NOT:
                    return f"(NOT {parts[0]})"
                return "(" + f" {operator.value} ".join(part or "" for part in parts) + ")"
            case Operator.IS_NULL:
                argument = arguments[0]
                return f"({_sql(argument)} IS NULL)" if isinstance(argument, ColumnRef) else None
            case Operator.IN:
                return self._comparison(arguments[0], list(arguments[1:]), "IN", literals)
            case _:
                return self._comparison(arguments[0], [arguments[1]], operator.value, literals)

    def _comparison(
        self, left: Expression, right: list[Expression], operator: str, literals: list[Parameter]
    ) -> str | None:
        if not isinstance(left, ColumnRef) or not right:
            return None
        values = [_literal_parameter(self._column(left), other) for other in right]
        text = self._column(left).codec.comparison is Comparison.TEXT
        if any(value is None for value in values) or (text and operator not in ("=", "<>", "IN")):
            return None
        literals += [value for value in values if value is not None]
        # On the left: that side's collation decides, also for IN.
        sql = f"{_sql(left)} COLLATE BINARY" if text else _sql(left)
        if operator == "IN":
            return f"({sql} IN ({', '.join('?' * len(values))}))"
        return f"({sql} {operator} ?)"


def _sql(ref: ColumnRef) -> str:
    return f"{quoted(ref.occurrence)}.{quoted(ref.column)}"


def _literal_parameter(column: TableColumn, expression: Expression) -> Parameter | None:
    """The literal as SQLite value if comparing the column with it means there what it means here."""
    if not isinstance(expression, Literal) or expression.value is None or not column.codec.plain:
        return None
    value, type_, arrow = expression.value, expression.type, column.codec.arrow
    if pa.types.is_boolean(arrow) and pa.types.is_boolean(type_):
        return int(value)
    if pa.types.is_int64(arrow) and pa.types.is_integer(type_):
        return int(value)
    if pa.types.is_float64(arrow) and pa.types.is_floating(type_) and value == value:
        return float(value)
    if pa.types.is_string(arrow) and (pa.types.is_string(type_) or pa.types.is_large_string(type_)):
        return str(value)
    return None


def equal(column: KeyColumn, value: str) -> str:
    """SQL: the key column equals that value, by value, in a form an index can serve where one may."""
    return f"{column.column.codec.comparable(column.sql)} = {value}{_binary(column.column)}"


def _binary(column: TableColumn) -> str:
    return " COLLATE BINARY" if column.codec.comparison is Comparison.TEXT else ""


def _hidden(column: KeyColumn) -> str:
    """SQL: the key column's value, in a form that no index serves."""
    return f"+{column.column.codec.comparable(column.sql)}{_binary(column.column)}"


def key_value(column: TableColumn, json: str, place: int, width: int) -> str:
    """SQL: the value at this place of one key; a key of several columns is a JSON array."""
    return column.codec.key_sql(json if width == 1 else f"json_extract({json}, '$[{place}]')")


def key_json(columns: Sequence[KeyColumn], keys: Keys) -> str:
    """All keys as one JSON text."""
    values = [
        column.column.codec.key(keys.values[name].combine_chunks().cast(column.column.codec.arrow))
        for column, name in zip(columns, keys.columns, strict=True)
    ]
    rows: object = values[0] if len(values) == 1 else list(zip(*values, strict=True))
    return json.dumps(rows, ensure_ascii=False)


def _join_condition(left: str, left_column: TableColumn, right: str, right_column: TableColumn) -> str:
    """SQL: two columns are equal by value."""
    one, other = left_column.codec, right_column.codec
    kinds = {one.comparison, other.comparison}
    if Comparison.DECIMAL in kinds and all(isinstance(codec, Decimal | Integer) for codec in (one, other)):
        scale = max(codec.scale for codec in (one, other) if isinstance(codec, Decimal))
        return f"{decimal_text(left, scale)} = {decimal_text(right, scale)}"
    if len(kinds) > 1:
        raise RefusedError(
            f"cannot join {left_column.name!r} ({one.arrow}) with {right_column.name!r} ({other.arrow})"
        )
    return f"{one.comparable(left)} = {other.comparable(right)}{_binary(left_column)}"
