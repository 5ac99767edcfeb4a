"""A user's SELECT over views: what may be run, and with which views.

Problem: the SQL comes from a client and runs beside the mediator, next to the files of all views.

Wrong ways: searching the text for forbidden words; trusting a parser alone, for two parsers never agree on
everything.

Chosen way: two fences. `sqlglot` parses the text, and whatever is not one SELECT over known views is refused
with its name; a name is a common table expression only where that is in scope, for elsewhere DuckDB would
take it as the name of a file. What it accepts runs in a process and a DuckDB of its own that can open the
files of these views and no others, load no extensions and change no settings (see `client_query.py`),
whatever the text says. As these files hold hidden columns too, DuckDB's own parser is asked there once more
which tables and functions the text names (see `query_worker.py`).
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Mapping

import duckdb
from sqlglot import exp
from sqlglot.errors import SqlglotError

from algebra.errors import (
    DataError,
    LockstepError,
    NotFoundError,
    RefusedError,
    TextPosition,
    ViewDefinitionError,
)
from algebra.view import bounded_sql, parse_sql

TABLE_FUNCTIONS = frozenset({"generate_series", "range", "unnest", "explode"})
_RELATIONS = (exp.Table, exp.Subquery, exp.Lateral, exp.Unnest, exp.Values)
FORBIDDEN = re.compile(
    r"(?!pg_typeof\Z)((read|scan|write|parquet|duckdb|pragma|sniff|pg|iceberg|delta|sqlite|postgres|mysql|arrow)_\w+"
    r"|glob|getenv|query|query_table|current_setting|getvariable|which_secret|load_aws_credentials"
    r"|nextval|currval|sql_auto_complete|json_(execute|serialize|deserialize)_\w+|from_substrait|from_substrait_json"
    r"|seq_scan|index_scan|repeat_row|summary|test_all_types|checkpoint|force_checkpoint)",
    re.IGNORECASE,
)
_TEXT_ERRORS = (
    duckdb.ParserException,
    duckdb.SyntaxException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.NotImplementedException,
)
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class NoSuchViewError(NotFoundError):
    """There is no view of that name; the message tells which ones there are."""

    def __init__(self, name: str, known: Collection[str]) -> None:
        listing = f"the views are: {', '.join(sorted(known))}" if known else "there are no views yet"
        super().__init__(f"there is no view {name}; {listing}")
        self.name = name


def folded(name: str) -> str:
    """What DuckDB compares of a name: it ignores the case of ASCII's letters, and of no others.

    Python's `casefold` takes more for equal. A name that only it takes for one of ours is one of DuckDB's
    catalog, or of a file.
    """
    return name.translate(_LOWER)


def views_in(sql: str, known: Collection[str], look: Callable[[], None] = lambda: None) -> dict[str, str]:
    """The views that a SELECT reads, as {name in the text, folded: view}.

    Raises ViewDefinitionError for bad SQL, RefusedError for anything but one SELECT over views,
    LimitExceededError for what takes too long to tell, and NoSuchViewError for a table that is no view.
    `look` is called all the while, and may raise.
    """
    with bounded_sql(sql, look) as step:
        return _views_in(sql, known, step)


def _views_in(sql: str, known: Collection[str], step: Callable[[], None]) -> dict[str, str]:
    tree = _one_select(sql, step)
    _check_functions(tree)
    _check_relations(tree)
    scopes = {id(found): _numbers(found) for found in tree.find_all(exp.With)}
    exact, by_folded = frozenset(known), {folded(view): view for view in sorted(known, reverse=True)}
    used: dict[str, str] = {}
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Func):
            continue
        step()
        name = table.name
        if table.db or table.catalog:
            raise NoSuchViewError(table.sql(dialect="duckdb"), known)
        if _is_cte(table, scopes):
            continue
        # DuckDB ignores case, so an exact match only goes first.
        view = name if name in exact else by_folded.get(folded(name))
        if view is None:
            raise NoSuchViewError(repr(name), known)
        if used.setdefault(folded(name), view) != view:
            raise RefusedError(f"view names that differ only in case must not meet in a query: {name!r}")
    return used


def _numbers(found: exp.With) -> dict[str, int]:
    """Which query of a WITH has a name, folded, as its own."""
    return {folded(cte.alias): number for number, cte in reversed([*enumerate(found.expressions)])}


def _is_cte(table: exp.Table, scopes: Mapping[int, Mapping[str, int]]) -> bool:
    """Whether the name is one of a WITH whose scope the reference is in; `scopes` has the names by the WITH.

    A WITH holds for the query it belongs to and all within; its own queries see the ones before them, and a
    recursive one also itself, in the second part of its UNION. In doubt it is none, and has to be a view.
    """
    path: list[exp.Expr] = []
    wanted = folded(table.name)
    inside: exp.Expr = table
    while inside.parent is not None:
        outside = inside.parent
        if isinstance(outside, exp.With):
            number = scopes[id(outside)].get(wanted)
            assert inside.index is not None, "a part of a list has its place there"
            if number is not None and number < inside.index:
                return True
            union = inside.this
            recurs = isinstance(union, exp.SetOperation) and any(node is union.expression for node in path)
            if outside.args.get("recursive") and recurs and wanted == folded(inside.alias):
                return True
        elif isinstance(outside, exp.Query) and not isinstance(inside, exp.With):
            found = outside.args.get("with_")
            if found is not None and wanted in scopes[id(found)]:
                return True
        path.append(inside)
        inside = outside
    return False


def query_error(error: Exception) -> LockstepError:
    """DuckDB's complaint about a query as one line: about its text, or about the rows it met."""
    if isinstance(error, duckdb.PermissionException):
        return RefusedError(one_line(error))
    if isinstance(error, _TEXT_ERRORS):
        return ViewDefinitionError(one_line(error))
    return DataError(one_line(error))


