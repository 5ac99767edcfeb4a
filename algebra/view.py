"""Views as users write them: SQL over `source.relation`, parsed, qualified, and refused with a position.

The language is select-project-join: inner joins, comma joins, WHERE, and deterministic scalar expressions.
Everything else is refused by name and place, because a view that is kept wrongly is worse than one that is
not kept. Engines agree on all of it but some corners of casts and text functions; a view keeps its engine
where that matters (`AssemblyQuery.is_portable`).

Division is defined here once for all engines: it is done in DOUBLE, and by zero gives NULL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.duckdb import DuckDBParser

from algebra.assembly import KEY_PREFIX, RESERVED
from algebra.errors import LimitExceededError, NotFoundError, TextPosition, ViewDefinitionError
from algebra.schema import Catalog, RelationSchema

DIALECT = "duckdb"

LONGEST_SQL = 100_000
"""Characters of a view's or a query's text at most."""
MOST_RELATIONS = 100
"""Relations of a view at most, each as often as it is in FROM."""
PARSING_SECONDS = 3.0
"""What one text may take of a core until it is understood."""


@dataclass(frozen=True)
class BoundRelation:
    """One relation occurrence of a view: its alias, its source and its schema."""

    alias: str
    source: str
    schema: RelationSchema


@dataclass(frozen=True)
class BoundView:
    """A view whose every column is resolved: columns appear as `<alias>.<column>` with exact names."""

    relations: tuple[BoundRelation, ...]
    projection: tuple[tuple[str, exp.Expr], ...]
    conjuncts: tuple[exp.Expr, ...]

    def relation(self, alias: str) -> BoundRelation:
        return next(r for r in self.relations if r.alias == alias)


_TABLE_CLAUSES = {
    "joins": "nested joins are",
    "pivots": "PIVOT is",
    "sample": "TABLESAMPLE is",
    "only": "ONLY is",
    "when": "AT is",
    "version": "AS OF is",
    "ordinality": "WITH ORDINALITY is",
    "hints": "WITH is",
}
_CLAUSES = {
    "distinct": "DISTINCT",
    "group": "GROUP BY",
    "having": "HAVING",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "windows": "WINDOW",
    "qualify": "QUALIFY",
    "with_": "WITH",
    "into": "INTO",
    "laterals": "LATERAL",
    "pivots": "PIVOT",
    "sample": "TABLESAMPLE",
    "prewhere": "PREWHERE",
    "connect": "CONNECT BY",
    "cluster": "CLUSTER BY",
    "kind": "AS STRUCT",
    "locks": "FOR UPDATE",
}

_ALLOWED: tuple[type[exp.Expr], ...] = (
    exp.Column,
    exp.Identifier,
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.Paren,
    exp.Alias,
    exp.Star,
    exp.And,
    exp.Or,
    exp.Not,
    exp.EQ,
    exp.NEQ,
    exp.LT,
    exp.LTE,
    exp.GT,
    exp.GTE,
    exp.Is,
    exp.In,
    exp.Between,
    exp.Like,
    exp.Add,
    exp.Sub,
    exp.Mul,
    exp.Div,
    exp.Neg,
    exp.DPipe,
    exp.Case,
    exp.If,
    exp.Coalesce,
    exp.Nullif,
    exp.Cast,
    exp.DataType,
    exp.DataTypeParam,
    exp.Upper,
    exp.Lower,
    exp.Length,
    exp.Abs,
    exp.Substring,
    exp.Trim,
    exp.Greatest,
    exp.Least,
    exp.Year,
    exp.Month,
    exp.Day,
)


def bind_view(sql: str, catalogs: Mapping[str, Catalog]) -> BoundView:
    """The view that a SQL text defines over these sources; ViewDefinitionError if it cannot be kept."""
    with bounded_sql(sql) as step:
        return _Binder(sql, catalogs, step).bind()


@contextmanager
def bounded_sql(sql: str, look: Callable[[], None] = lambda: None) -> Iterator[Callable[[], None]]:
    """Work on a SQL text, which must not be too long, nor nested deeper than a parser can follow.

    Gives what is to be called at each step of the work: it raises LimitExceededError after `PARSING_SECONDS`
    of this thread, and whatever `look` raises.
    """
    end = time.thread_time() + PARSING_SECONDS

    def step() -> None:
        look()
        if time.thread_time() > end:
            raise LimitExceededError(
                "the SQL text takes too long to understand; write a shorter or flatter one"
            )

    if len(sql) > LONGEST_SQL:
        raise ViewDefinitionError(f"the SQL text has {len(sql)} characters; at most {LONGEST_SQL} are taken")
    if "\x00" in sql or any("\ud800" <= character <= "\udfff" for character in sql):
        raise ViewDefinitionError("the SQL text holds characters that no text has")
    try:
        yield step
    except RecursionError:
        raise ViewDefinitionError(
            "the SQL text is nested too deeply; write it with fewer parentheses"
        ) from None


def parse_sql(sql: str, step: Callable[[], None]) -> list[exp.Expr]:
    """The statements of a SQL text. Calls `step`, which may raise, whenever it goes on by a token."""
    parser = _SteppingParser(dialect=DIALECT)
    parser.step = step
    statements = parser.parse(sqlglot.tokenize(sql, dialect=DIALECT), sql)
    return [statement for statement in statements if statement is not None]


class _SteppingParser(DuckDBParser):
    """A parser that can be ended: each level of `date(date(1))` doubles its work, for it tries one way after
    the other, and at each subscript of `a[1][1]` it looks through all that is before."""

    step: Callable[[], None] = staticmethod(lambda: None)

    def _advance(self, times: int = 1) -> None:
        self.step()
        super()._advance(times)


class _Binder:
    def __init__(self, sql: str, catalogs: Mapping[str, Catalog], step: Callable[[], None]) -> None:
        self.sql = sql
        self.catalogs = catalogs
        self.step = step
        self.relations: list[BoundRelation] = []

    def bind(self) -> BoundView:
        select = self._parse()
        conjuncts: list[exp.Expr] = []
        from_ = select.args.get("from_")
        if from_ is None:
            raise self._refuse("a view needs a FROM clause", select)
        self._add_relation(from_.this)
        for join in select.args.get("joins") or []:
            conjuncts += self._bind_join(join)
        where = select.args.get("where")
        if where is not None:
            conjuncts += self._conjuncts(where.this)
        projection = self._projection(select)
        return BoundView(tuple(self.relations), tuple(projection), tuple(conjuncts))

    def _parse(self) -> exp.Select:
        try:
            statements = parse_sql(self.sql, self.step)
        except ParseError as error:
            first = error.errors[0] if error.errors else {}
            position = None
            if "line" in first:
                length = max(len(first.get("highlight") or ""), 1)
                position = TextPosition(first["line"], max(first["col"] - length + 1, 1))
            description = str(first.get("description") or error).split(" but got ")[0].rstrip(".")
            raise ViewDefinitionError(f"SQL syntax error: {description}", position) from None
        except TokenError as error:
            raise ViewDefinitionError(f"SQL syntax error: {str(error).splitlines()[0]}") from None
        if len(statements) != 1:
            raise ViewDefinitionError(f"a view is one SELECT statement, not {len(statements)}")
        statement = statements[0]
        if isinstance(statement, exp.SetOperation):
            raise self._refuse(
                f"{statement.key.upper()} is not supported in a view", statement, statement.key
            )
        if not isinstance(statement, exp.Select):
            raise self._refuse(f"a view is a SELECT, not {statement.key.upper()}", statement)
        for key, name in _CLAUSES.items():
            clause = statement.args.get(key)
            if clause:
                node = clause[0] if isinstance(clause, list) else clause
                node = node if isinstance(node, exp.Expr) else statement
                raise self._refuse(f"{name} is not supported in a view", node, name.split()[0])
        return statement

    def _add_relation(self, table: exp.Expr) -> None:
        if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
            raise self._refuse(f"{_called(table)} is not supported in FROM", table)
        for key, clause in _TABLE_CLAUSES.items():
            if table.args.get(key):
                raise self._refuse(f"{clause} not supported in FROM", table)
        if table.alias_column_names:
            raise self._refuse("a list of column names is not supported in FROM", table)
        if len(self.relations) == MOST_RELATIONS:
            raise self._refuse(f"a view has at most {MOST_RELATIONS} relations", table)
        parts = [part.name for part in table.parts]
        if len(parts) < 2:
            raise self._refuse(f"table {parts[0]!r} names no source; write source.{parts[0]}", table)
        source, relation = parts[0], ".".join(parts[1:])
        catalog = self.catalogs.get(source)
        if catalog is None:
            known = ", ".join(sorted(self.catalogs)) or "none"
            raise self._refuse(f"unknown source {source!r}; configured sources: {known}", table)
        name = _find(relation, catalog.relations)
        if name is None:
            try:
                catalog.relation(relation)
            except NotFoundError as error:
                raise self._refuse(str(error), table) from None
        alias = table.alias or parts[-1]
        if any(r.alias.lower() == alias.lower() for r in self.relations):
            raise self._refuse(f"table name {alias!r} is used twice; give one an alias", table)
        assert name is not None
        self.relations.append(BoundRelation(alias, source, catalog.relations[name]))

    def _bind_join(self, join: exp.Join) -> list[exp.Expr]:
        kind = " ".join(str(join.args.get(k) or "") for k in ("method", "side", "kind")).strip().upper()
        if kind not in ("", "INNER", "CROSS"):
            raise self._refuse(
                f"{kind} JOIN is not supported in a view; only inner joins are", join.this, kind.split()[0]
            )
        self._add_relation(join.this)
        using = join.args.get("using")
        if using:
            return [self._using(identifier) for identifier in using]
        on = join.args.get("on")
        return self._conjuncts(on) if on is not None else []

    def _using(self, identifier: exp.Expr) -> exp.Expr:
        *before, joined = self.relations
        left = [r for r in before if _find_column(identifier.name, r.schema)]
        right = _find_column(identifier.name, joined.schema)
        if len(left) != 1 or right is None:
            raise self._refuse(f"column {identifier.name!r} in USING is unknown or ambiguous", identifier)
        name = _find_column(identifier.name, left[0].schema)
        assert name is not None
        return exp.EQ(this=column_of(left[0].alias, name), expression=column_of(joined.alias, right))

    def _conjuncts(self, condition: exp.Expr) -> list[exp.Expr]:
        return [self._resolve(part) for part in _flatten_and(condition)]

    def _projection(self, select: exp.Select) -> list[tuple[str, exp.Expr]]:
        columns: list[tuple[str, exp.Expr]] = []
        for item in select.expressions:
            if isinstance(item, exp.Star):
                columns += self._star(item, self.relations)
            elif isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
                relation = self._find_relation(item.table, item)
                columns += self._star(item.this, [relation])
            else:
                name = item.alias if isinstance(item, exp.Alias) else item.name
                if not name:
                    raise self._refuse("a computed column needs a name: write ... AS name", item)
                expression = item.this if isinstance(item, exp.Alias) else item
                columns.append((name, self._resolve(expression)))
        seen: set[str] = set()
        for name, _ in columns:
            if name.lower() in seen:
                raise ViewDefinitionError(f"column {name!r} appears twice in the view; give one an alias")
            if name.lower() in RESERVED or name.lower().startswith(KEY_PREFIX):
                raise ViewDefinitionError(f"column name {name!r} is reserved; choose an alias")
            seen.add(name.lower())
        return columns

    def _star(self, star: exp.Expr, relations: list[BoundRelation]) -> list[tuple[str, exp.Expr]]:
        if any(star.args.get(k) for k in ("except_", "except", "replace", "rename")):
            raise self._refuse("* with EXCLUDE, REPLACE or RENAME is not supported", star)
        return [(c.name, column_of(r.alias, c.name)) for r in relations for c in r.schema.columns]

    def _resolve(self, expression: exp.Expr) -> exp.Expr:
        """The expression with every column resolved, and only allowed constructs in it."""
        for part in expression.walk():
            if not isinstance(part, _ALLOWED):
                raise self._refuse(f"{_called(part)} is not supported in a view", part)
            if isinstance(part, exp.In) and not part.expressions:
                raise self._refuse("IN with a subquery is not supported in a view", part)
            if isinstance(part, exp.Like) and part.args.get("escape"):
                raise self._refuse("LIKE with ESCAPE is not supported in a view", part)
            if isinstance(part, exp.Between) and part.args.get("symmetric"):
                raise self._refuse("BETWEEN SYMMETRIC is not supported in a view", part)

        def resolve(part: exp.Expr) -> exp.Expr:
            self.step()
            if isinstance(part, exp.Column):
                return self._resolve_column(part)
            return part

        def define_division(part: exp.Expr) -> exp.Expr:
            self.step()
            defined = isinstance(part.this, exp.Cast) and isinstance(part.args.get("expression"), exp.Nullif)
            if isinstance(part, exp.Div) and not defined:
                divisor = exp.Nullif(
                    this=exp.cast(part.expression, "DOUBLE"), expression=exp.cast("0", "DOUBLE")
                )
                return exp.Div(
                    this=exp.cast(part.this, "DOUBLE"), expression=divisor, typed=False, safe=False
                )
            return part

        return expression.copy().transform(resolve).transform(define_division)

    def _resolve_column(self, column: exp.Column) -> exp.Expr:
        parts = [part.name for part in column.parts]
        if len(parts) > 2:
            # source.relation.column, allowed where it names one occurrence without an alias of its own
            source, relation, name = parts[0], ".".join(parts[1:-1]), parts[-1]
            matches = [
                r for r in self.relations if r.source == source and r.schema.name.lower() == relation.lower()
            ]
            if len(matches) != 1:
                raise self._refuse(f"unknown or ambiguous table {source}.{relation}", column)
            candidates = matches
        elif len(parts) == 2:
            candidates = [self._find_relation(parts[0], column)]
        else:
            candidates = [r for r in self.relations if _find_column(parts[0], r.schema)]
            if len(candidates) > 1:
                tables = ", ".join(r.alias for r in candidates)
                raise self._refuse(f"column {parts[0]!r} is ambiguous: it is in {tables}", column)
        name = parts[-1]
        found = _find_column(name, candidates[0].schema) if candidates else None
        if found is None:
            where = f"table {parts[0]!r}" if len(parts) == 2 else "any table of this view"
            raise self._refuse(f"unknown column {name!r} in {where}", column)
        return column_of(candidates[0].alias, found)

    def _find_relation(self, alias: str, at: exp.Expr) -> BoundRelation:
        for relation in self.relations:
            if relation.alias.lower() == alias.lower():
                return relation
        raise self._refuse(f"unknown table {alias!r}", at)

    def _refuse(self, problem: str, node: exp.Expr, keyword: str | None = None) -> ViewDefinitionError:
        return ViewDefinitionError(problem, self._position(node, keyword))

    def _position(self, node: exp.Expr, keyword: str | None) -> TextPosition | None:
        starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
        start = min(starts) if starts else None
        if keyword is not None:
            tokens = [
                t
                for t in sqlglot.tokenize(self.sql, dialect=DIALECT)
                if t.text.upper().startswith(keyword.upper())
            ]
            before = [t.start for t in tokens if start is None or t.start <= start]
            start = before[-1] if before else (tokens[0].start if tokens else start)
        if start is None:
            return None
        line = self.sql.count("\n", 0, start) + 1
        return TextPosition(line, start - (self.sql.rfind("\n", 0, start) + 1) + 1)


def column_of(alias: str, name: str) -> exp.Column:
    """The expression `<alias>.<column>`."""
    return exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(alias, quoted=True))


def _flatten_and(condition: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.And):
        yield from _flatten_and(condition.this)
        yield from _flatten_and(condition.expression)
    elif isinstance(condition, exp.Between) and not condition.args.get("symmetric"):
        yield exp.GTE(this=condition.this.copy(), expression=condition.args["low"].copy())
        yield exp.LTE(this=condition.this.copy(), expression=condition.args["high"].copy())
    else:
        yield condition


def _find(name: str, known: Mapping[str, RelationSchema]) -> str | None:
    """The exact name, or the only one that differs in case alone."""
    if name in known:
        return name
    matches = [k for k in known if k.lower() == name.lower()]
    return matches[0] if len(matches) == 1 else None


def _find_column(name: str, schema: RelationSchema) -> str | None:
    if schema.has_column(name):
        return name
    matches = [c.name for c in schema.columns if c.name.lower() == name.lower()]
    return matches[0] if len(matches) == 1 else None


def _called(part: exp.Expr) -> str:
    """What a person would call this construct."""
    if isinstance(part, exp.AggFunc):
        return f"aggregate {part.sql_name()}"
    if isinstance(part, exp.Window):
        return "a window function"
    if isinstance(part, (exp.Subquery, exp.Select, exp.Exists)):
        return "a subquery"
    if isinstance(part, exp.Anonymous):
        return f"function {part.name}"
    if isinstance(part, exp.Func):
        return f"function {part.sql_name()}"
    return type(part).__name__.upper()
