"""What the tests share: a writer process, adapters that get closed, and short ways to ask."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from adapters.spi import Changes, SourceConfig
from adapters.sqlite.adapter import SqliteAdapter
from algebra.expressions import ColumnRef, Expression
from algebra.local_view import EquiJoin, Keys, LocalView, Occurrence, OutputColumn
from algebra.position import Position

SOURCE = "shop"
HERE = Path(__file__).parent


class WriteError(Exception):
    """The source refused a statement of the test's writer."""


class Writer:
    """Another program that writes to databases; each call runs statements there and waits for them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "writer_process.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def open(self, path: Path | str) -> None:
        """Leave the present database, its transaction rolled back, and turn to another one."""
        self._ask(str(path))

    def __call__(self, *statements: str) -> list[list[Any]]:
        rows: list[list[Any]] = self._ask(statements)
        return rows

    def _ask(self, request: str | tuple[str, ...]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise WriteError(answer["error"])
        return answer["rows"]

    def close(self) -> None:
        self._process.communicate()


class Backup:
    """Copies of a live database, made and put back by SQLite's backup API, in another process."""

    SCRIPT = """
import sqlite3, sys
source, target = (sqlite3.connect(path, timeout=60) for path in sys.argv[1:])
source.backup(target)
source.close()
target.close()
"""

    def __init__(self, path: Path) -> None:
        self._path, self.copy = path, path.with_name("backup.db")
        self._run(self._path, self.copy)

    def restore(self) -> None:
        self._run(self.copy, self._path)

    def _run(self, source: Path, target: Path) -> None:
        subprocess.run([sys.executable, "-c", self.SCRIPT, str(source), str(target)], check=True)


def config(path: Path, relations: tuple[str, ...] | None = None, **options: Any) -> SourceConfig:
    return SourceConfig(SOURCE, "sqlite", f"sqlite:///{path}", relations, options=options)


@contextmanager
def adapter_on(
    path: Path, relations: tuple[str, ...] | None = None, **options: Any
) -> Iterator[SqliteAdapter]:
    adapter = SqliteAdapter(config(path, relations, **options))
    try:
        yield adapter
    finally:
        adapter.close()


@contextmanager
def captured(
    path: Path, writer: Writer, *schema: str, relations: tuple[str, ...] | None = None, **options: Any
) -> Iterator[SqliteAdapter]:
    """An adapter on a new database with this schema, all (or these) relations prepared, nothing read yet."""
    writer(*schema)
    with adapter_on(path, relations, **options) as adapter:
        adapter.prepare(list(adapter.catalog().relations))
        yield adapter


Rows = Counter[tuple[Any, ...]]


def view_of(
    adapter: SqliteAdapter,
    occurrences: Mapping[str, str],
    columns: Mapping[str, tuple[str, str]] | None = None,
    joins: tuple[tuple[str, str], ...] = (),
    predicates: tuple[Expression, ...] = (),
) -> LocalView:
    """A local view: aliases of relations, output names of (alias, column), joins as 'alias.column' pairs.

    Without columns, every column of every occurrence, named `alias.column`.
    """
    catalog = adapter.catalog()
    types = {(relation.name, column.name): column.type for relation in catalog for column in relation.columns}
    if columns is None:
        columns = {
            f"{alias}.{column.name}": (alias, column.name)
            for alias, relation in occurrences.items()
            for column in catalog.relation(relation).columns
        }
    return LocalView(
        name="v",
        source=SOURCE,
        occurrences=tuple(Occurrence(alias, relation) for alias, relation in occurrences.items()),
        joins=tuple(EquiJoin(_ref(left), _ref(right)) for left, right in joins),
        predicates=predicates,
        columns=tuple(
            OutputColumn(name, ColumnRef(alias, column), types[occurrences[alias], column])
            for name, (alias, column) in columns.items()
        ),
    )


def _ref(text: str) -> ColumnRef:
    alias, column = text.split(".")
    return ColumnRef(alias, column)


def bag(table: pa.Table) -> Rows:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def fetch(adapter: SqliteAdapter, query: LocalView, keys: Mapping[str, pa.Array] | None = None) -> pa.Table:
    with adapter.snapshot() as snapshot:
        wanted = None if keys is None else Keys(tuple(keys), pa.table(dict(keys)))
        reader = snapshot.fetch(query, wanted)
        assert reader.schema == query.arrow
        return reader.read_all()


def contents(adapter: SqliteAdapter, relation: str) -> Rows:
    return bag(fetch(adapter, view_of(adapter, {"t": relation})))


def changes(adapter: SqliteAdapter, after: Position) -> Changes:
    with adapter.snapshot() as snapshot:
        return snapshot.changes(after)


def position(adapter: SqliteAdapter) -> Position:
    with adapter.snapshot() as snapshot:
        return snapshot.position


def deltas(run: Changes) -> list[dict[str, dict[tuple[Any, ...], int]]]:
    """Each transaction of the run as {relation: {row: count}}."""
    return [
        {relation: delta.to_dict() for relation, delta in transaction.deltas.items()}
        for transaction in run.transactions()
    ]


def net(run: Changes, relation: str) -> dict[tuple[Any, ...], int]:
    """What the whole run does to one relation, rows with no net change left out."""
    total: dict[tuple[Any, ...], int] = {}
    for transaction in deltas(run):
        for row, count in transaction.get(relation, {}).items():
            total[row] = total.get(row, 0) + count
    return {row: count for row, count in total.items() if count}