def one_line(error: Exception) -> str:
    """The first line of a message, which says what is wrong; the others point into the text."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _one_select(sql: str, step: Callable[[], None]) -> exp.Query:
    try:
        trees = parse_sql(sql, step)
    except SqlglotError as error:
        raise ViewDefinitionError(*_problem(error)) from None
    if len(trees) != 1:
        raise RefusedError(f"a query is one SELECT; this text holds {len(trees)} statements")
    tree = trees[0]
    if isinstance(tree, exp.Condition | exp.Alias):
        raise ViewDefinitionError(f"a query is one SELECT; {sql.split()[0]!r} does not begin one")
    if not isinstance(tree, exp.Query):
        raise RefusedError(f"a query is one SELECT; {tree.key.upper()} is refused")
    for forbidden in (exp.Into, exp.DML, exp.DDL, exp.Command, exp.Describe, exp.Summarize, exp.Show):
        found = next((node for node in tree.find_all(forbidden) if not isinstance(node, exp.Query)), None)
        if found is not None:
            raise RefusedError(f"a query is one SELECT; {found.key.upper()} is refused")
    return tree


def _check_functions(tree: exp.Query) -> None:
    for function in tree.find_all(exp.Func):
        name = _function_name(function)
        if FORBIDDEN.fullmatch(name):
            raise RefusedError(f"the function {name} must not be used in a query")


def _check_relations(tree: exp.Query) -> None:
    """Refuses what is no relation, in a FROM and by LATERAL: views are, SELECTs, rows, and few functions."""
    for clause in tree.find_all(exp.From, exp.Join, exp.Lateral, exp.Table):
        relation = clause.this
        if isinstance(relation, exp.Func):
            function = _function_name(relation)
            if function not in TABLE_FUNCTIONS:
                raise RefusedError(f"the function {function} must not be used in a query; name views instead")
        elif not isinstance(clause, exp.Table) and not isinstance(relation, _RELATIONS):
            raise RefusedError(
                f"{clause.sql(dialect='duckdb')} must not be used in a query; name views instead"
            )


def _function_name(function: exp.Func) -> str:
    name = function.name if isinstance(function, exp.Anonymous) else function.sql_name()
    return folded(name)


def _problem(error: SqlglotError) -> tuple[str, TextPosition | None]:
    details = getattr(error, "errors", None)
    if not details:
        return one_line(error), None
    first = details[0]
    return str(first["description"]), TextPosition(int(first["line"]), int(first["col"]))
