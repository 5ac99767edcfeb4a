"""The Spark engine: every join of a view runs in Spark, in one job per batch.

Problem. A Spark job costs over a hundred milliseconds before it does anything, so a job per hop, per key set
or per transaction would spend all time on starting jobs.

Wrong ways. Collecting join keys in Spark (a job per hop, and a shuffle for the distinct). Letting Spark guess
sizes: it knows nothing of rows that come from outside and would sort and shuffle everything. Merging rows
that cannot coincide, which is a shuffle of the widest rows there are. Computing with values that travel as
others, because Spark has no type for them: a time of day is a number there.

Chosen way. Keys and compensation are about one source's own rows and are prepared embedded, beside the
channel they arrived on. All joins of all starts are then one statement: everything but the largest relation
of each start is broadcast, and rows are merged only if the view's columns could make two of them equal. Large
results are written by Spark itself as Parquet files. What Spark has no type for is left to the embedded
engine, where it is computed or comes from files.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from sqlglot import exp

from algebra.assembly import VERSION, AssemblyQuery, Node
from algebra.engines.contract import Engine, Extent, Relation, Start, ViewChange
from algebra.engines.embedded import EmbeddedEngine, assembly_sql, extent_sql, join_sql, project_sql
from algebra.errors import ConfigurationError
from algebra.local_view import Keys
from algebra.plan import Hop, SweepPlan
from algebra.schema import COUNT
from algebra.scratch import ScratchFolder
from mediator.engines.java import use_java

DIALECT = "spark"
_PREFIX = "lockstep_table_"
SPOOL_ROWS = 20_000
"""Tables with more rows than this reach a local Spark through a file."""
BROADCAST_BYTES = 64 << 20
"""Relations up to this size are broadcast; it bounds what each executor holds of one."""
WARM_UP_ROUNDS = 4
WARM_UP_ROWS = 200_000
COLLECT_ROWS = 1000
"""A batch with at most this many delta rows is collected rather than written by Spark."""

_SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 2)),
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
}
"""Defaults; a mediator's `spark_conf` wins over them."""


_LOCAL_FOLDERS = "spark.local.dir"
_HADOOP = "spark.hadoop."
_SQL = "spark.sql."


