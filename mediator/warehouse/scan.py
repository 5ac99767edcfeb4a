"""A view at one version, as SQL over the files that hold it.

Problem: version n of a view has to be readable for every n, at once after its install and also after
compactions, from one compacted state and the changes.

Wrong ways: one state per version (copies the view each time); folding changes into the state and dropping
them (loses history); walking the versions one by one.

Chosen way: counted relations form a group. With the state at version v,

    V_n  =  state_v + Σ changes in (v, n]     for n ≥ v
    V_n  =  state_v − Σ changes in (n, v]     for n < v

in normal form again: equal rows merged, zero counts dropped. So a compaction only moves v, and loses
nothing. If n = v, the state is the answer as it stands. Otherwise the changes are netted first and then
joined to the state, which is in normal form already; grouping both together takes three times as long when
there are few changes, and longer even when there are as many as rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from algebra.schema import COUNT
from mediator.warehouse.delta_files import DataFile
from mediator.warehouse.records import VERSION, StoredView
from mediator.warehouse.storage import StorageColumn, literal, no_rows, quote


@dataclass(frozen=True)
class Scan:
    """A DuckDB SELECT, and the Arrow tables that must be registered under these names to run it."""

    sql: str
    tables: Mapping[str, pa.Table] = field(default_factory=dict)


@dataclass(frozen=True)
class ViewSnapshot:
    """The files that hold a view now; enough to read every version up to the newest."""

    view: StoredView
    state_files: tuple[Path, ...]
    changes_directory: Path
    changes: tuple[DataFile, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return (*self.state_files, *(self.changes_directory / file.path for file in self.changes))


def rows_of(directory: Path, files: Iterable[DataFile], columns: Iterable[str], empty: str) -> Scan:
    """These columns (SQL expressions) of all rows of these files, from memory where they are cached.

    `empty` is the SELECT that stands for no files at all.
    """
    paths, cached = [], []
    for file in files:
        if file.cached is None:
            paths.append(directory / file.path)
        else:
            cached.append(file.cached)
    selected = ", ".join(columns)
    parts = [f"SELECT {selected} FROM {parquet(paths)}"] if paths else []
    tables = {}
    if cached:
        # Like that of a file, a name that nobody guesses: among their columns are hidden ones.
        name = f"_lockstep_rows_{uuid.uuid4().hex}"
        tables[name] = pa.concat_tables(cached)
        parts.append(f"SELECT {selected} FROM {name}")
    return Scan(" UNION ALL ".join(parts) or empty, tables)


def counted_scan(snapshot: ViewSnapshot, version: int) -> Scan:
    """The view at that version: its stored columns and `_count`, in normal form."""
    storage = snapshot.view.storage
    columns = ", ".join(column.quoted for column in storage.columns)
    if snapshot.state_files:
        state = f"SELECT {columns}, {COUNT} FROM {parquet(snapshot.state_files)}"
    else:
        state = no_rows(storage, COUNT)
    held = snapshot.view.state_version
    low, high, sign = (held, version, "") if version >= held else (version, held, "-")
    changes = _changes(snapshot, low + 1, high)
    if changes is None:
        return Scan(state)
    net = (
        f"SELECT {columns}, CAST({sign}sum({COUNT}) AS BIGINT) AS {COUNT} FROM ({changes.sql}) "
        f"GROUP BY {columns} HAVING sum({COUNT}) <> 0"
    )
    either = ", ".join(f"coalesce(s.{c.quoted}, d.{c.quoted}) AS {c.quoted}" for c in storage.columns)
    equal = " AND ".join(f"s.{c.quoted} IS NOT DISTINCT FROM d.{c.quoted}" for c in storage.columns)
    total = f"(coalesce(s.{COUNT}, 0) + coalesce(d.{COUNT}, 0))"
    return Scan(
        f"SELECT {either}, {total} AS {COUNT} FROM ({state}) s FULL OUTER JOIN ({net}) d ON {equal} "
        f"WHERE {total} <> 0",
        changes.tables,
    )


def visible_counted_scan(snapshot: ViewSnapshot, version: int) -> Scan:
    """The view at that version as readers may see it: visible stored columns and `_count`, in normal form."""
    counted = counted_scan(snapshot, version)
    if not snapshot.view.hidden:
        return counted
    columns = ", ".join(column.quoted for column in snapshot.view.visible.columns)
    return Scan(
        f"SELECT {columns}, CAST(sum({COUNT}) AS BIGINT) AS {COUNT} FROM ({counted.sql}) "
        f"GROUP BY {columns} HAVING sum({COUNT}) <> 0",
        counted.tables,
    )


def change_scan(snapshot: ViewSnapshot, low: int, high: int) -> Scan:
    """The changes of versions low..high, each in normal form: `_version`, visible columns, `_count`."""
    columns = snapshot.view.visible.columns
    changes = _changes(snapshot, low, high) or Scan(no_rows(snapshot.view.storage, COUNT, VERSION))
    grouped = ", ".join([VERSION, *(column.quoted for column in columns)])
    return Scan(
        f"SELECT {VERSION}, {_restored(columns)}, {COUNT} FROM ("
        f"SELECT {grouped}, CAST(sum({COUNT}) AS BIGINT) AS {COUNT} FROM ({changes.sql}) "
        f"GROUP BY {grouped} HAVING sum({COUNT}) <> 0) ORDER BY {VERSION}",
        changes.tables,
    )


def declared_scan(snapshot: ViewSnapshot, version: int) -> Scan:
    """The view at that version with its declared names and types, hidden columns too, and `_count`."""
    counted = counted_scan(snapshot, version)
    columns = _restored(snapshot.view.storage.columns)
    return Scan(f"SELECT {columns}, {COUNT} FROM ({counted.sql})", counted.tables)


def visible_scan(snapshot: ViewSnapshot, version: int) -> Scan:
    """The view at that version as users see it, with `_count`: declared names and types, in normal form."""
    counted = visible_counted_scan(snapshot, version)
    columns = _restored(snapshot.view.visible.columns)
    return Scan(f"SELECT {columns}, {COUNT} FROM ({counted.sql})", counted.tables)


def bag_scan(snapshot: ViewSnapshot, version: int) -> Scan:
    """The view at that version as users see it: declared columns, each row as often as it occurs."""
    counted = counted_scan(snapshot, version)
    columns = _restored(snapshot.view.visible.columns)
    return Scan(f"SELECT {columns} FROM {repeated(counted.sql)}", counted.tables)


def repeated(counted: str) -> str:
    """The rows of a counted SELECT as a relation that holds each as often as `_count` says."""
    return f"(SELECT *, unnest(range({COUNT})) FROM ({counted}))"


def _changes(snapshot: ViewSnapshot, low: int, high: int) -> Scan | None:
    """The stored rows of the versions low..high, with `_count` and `_version`; None if there can be none."""
    files = [file for file in snapshot.changes if file.high >= low and file.low <= high]
    if not files or low > high:
        return None
    columns = [*(column.quoted for column in snapshot.view.storage.columns), COUNT, VERSION]
    rows = rows_of(snapshot.changes_directory, files, columns, "")
    return Scan(f"SELECT * FROM ({rows.sql}) WHERE {VERSION} BETWEEN {low} AND {high}", rows.tables)


def parquet(paths: Iterable[Path]) -> str:
    """DuckDB's relation over these Parquet files."""
    listed = ", ".join(literal(str(path)) for path in paths)
    return f"read_parquet([{listed}], hive_partitioning=false)"


def _restored(columns: Sequence[StorageColumn]) -> str:
    return ", ".join(f"{c.stored.restore.format(c.quoted)} AS {quote(c.name)}" for c in columns)
