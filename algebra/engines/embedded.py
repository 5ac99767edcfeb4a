"""The embedded engine: joins in an in-process DuckDB, Arrow in and Arrow (or Parquet) out.

Wrappers use it for their local sweeps and mediators for small and middling joins; it needs no Java.

A single transaction at rest is a handful of rows, and planning a statement costs more than they do. So what
concerns few rows, and evaluates no expression, is left to the reference engine.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from algebra.assembly import HIGH, LOW, SEQUENCE, VERSION, AssemblyQuery, Node
from algebra.engines.contract import EARLIEST, LATEST, Engine, Extent, Relation, Start, ViewChange
from algebra.engines.reference import ReferenceEngine
from algebra.errors import OrderingViolationError
from algebra.local_view import Keys
from algebra.plan import Hop, SweepPlan
from algebra.schema import COUNT
from algebra.scratch import ScratchFolder
from algebra.sql_types import duckdb_type

DIALECT = "duckdb"
PARQUET_OPTIONS = "FORMAT parquet, COMPRESSION snappy, ROW_GROUP_SIZE 262144"


def quote(identifier: str) -> str:
    """An identifier quoted for DuckDB."""
    return exp.to_identifier(identifier, quoted=True).sql(dialect=DIALECT)


class EmbeddedEngine(Engine):
    """Joins in DuckDB. `memory_limit` bounds DuckDB's buffers; beyond it, joins spill to a temporary folder.

    `few_rows` is up to how many rows a computation is done row by row; 0 means never.
    """

    name = "duckdb"

    def __init__(
        self,
        *,
        threads: int = 2,
        memory_limit: str = "1GiB",
        few_rows: int = 64,
    ) -> None:
        # DuckDB's own choice is the working directory, which is not ours to fill.
        self._spill = ScratchFolder("engine")
        self._connection = duckdb.connect(
            config={
                "threads": threads,
                "memory_limit": memory_limit,
                "preserve_insertion_order": "false",
                "temp_directory": str(self._spill.path),
            }
        )
        # For cursors too. The machine's own time zone would make views depend on where they are kept.
        self._connection.execute("SET GLOBAL TimeZone = 'UTC'")
        self._lock = threading.Lock()
        self._few_rows = few_rows
        self._by_row = ReferenceEngine()

    def close(self) -> None:
        self._connection.close()
        self._spill.close()

    def connect(self) -> duckdb.DuckDBPyConnection:
        """One more connection, with tables of its own and the same bound for all."""
        return self._connection.cursor()

    @contextmanager
    def _tables(self, tables: Mapping[str, Relation]) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection on which the given Arrow tables can be read by name."""
        with self._lock:
            try:
                for name, table in tables.items():
                    self._connection.register(name, table)
                yield self._connection
            finally:
                for name in tables:
                    self._connection.unregister(name)

    @contextmanager
    def _copies(self, tables: Mapping[str, Relation]) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection on which copies of the Arrow tables can be read by name.

        A large join reads them faster in DuckDB's own format, by far more than the copy costs, and with
        statistics the optimizer believes.
        """
        with self._tables({f"arrow_{name}": table for name, table in tables.items()}) as connection:
            try:
                for name in tables:
                    connection.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM arrow_{name}")
                yield connection
            finally:
                for name in tables:
                    connection.execute(f"DROP TABLE IF EXISTS {name}")

    def _run(self, sql: str, tables: Mapping[str, Relation], in_order: bool = False) -> Relation:
        with self._tables(tables) as connection, _joining(connection, in_order):
            return connection.sql(sql).to_arrow_table()

    def select(self, node: Node, rows: Relation) -> Relation:
        if node.filter is None or not rows.num_rows:
            return rows
        condition = rename_node(node.filter, "r").sql(dialect=DIALECT)
        return self._run(f"SELECT * FROM r WHERE {condition}", {"r": rows}).cast(rows.schema)

    def _few(self, *tables: Relation) -> bool:
        """Whether these rows are few, and Python holds their values and compares them as SQL does."""
        return sum(table.num_rows for table in tables) <= self._few_rows and all(
            _python_holds(column) for table in tables for column in table.columns
        )

    def keys(self, rows: Sequence[Relation], hop: Hop, query: AssemblyQuery) -> Relation:
        origin, target = query.nodes[hop.origin].schema, query.nodes[hop.target].schema
        if self._few(*rows) and all(origin.field(a).type == target.field(b).type for a, b in hop.on):
            return self._by_row.keys(rows, hop, query)
        columns = dict.fromkeys(b for _, b in hop.on)
        pairs = [(next(a for a, b in hop.on if b == column), column) for column in columns]
        # A value the target's type cannot hold can match nothing there: TRY_CAST makes it NULL.
        outputs = [
            f"{quote(a)} AS {quote(b)}"
            if origin.field(a).type == target.field(b).type
            else f"TRY_CAST({quote(a)} AS {duckdb_type(target.field(b).type)}) AS {quote(b)}"
            for a, b in pairs
        ]
        union = " UNION ALL ".join(f"SELECT {', '.join(outputs)} FROM r{i}" for i in range(len(rows)))
        not_null = " AND ".join(f"{quote(b)} IS NOT NULL" for _, b in pairs)
        sql = f"SELECT DISTINCT * FROM ({union}) WHERE {not_null}"
        found = self._run(sql, {f"r{i}": table for i, table in enumerate(rows)})
        return found.cast(pa.schema([target.field(b) for _, b in pairs]))

    def matching(self, rows: Relation, keys: Keys) -> Relation:
        """The rows that match one of the key values."""
        match = " AND ".join(f"p.{quote(c)} = k.{quote(c)}" for c in keys.columns)
        sql = f"SELECT p.* FROM p SEMI JOIN k ON {match}"
        return self._run(sql, {"p": rows, "k": keys.values}).cast(rows.schema)

    def history(self, node: Node, answer: Relation, pending: Relation, keys: Keys | None) -> Relation:
        columns = node.schema.names
        if self._few(answer, pending):
            return self._by_row.history(node, answer, pending, keys)
        if COUNT not in answer.column_names:
            answer = answer.append_column(COUNT, pa.repeat(pa.scalar(1, pa.int64()), answer.num_rows))
        answer = answer.select([*columns, COUNT])
        if pending.num_rows and keys is not None:
            pending = self.matching(pending, keys)
        if not pending.num_rows:
            always = [pa.repeat(pa.scalar(at, pa.int64()), answer.num_rows) for at in (EARLIEST, LATEST)]
            return answer.append_column(LOW, always[0]).append_column(HIGH, always[1])
        names = ", ".join(quote(c) for c in columns)
        same = " AND ".join(f"a.{quote(c)} IS NOT DISTINCT FROM t.{quote(c)}" for c in columns)
        rows = ", ".join(f"t.{quote(c)}" for c in columns)
        # Only rows that some pending delta touches have more than one count over time; `steps` holds
        # their counts from each step on, `before` their count before the first step.
        sql = f"""
            WITH changed AS (
                SELECT {names}, {SEQUENCE}, sum({COUNT})::BIGINT AS step FROM pending GROUP BY ALL
            ), touched AS (
                SELECT {names}, sum(step)::BIGINT AS total, min({SEQUENCE}) AS first
                FROM changed GROUP BY {names}
            ), present AS (
                SELECT {rows}, sum(a.{COUNT})::BIGINT AS final
                FROM answer a JOIN touched t ON {same} GROUP BY {rows}
            ), known AS (
                SELECT {rows}, t.total, t.first, coalesce(a.final, 0) AS final
                FROM touched t LEFT JOIN present a ON {same}
            ), steps AS (
                SELECT {rows}, a.final - coalesce(sum(t.step) OVER later, 0)::BIGINT AS {COUNT},
                       t.{SEQUENCE} AS {LOW},
                       coalesce(min(t.{SEQUENCE}) OVER later, {LATEST}) AS {HIGH}
                FROM changed t JOIN known a ON {same}
                WINDOW later AS (PARTITION BY {rows} ORDER BY t.{SEQUENCE}
                                 ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
            ), before AS (
                SELECT {names}, final - total AS {COUNT}, {EARLIEST} AS {LOW}, first AS {HIGH} FROM known
            ), untouched AS (
                SELECT *, {EARLIEST} AS {LOW}, {LATEST} AS {HIGH} FROM answer a ANTI JOIN touched t ON {same}
            )
            SELECT * FROM untouched
            UNION ALL SELECT * FROM steps WHERE {COUNT} <> 0
            UNION ALL SELECT * FROM before WHERE {COUNT} <> 0
        """
        found = self._run(sql, {"answer": answer, "pending": pending})
        found = found.cast(pa.schema([*node.schema, *(pa.field(c, pa.int64()) for c in (COUNT, LOW, HIGH))]))
        refuse_negative(pc.min(found[COUNT]).as_py(), node)
        return found

    def assemble(self, plan: SweepPlan, starts: Sequence[Start], directory: Path | None) -> ViewChange:
        schema = pa.schema([*plan.query.schema, pa.field(COUNT, pa.int64()), pa.field(VERSION, pa.int64())])
        if not starts:
            return ViewChange(table=schema.empty_table())
        inputs = [*(s.deltas for s in starts), *(rows for s in starts for _, rows in s.hops)]
        if self._few(*inputs) and plan.query.is_plain:
            return self._by_row.assemble(plan, starts, None)
        tables: dict[str, Relation] = {}
        sql = assembly_sql(plan, starts, tables, DIALECT)
        in_order = any(map(_several_move, starts))
        if directory is not None and sum(start.deltas.num_rows for start in starts) > 1000:
            return ViewChange(files=(self._copy(sql, tables, directory, in_order),))
        return ViewChange(table=self._run(sql, tables, in_order).cast(schema))

    def _copy(
        self, sql: str, tables: Mapping[str, Relation], directory: Path, in_order: bool = False
    ) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"part-{uuid.uuid4()}.parquet"
        target = exp.Literal.string(str(path)).sql(dialect=DIALECT)
        with self._copies(tables) as connection, _joining(connection, in_order):
            connection.execute(f"COPY ({sql}) TO {target} ({PARQUET_OPTIONS})")
        return path

    def begin(self, node: int, deltas: Relation) -> Relation:
        return deltas.rename_columns([c if c == COUNT else f"n{node}.{c}" for c in deltas.column_names])

    def partial_keys(self, partial: Relation, hop: Hop, query: AssemblyQuery) -> Relation:
        columns = list(dict.fromkeys(a for a, _ in hop.on))
        rows = partial.select([f"n{hop.origin}.{a}" for a in columns])
        return self.keys([rows.rename_columns(columns)], hop, query)

    def join(self, partial: Relation, hop: Hop, rows: Relation) -> Relation:
        sql, schema = join_sql(partial, hop, rows, DIALECT)
        return self._run(sql, {"p": partial, "r": rows}).cast(schema)

    def minus(self, left: Relation, right: Relation) -> Relation:
        names = ", ".join(quote(c) for c in left.column_names if c != COUNT)
        sql = f"""
            SELECT {names}, sum({COUNT})::BIGINT AS {COUNT} FROM (
                SELECT {names}, {COUNT} FROM l UNION ALL SELECT {names}, -{COUNT} FROM r
            ) GROUP BY {names} HAVING sum({COUNT}) <> 0
        """
        return self._run(sql, {"l": left, "r": right}).cast(left.schema)

    def project(self, query: AssemblyQuery, partial: Relation) -> Relation:
        numbered = partial.append_column("_row", pa.array(range(partial.num_rows), pa.int64()))
        found = self._run(project_sql(query, DIALECT), {"p": numbered})
        return found.cast(pa.schema([*query.schema, pa.field(COUNT, pa.int64())]))

    def extent(self, query: AssemblyQuery, extents: Sequence[Extent], directory: Path | None) -> ViewChange:
        tables: dict[str, Relation] = {}
        sources = [_extent_source(i, query.nodes[i], e, tables) for i, e in enumerate(extents)]
        sql = extent_sql(query, sources, counted=any(e.minus is not None for e in extents), dialect=DIALECT)
        if directory is not None:
            return ViewChange(files=(self._copy(sql, tables, directory),))
        found = self._run(sql, tables)
        return ViewChange(table=found.cast(pa.schema([*query.schema, pa.field(COUNT, pa.int64())])))


def _extent_source(node: int, shape: Node, extent: Extent, tables: dict[str, Relation]) -> str:
    """The subquery that reads an extent; fills `tables` with what it reads by name."""
    columns = ", ".join(quote(name) for name in shape.schema.names)
    if extent.table is not None:
        tables[f"e{node}"] = extent.table
        rows = f"e{node}"
    elif extent.files:
        paths = ", ".join(exp.Literal.string(str(path)).sql(dialect=DIALECT) for path in extent.files)
        rows = f"read_parquet([{paths}])"
    else:
        tables[f"e{node}"] = shape.schema.empty_table()
        rows = f"e{node}"
    sql = f"SELECT {columns}, 1::BIGINT AS {COUNT} FROM {rows}"
    if extent.minus is not None:
        tables[f"m{node}"] = extent.minus
        sql += f" UNION ALL SELECT {columns}, -{COUNT} FROM m{node}"
    return sql


def join_sql(
    partial: Relation, hop: Hop, rows: Relation, dialect: str, prefix: str = ""
) -> tuple[str, pa.Schema]:
    """The join of a partial result `p` with rows `r` of the next node, and the schema of its result."""
    kept = [c for c in partial.column_names if c != COUNT]
    added = [c for c in rows.column_names if c != COUNT]
    columns = [f"p.{_quoted(c, dialect)}" for c in kept]
    columns += [f"r.{_quoted(c, dialect)} AS {_quoted(f'n{hop.target}.{c}', dialect)}" for c in added]
    on = " AND ".join(
        f"p.{_quoted(f'n{hop.origin}.{a}', dialect)} = r.{_quoted(b, dialect)}" for a, b in hop.on
    )
    count = f"p.{COUNT} * r.{COUNT}" if COUNT in rows.column_names else f"p.{COUNT}"
    sql = (
        f"SELECT {', '.join(columns)}, {count} AS {COUNT} "
        f"FROM {prefix}p AS p JOIN {prefix}r AS r ON {on or 'TRUE'}"
    )
    fields = [partial.schema.field(c) for c in kept]
    fields += [rows.schema.field(c).with_name(f"n{hop.target}.{c}") for c in added]
    return sql, pa.schema([*fields, pa.field(COUNT, pa.int64())])


def project_sql(query: AssemblyQuery, dialect: str, prefix: str = "") -> str:
    """The projection of a complete partial result `p`, whose rows are numbered by `_row`.

    The numbers join the columns of each node back together under the node's own name.
    """
    sources = []
    for i, node in enumerate(query.nodes):
        columns = ", ".join(
            f"{_quoted(f'n{i}.{c}', dialect)} AS {_quoted(c, dialect)}" for c in node.schema.names
        )
        sources.append(f"(SELECT _row AS _row{i}, {columns} FROM {prefix}p) AS n{i}")
    glue = [f"_row{i} = p._row" for i in range(len(query.nodes))]
    where = " AND ".join([*glue, *_conditions(query, dialect, skip=())])
    columns = ", ".join(_quoted(name, dialect) for name, _ in query.projection)
    return (
        f"SELECT {columns}, CAST(sum({COUNT}) AS BIGINT) AS {COUNT} FROM ("
        f"SELECT {_projection(query, dialect)}, p.{COUNT} AS {COUNT} "
        f"FROM {prefix}p AS p, {', '.join(sources)} WHERE {where}) AS v "
        f"GROUP BY {columns} HAVING sum({COUNT}) <> 0"
    )


def assembly_sql(
    plan: SweepPlan,
    starts: Sequence[Start],
    tables: dict[str, Relation],
    dialect: str,
    *,
    prefix: str = "t",
    hint: Callable[[Start], str] = lambda _: "",
) -> str:
    """The one statement that joins all starts; fills `tables` with the relations it reads by name.

    Names begin with `prefix`; `hint` may say how a start's join is to be done.
    """
    query = plan.query
    terms = []
    names: dict[int, str] = {}
    histories = {id(history): history for start in starts for _, history in start.hops}
    times = _times(starts)
    overlapping = {key: _overlapping(history, *times) for key, history in histories.items()}

    def name_of(table: Relation) -> str:
        name = names.setdefault(id(table), f"{prefix}{len(names)}")
        tables[name] = table
        return name

    for start in starts:
        joins = [f"{name_of(start.deltas)} AS n{start.node}"]
        counts = [f"n{start.node}.{COUNT}"]
        at = f"n{start.node}.{SEQUENCE}"
        for hop, history in start.hops:
            rows = overlapping[id(history)]
            target = f"n{hop.target}"
            on = [f"n{hop.origin}.{_quoted(a, dialect)} = {target}.{_quoted(b, dialect)}" for a, b in hop.on]
            # At each hop: histories of rows that all sources change multiply until their times are compared.
            # Wrapped, because an optimizer that sees a range join would do it before the equalities.
            on.append(f"CASE WHEN {at} >= {target}.{LOW} AND {at} < {target}.{HIGH} THEN TRUE ELSE FALSE END")
            joins.append(f"JOIN {name_of(rows)} AS {target} ON {' AND '.join(on)}")
            counts.append(f"{target}.{COUNT}")
        crossed = [frozenset((hop.origin, hop.target)) for hop, _ in start.hops]
        conditions = _conditions(query, dialect, skip=crossed)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        terms.append(
            f"SELECT {hint(start)}{_projection(query, dialect)}, {' * '.join(counts)} AS {COUNT}, "
            f"{_quotient(at, plan.width, dialect)} AS {VERSION} FROM {' '.join(joins)}{where}"
        )
    union = " UNION ALL ".join(terms)
    if query.consolidation_free:
        return union
    columns = ", ".join(_quoted(name, dialect) for name, _ in query.projection)
    grouped = f"{columns}, {VERSION}" if columns else VERSION
    return (
        f"SELECT {columns}, CAST(sum({COUNT}) AS BIGINT) AS {COUNT}, {VERSION} FROM ({union}) AS u "
        f"GROUP BY {grouped} HAVING sum({COUNT}) <> 0"
    )


def _times(starts: Sequence[Start]) -> tuple[int, int]:
    """The first and the last moment of a batch."""
    times = [pc.min_max(start.deltas[SEQUENCE]) for start in starts]
    return min(time["min"].as_py() for time in times), max(time["max"].as_py() for time in times)


def _overlapping(history: Relation, first: int, last: int) -> Relation:
    """The rows of a history that hold at some moment of a batch, or all if that would not spare half.

    A row that every waiting transaction changes has a history as long as the queue. Of it, only the part
    within the batch matters; whole, such histories would multiply before their times are compared. Not the
    part of each start: then no two of them would share a table, and Spark would broadcast one per hop.
    """
    if not history.num_rows:
        return history
    overlaps = pc.and_(pc.less_equal(history[LOW], last), pc.greater(history[HIGH], first))
    if 2 * pc.sum(overlaps).as_py() > history.num_rows:
        return history
    return history.filter(overlaps)


@contextmanager
def _joining(connection: duckdb.DuckDBPyConnection, in_order: bool) -> Iterator[None]:
    """Joins are done as they are written, if so wanted, and not as DuckDB thinks best."""
    if in_order:
        connection.execute("SET disabled_optimizers = 'join_order'")
    try:
        yield
    finally:
        if in_order:
            connection.execute("RESET disabled_optimizers")


def _several_move(start: Start) -> bool:
    """Whether the histories of several hops have rows that hold for a time only.

    Joined with each other before they meet the deltas, these would make every combination of times.
    """
    moving = 0
    for _, history in start.hops:
        limited = pc.or_(pc.greater(history[LOW], EARLIEST), pc.less(history[HIGH], LATEST))
        moving += bool(pc.any(limited, min_count=0).as_py())
    return moving > 1


def extent_sql(query: AssemblyQuery, sources: Sequence[str], *, counted: bool, dialect: str) -> str:
    """The statement that computes the whole view from one subquery per node, in normal form.

    `counted`: some rows of the subqueries have counts other than 1.
    """
    conditions = _conditions(query, dialect, skip=())
    conditions += [node.filter.sql(dialect=dialect) for node in query.nodes if node.filter is not None]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    tables = ", ".join(f"({sql}) AS n{i}" for i, sql in enumerate(sources))
    count = " * ".join(f"n{i}.{COUNT}" for i in range(len(sources))) if counted else "CAST(1 AS BIGINT)"
    inner = f"SELECT {_projection(query, dialect)}, {count} AS {COUNT} FROM {tables}{where}"
    if query.consolidation_free and not counted:
        return inner
    columns = ", ".join(_quoted(name, dialect) for name, _ in query.projection)
    return (
        f"SELECT {columns}, CAST(sum({COUNT}) AS BIGINT) AS {COUNT} FROM ({inner}) AS v "
        f"GROUP BY {columns} HAVING sum({COUNT}) <> 0"
    )


def _quotient(dividend: str, divisor: int, dialect: str) -> str:
    """Integer division, which every dialect spells differently."""
    return f"({dividend} {'//' if dialect == DIALECT else 'DIV'} {divisor})"


def _quoted(identifier: str, dialect: str) -> str:
    return exp.to_identifier(identifier, quoted=True).sql(dialect=dialect)


def _projection(query: AssemblyQuery, dialect: str) -> str:
    """The view's columns, each cast to its declared type, so that all engines give the same types."""
    parts = []
    for (name, expression), field in zip(query.projection, query.schema, strict=True):
        sql = _spoken(expression, dialect)
        if not isinstance(expression, exp.Column):
            sql = _spoken(exp.cast(expression, duckdb_type(field.type), dialect=DIALECT), dialect)
        parts.append(f"{sql} AS {_quoted(name, dialect)}")
    return ", ".join(parts)


def _conditions(query: AssemblyQuery, dialect: str, skip: Sequence[frozenset[int]]) -> list[str]:
    """All equalities but those of the edges in `skip`, and all filters over several nodes."""
    conditions = [
        f"n{edge.left}.{_quoted(a, dialect)} = n{edge.right}.{_quoted(b, dialect)}"
        for edge in query.edges
        if frozenset((edge.left, edge.right)) not in skip
        for a, b in edge.on
    ]
    return conditions + [f"({_spoken(predicate, dialect)})" for predicate in query.filters]


def _spoken(expression: exp.Expr, dialect: str) -> str:
    """The expression in a dialect: a backslash in a pattern is itself in DuckDB, an escape elsewhere."""
    if dialect != DIALECT:
        expression = expression.copy()
        for like in list(expression.find_all(exp.Like)):
            one, two = exp.Literal.string("\\"), exp.Literal.string("\\\\")
            like.set("expression", exp.Replace(this=like.expression, expression=one, replacement=two))
    return expression.sql(dialect=dialect)


def rename_node(expression: exp.Expr, table: str) -> exp.Expr:
    """The expression with all its columns read from one table."""

    def rename(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column):
            return exp.column(part.this.copy(), table=table)
        return part

    return expression.transform(rename)


_PYTHON_DAYS = (-719_161, 2_932_895)
"""The days of the years 1 to 9999, counted from 1970, without the first and the last: times have zones."""
_DAY_MICROSECONDS = 86_400_000_000


def _python_holds(column: pa.ChunkedArray) -> bool:
    """Whether Python compares the values as SQL does (NaN it does not), and has all of them."""
    if pa.types.is_date(column.type):
        days, unit = column.cast(pa.int32()), 1
    elif pa.types.is_timestamp(column.type):
        days, unit = column.cast(pa.int64()), _DAY_MICROSECONDS
    else:
        return not pa.types.is_floating(column.type)
    least, most = (value.as_py() for value in pc.min_max(days).values())
    return least is None or (_PYTHON_DAYS[0] * unit <= least and most < _PYTHON_DAYS[1] * unit)


def refuse_negative(least: int | None, node: Node) -> None:
    """Raise if the least count of a node's rows, which is None without rows, is negative."""
    if least is not None and least < 0:
        raise OrderingViolationError(
            f"the answer for {node.name!r} lacks rows that its own changes report: "
            "changes and answers of this source do not agree"
        )
