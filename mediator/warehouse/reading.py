"""How versions are read: as streams that keep the files they need until they have ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import duckdb
import numpy as np
import pyarrow as pa

from algebra.errors import PositionTrimmedError
from mediator.warehouse.duck import BATCH_ROWS, register, transform
from mediator.warehouse.query import query_error, views_in
from mediator.warehouse.records import VERSION, VersionRecord
from mediator.warehouse.scan import bag_scan, change_scan, declared_scan
from mediator.warehouse.storage import declared_schema, quote
from mediator.warehouse.store import Store, missing_version

# How many versions, and how many of their rows, `changes` holds in memory at once.
_WINDOW_VERSIONS = 4096
_WINDOW_ROWS = 250_000


def read(store: Store, name: str, version: int | None) -> pa.RecordBatchReader:
    """The view at a version: its columns, hidden ones too, and `_count`, in normal form."""
    with store.lock:
        pin = store.graveyard.pin()
        snapshot, number = store.at(name, version)
    storage = snapshot.view.storage
    reader = store.duck.stream(declared_scan(snapshot, number))
    schema = declared_schema(storage, counted=True)
    return transform(reader, schema, lambda batch: storage.restore(batch, schema), pin)


def query(store: Store, sql: str, versions: Mapping[str, int]) -> tuple[pa.RecordBatchReader, dict[str, int]]:
    """The rows of a SELECT over views, and the version that each view was read at."""
    with store.lock:
        known = frozenset(store.names)
    for name in versions:
        store.view(name)
    used = views_in(sql, known)
    with store.lock:
        pin = store.graveyard.pin()
        at = {name: store.at(view, versions.get(view)) for name, view in used.items()}
    cursor = store.duck.cursor()
    try:
        for name, (snapshot, number) in at.items():
            scan = bag_scan(snapshot, number)
            register(cursor, scan)
            cursor.execute(f"CREATE TEMP VIEW {quote(name)} AS {scan.sql}")
        reader = cursor.sql(sql).to_arrow_reader(BATCH_ROWS)
    except duckdb.Error as error:
        raise query_error(error) from None
    result = transform(reader, reader.schema, lambda batch: batch, cursor, pin)
    return result, {used[name]: number for name, (_, number) in at.items()}


def record(store: Store, name: str, version: int) -> VersionRecord:
    """One visible version of the view."""
    with store.lock:
        newest = store.newest(name)
        if version == newest.version:
            return newest
        if not 0 <= version < newest.version:
            raise missing_version(name, version, newest.version)
    return records(store, name, version, version)[0]


def records(store: Store, name: str, low: int, high: int) -> list[VersionRecord]:
    """The view's versions low..high, in order."""
    with store.lock:
        pin = store.graveyard.pin()
        view_id = store.view(name).view_id
        rows = store.versions.rows_between(view_id, low, high)
    found = store.versions.read(rows)
    pin.release()
    return found


def changes(
    store: Store, name: str, after: int, up_to: int | None
) -> Iterator[tuple[VersionRecord, pa.Table]]:
    """Each version after `after` with its change; checks its arguments before the first one is asked for."""
    newest = store.newest(name).version
    if after < 0:
        raise PositionTrimmedError(f"the changes of view {name!r} begin after version 0, not after {after}")
    if after > newest:
        raise missing_version(name, after, newest)
    return _changes(store, name, after + 1, newest if up_to is None else min(up_to, newest))


def _changes(store: Store, name: str, low: int, high: int) -> Iterator[tuple[VersionRecord, pa.Table]]:
    while low <= high:
        window = _window(records(store, name, low, min(high, low + _WINDOW_VERSIONS - 1)))
        with store.lock:
            pin = store.graveyard.pin()
            snapshot, _ = store.at(name, None)
        shown = snapshot.view.visible
        schema = declared_schema(shown, counted=True)
        if any(version.changed_rows for version in window):
            rows = store.duck.table(change_scan(snapshot, window[0].version, window[-1].version))
        else:
            rows = pa.schema([pa.field(VERSION, pa.int64()), *schema]).empty_table()
        pin.release()
        numbers = np.asarray(rows[VERSION].to_numpy(), np.int64)
        table = shown.restore_table(rows.drop_columns([VERSION]), schema)
        bounds = np.searchsorted(numbers, np.arange(window[0].version, window[-1].version + 2)).tolist()
        for version, start, stop in zip(window, bounds, bounds[1:], strict=False):
            yield version, table.slice(start, stop - start)
        low = window[-1].version + 1


def _window(found: list[VersionRecord]) -> list[VersionRecord]:
    """As many of these versions as fit into one window; at least one."""
    rows = np.cumsum([version.changed_rows for version in found])
    return found[: max(1, int(np.searchsorted(rows, _WINDOW_ROWS)))]