def spark_session(
    master: str, settings: Mapping[str, str], secrets: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session: on a master (`local[*]`, `spark://…`), or on a Spark Connect server (`sc://…`).

    `settings` are on the command line of Spark's Java process, for everybody to see. So `secrets` are set
    when it runs, and one that Spark would not look at any more is a ConfigurationError.
    """
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    secrets = secrets or {}
    for key in secrets:
        if not key.startswith((_HADOOP, _SQL)):
            raise _not_by_reference(key)
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("lockstep")
    given = {**_SETTINGS, **settings}
    given[_LOCAL_FOLDERS] = _private_folders(given.get(_LOCAL_FOLDERS) or tempfile.gettempdir())
    for key, value in given.items():
        builder = builder.config(key, value)
    with _own_interrupts():
        session = builder.getOrCreate()
    try:
        _ignore_termination(session)
        _set_secrets(session, secrets)
    except BaseException:
        session.stop()
        raise
    return session


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Ctrl-C means afterwards what it meant before: Spark would have it raise in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _ignore_termination(session: SparkSession) -> None:
    """Have Spark's Java process outlive a SIGTERM to all processes of a service: what drains needs it.

    It ends with this process, also a killed one: then its standard input is closed.
    """
    gateway: Any = session.sparkContext._gateway
    if _java_process(session) is not None:
        java = gateway.jvm.sun.misc
        java.Signal.handle(java.Signal("TERM"), java.SignalHandler.SIG_IGN)


def _java_process(session: SparkSession) -> subprocess.Popen[bytes] | None:
    """Spark's Java process, if this process has started it."""
    return getattr(session.sparkContext._gateway, "proc", None)


def _set_secrets(session: SparkSession, secrets: Mapping[str, str]) -> None:
    for key, value in secrets.items():
        if key.startswith(_HADOOP):
            session.sparkContext._jsc.hadoopConfiguration().set(key.removeprefix(_HADOOP), value)
            continue
        try:
            session.conf.set(key, value)
        except AnalysisException:
            raise _not_by_reference(key) from None


def _not_by_reference(key: str) -> ConfigurationError:
    return ConfigurationError(
        f"spark_conf: {key} cannot be set by reference: Spark takes it from its command line, which is there "
        "for all users of this machine to read. If it is a secret, put it into spark-defaults.conf in the "
        "folder SPARK_CONF_DIR, readable by this user alone; else write it as it is"
    )


def _private_folders(places: str) -> str:
    """A new folder in each of these places: Spark's files with rows can be read by whoever can enter it."""
    folders = [ScratchFolder("spark", place.strip()) for place in places.split(",")]
    for folder in folders:
        atexit.register(folder.close)
    return ",".join(str(folder.path) for folder in folders)


def active_session() -> SparkSession | None:
    """The session this process already runs, if any; a process has at most one."""
    return SparkSession.getActiveSession()


class SparkEngine(Engine):
    """Joins in Spark; keys and histories come from the embedded engine."""

    name = "spark"

    def __init__(self, session: SparkSession, embedded: EmbeddedEngine, *, owns_session: bool) -> None:
        self._session = session
        self._embedded = embedded
        self._owns_session = owns_session
        self._shares_files = _is_local(session)
        if owns_session:
            self._warm_up()

    def _warm_up(self) -> None:
        """Join and write some rows, so that the first transactions do not wait for Spark to load and compile.

        Both ways in (Arrow and files) and both ways out (collected and written) are walked.
        """
        small = pa.table({"k": range(1000), "v": [f"value {i}" for i in range(1000)], COUNT: [1] * 1000})
        numbers = range(WARM_UP_ROWS)
        large = pa.table({"k": [i % 1000 for i in numbers], "n": numbers, COUNT: [1] * len(numbers)})
        with self._tables({"s": small, "l": large}) as prefix, ScratchFolder("spark") as directory:
            sql = (
                f"SELECT /*+ BROADCAST(s) */ l.*, s.v, l.{COUNT} * s.{COUNT} AS c FROM {prefix}l AS l "
                f"JOIN {prefix}s AS s ON l.k = s.k WHERE CASE WHEN l.n >= s.k THEN TRUE ELSE FALSE END"
            )
            for _ in range(WARM_UP_ROUNDS):
                self._result(self._session.sql(sql), large.schema, directory)
            self._session.sql(f"{sql} AND l.n < 100").toArrow()

    def failure(self) -> str:
        if not self._owns_session or not self._shares_files:
            return ""
        process = _java_process(self._session)
        return "" if process is None or process.poll() is None else "the Java process of Spark has ended"

    def close(self) -> None:
        if self._owns_session and not self.failure():
            with suppress(Py4JError, OSError, EOFError):  # the Java process is just ending
                self._session.stop()
        self._embedded.close()

    # What concerns one source's rows alone

    def select(self, node: Node, rows: Relation) -> Relation:
        return self._embedded.select(node, rows)

    def keys(self, rows: Sequence[Relation], hop: Hop, query: AssemblyQuery) -> Relation:
        return self._embedded.keys(rows, hop, query)

    def history(self, node: Node, answer: Relation, pending: Relation, keys: Keys | None) -> Relation:
        return self._embedded.history(node, answer, pending, keys)

    def begin(self, node: int, deltas: Relation) -> Relation:
        return self._embedded.begin(node, deltas)

    def partial_keys(self, partial: Relation, hop: Hop, query: AssemblyQuery) -> Relation:
        return self._embedded.partial_keys(partial, hop, query)

    def minus(self, left: Relation, right: Relation) -> Relation:
        return self._embedded.minus(left, right)

    # Joins

    def assemble(self, plan: SweepPlan, starts: Sequence[Start], directory: Path | None) -> ViewChange:
        schema = pa.schema([*plan.query.schema, pa.field(COUNT, pa.int64()), pa.field(VERSION, pa.int64())])
        if not starts:
            return ViewChange(table=schema.empty_table())
        if not _has_types(plan.query):
            return self._embedded.assemble(plan, starts, directory)
        tables: dict[str, Relation] = {}
        sql = assembly_sql(plan, starts, tables, DIALECT, prefix=_PREFIX, hint=_broadcast_hint)
        large = sum(start.deltas.num_rows for start in starts) > COLLECT_ROWS
        named = {name.removeprefix(_PREFIX): table for name, table in tables.items()}
        with self._tables(named) as prefix:
            frame = self._session.sql(sql.replace(_PREFIX, prefix))
            return self._result(frame, schema, directory if large else None)

    def join(self, partial: Relation, hop: Hop, rows: Relation) -> Relation:
        with self._tables({"p": partial, "r": rows}) as prefix:
            sql, schema = join_sql(partial, hop, rows, DIALECT, prefix)
            return self._collect(self._session.sql(sql), schema)

    def project(self, query: AssemblyQuery, partial: Relation) -> Relation:
        if not _has_types(query):
            return self._embedded.project(query, partial)
        numbered = partial.append_column("_row", pa.array(range(partial.num_rows), pa.int64()))
        schema = pa.schema([*query.schema, pa.field(COUNT, pa.int64())])
        with self._tables({"p": numbered}) as prefix:
            return self._collect(self._session.sql(project_sql(query, DIALECT, prefix)), schema)

    def extent(self, query: AssemblyQuery, extents: Sequence[Extent], directory: Path | None) -> ViewChange:
        if not _has_types(query) or not all(map(_is_readable, query.nodes, extents)):
            return self._embedded.extent(query, extents, directory)
        schema = pa.schema([*query.schema, pa.field(COUNT, pa.int64())])
        tables: dict[str, Relation | tuple[Path, ...]] = {}
        for i, (node, extent) in enumerate(zip(query.nodes, extents, strict=True)):
            table = extent.table if extent.table is not None else node.schema.empty_table()
            tables[f"e{i}"] = extent.files or table
            if extent.minus is not None:
                tables[f"m{i}"] = extent.minus
        with self._tables(tables) as prefix:
            sources = []
            for i, (node, extent) in enumerate(zip(query.nodes, extents, strict=True)):
                columns = ", ".join(_quoted(name) for name in node.schema.names)
                sql = f"SELECT {columns}, CAST(1 AS BIGINT) AS {COUNT} FROM {prefix}e{i}"
                if extent.minus is not None:
                    sql += f" UNION ALL SELECT {columns}, -{COUNT} FROM {prefix}m{i}"
                sources.append(sql)
            counted = any(extent.minus is not None for extent in extents)
            sql = extent_sql(query, sources, counted=counted, dialect=DIALECT)
            return self._result(self._session.sql(sql), schema, directory)

    # Between Arrow and Spark

    def _result(self, frame: DataFrame, schema: pa.Schema, directory: Path | None) -> ViewChange:
        if directory is None:
            return ViewChange(table=self._collect(frame, schema))
        target = directory / f"spark-{uuid.uuid4()}"
        # Dictionaries cost more time in Spark's writer than they save; merging files later adds them.
        options = {"compression": "snappy", "parquet.enable.dictionary": "false"}
        frame.write.options(**options).parquet(str(target))
        parts = sorted(target.glob("part-*.parquet"))
        if not parts:
            # Spark writes at least one file, be it empty; if none is here, it wrote them elsewhere.
            raise ConfigurationError(
                f"Spark's files do not arrive in {directory}: its executors must share the warehouse's folder"
            )
        files = tuple(part.rename(directory / f"{uuid.uuid4()}-{part.name}") for part in parts)
        return ViewChange(files=files)

    def _collect(self, frame: DataFrame, schema: pa.Schema) -> Relation:
        return _from_spark(frame.toArrow(), schema)

    @contextmanager
    def _tables(self, tables: Mapping[str, Relation | tuple[Path, ...]]) -> Iterator[str]:
        """Temporary views on these tables and files; their names begin with the prefix that is given."""
        prefix = f"lockstep_{uuid.uuid4().hex}_"
        with ScratchFolder("spark") as spool:
            try:
                for name, table in tables.items():
                    frame = self._frame(table, spool / f"{name}.parquet")
                    frame.createOrReplaceTempView(f"{prefix}{name}")
                yield prefix
            finally:
                for name in tables:
                    self._session.catalog.dropTempView(f"{prefix}{name}")

    def _frame(self, table: Relation | tuple[Path, ...], spool: Path) -> DataFrame:
        """A data frame on a table. A large one goes through a file: Spark then reads it in columns."""
        if isinstance(table, tuple):
            return self._session.read.parquet(*(str(path) for path in table))
        table = _to_spark(table)
        # Named, because Spark would guess that a timestamp without zone has one.
        schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
        if table.num_rows <= SPOOL_ROWS or not self._shares_files:
            # PySpark 4.3 drops all rows after an empty chunk, without a word.
            return self._session.createDataFrame(table.combine_chunks(), schema)
        pq.write_table(
            table,
            spool,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
            row_group_size=max(table.num_rows // (2 * (os.cpu_count() or 2)), SPOOL_ROWS),
        )
        return self._session.read.schema(schema).parquet(str(spool))


def _is_local(session: SparkSession) -> bool:
    """Whether Spark's executors see this process's files."""
    try:
        return str(session.conf.get("spark.master", "")).startswith("local")
    except Exception:  # a Spark Connect server need not tell its master
        return False


def _quoted(name: str) -> str:
    return exp.to_identifier(name, quoted=True).sql(dialect=DIALECT)


def _broadcast_hint(start: Start) -> str:
    """Broadcast all relations of a start but its largest, if they are small enough."""
    sizes = {start.node: start.deltas.nbytes} | {hop.target: rows.nbytes for hop, rows in start.hops}
    largest = max(sizes, key=lambda node: sizes[node])
    small = [f"n{node}" for node, size in sizes.items() if node != largest and size <= BROADCAST_BYTES]
    return f"/*+ BROADCAST({', '.join(small)}) */ " if small else ""


_SIGNED: Mapping[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
"""Spark has no unsigned types: they travel in the next wider signed one."""


def _has_types(query: AssemblyQuery) -> bool:
    """Whether Spark has types for all that a query computes; what it only shows may travel as another."""
    shown = zip(query.projection, query.schema, strict=True)
    if any(_is_foreign(field.type) for (_, e), field in shown if not isinstance(e, exp.Column)):
        return False
    return not any(
        pa.types.is_time(query.column_type(part))
        if isinstance(part, exp.Column)
        else isinstance(part, exp.Cast) and part.to.is_type("time", *exp.DataType.UNSIGNED_INTEGER_TYPES)
        for expression in query.computed
        for part in expression.walk()
    )


def _is_readable(node: Node, extent: Extent) -> bool:
    """Whether Spark can read an extent: of a file's types, it lacks times alone."""
    return not extent.files or not any(map(pa.types.is_time, node.schema.types))


def _is_foreign(type_: pa.DataType) -> bool:
    return type_ in _SIGNED or bool(pa.types.is_time(type_))


def _to_spark(table: Relation) -> Relation:
    for i, field in enumerate(table.schema):
        if field.type in _SIGNED:
            table = table.set_column(i, field.name, table[i].cast(_SIGNED[field.type]))
        elif pa.types.is_time(field.type):
            table = table.set_column(i, field.name, table[i].cast(pa.time64("us")).cast(pa.int64()))
    return table


def _from_spark(table: Relation, schema: pa.Schema) -> Relation:
    columns = []
    for field, column in zip(schema, table.columns, strict=True):
        if pa.types.is_time(field.type):
            column = pc.cast(column, pa.int64()).cast(pa.time64("us"))
        columns.append(column.cast(field.type))
    return pa.table(columns, schema=schema)
