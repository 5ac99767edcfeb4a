"""How versions are read: as streams that keep the files they need until they have ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from algebra.errors import NotFoundError, PositionTrimmedError
from mediator.warehouse.client_query import ClientQueries, GiveUp, Question, StopBy
from mediator.warehouse.duck import transform
from mediator.warehouse.graveyard import Pin
from mediator.warehouse.query import views_in
from mediator.warehouse.records import VERSION, StoredView, VersionRecord
from mediator.warehouse.scan import Scan, bag_scan, change_scan, declared_scan
from mediator.warehouse.storage import declared_schema
from mediator.warehouse.store import Store, missing_version

# How many versions, and how many of their rows, `changes` holds in memory at once.
_WINDOW_VERSIONS = 4096
_WINDOW_ROWS = 250_000

VersionsOf = Callable[[Collection[str]], Mapping[str, int]]
"""Is told the views that a query reads, before it runs; tells the version of those that are not read as they
are now."""


def read(store: Store, name: str, version: int | None) -> pa.RecordBatchReader:
    """The view at a version: its columns, hidden ones too, and `_count`, in normal form."""
    with store.lock:
        pin = store.graveyard.pin()
        snapshot, number = store.at(name, version)
    storage = snapshot.view.storage
    reader = store.duck.stream(declared_scan(snapshot, number))
    schema = declared_schema(storage, counted=True)
    return transform(reader, schema, lambda batch: storage.restore(batch, schema), pin)


def query(
    store: Store,
    queries: ClientQueries,
    sql: str,
    versions_of: VersionsOf,
    stop_by: StopBy | None = None,
    known: Collection[str] | None = None,
    caller: Hashable = None,
    give_up: GiveUp | None = None,
) -> tuple[pa.RecordBatchReader, dict[str, int]]:
    """The rows of a SELECT over views, and the version that each view was read at."""
    if known is None:
        with store.lock:
            known = frozenset(store.names)
    # To look at the text is work as well: it has its place, and its end, like that of the query.
    with queries.place(stop_by, caller, give_up) as client_query:
        used = views_in(sql, known, client_query.check)
        versions = versions_of(frozenset(used.values()))
        for name in versions:
            store.view(name)
        with store.lock:
            pin = store.graveyard.pin()
            at = {name: store.at(view, versions.get(view)) for name, view in used.items()}
        question = Question(
            sql,
            {name: bag_scan(snapshot, number) for name, (snapshot, number) in at.items()},
            {path for snapshot, _ in at.values() for path in snapshot.files},
        )
        reader = queries.answer(client_query, question, pin)
    return reader, {used[name]: number for name, (_, number) in at.items()}


def record(store: Store, name: str, version: int) -> VersionRecord:
    """One visible version of the view."""
    with store.lock:
        newest = store.newest(name)
        if version == newest.version:
            return newest
        if not 0 <= version < newest.version:
            raise missing_version(name, version, newest.version)
        pin, rows = _versions_between(store, store.view(name), version, version)
    found = store.versions.read(rows)
    pin.release()
    return found[0]


def history(store: Store, name: str, limit: int, before: int | None) -> list[VersionRecord]:
    """The view's versions, or those before one of them, newest first; `limit` 0 means all."""
    with store.lock:
        newest = store.newest(name).version
        if before is not None:
            newest = min(newest, before - 1)
        if newest < 0:
            return []
        low = max(0, newest - limit + 1) if limit else 0
        pin, rows = _versions_between(store, store.view(name), low, newest)
    found = store.versions.read(rows)
    pin.release()
    return found[::-1]


def _versions_between(store: Store, view: StoredView, low: int, high: int) -> tuple[Pin, Scan]:
    """The view's versions low..high, in order, as a scan; the caller holds the lock."""
    return store.graveyard.pin(), store.versions.rows_between(view.view_id, low, high)


def changes(
    store: Store, view: StoredView, after: int, up_to: int | None
) -> Iterator[tuple[VersionRecord, pa.Table]]:
    """Each version after `after` with its change; checks its arguments before the first one is asked for."""
    with store.lock:
        if store.data_now(view) is None:
            raise _dropped(view)
        newest = store.newest(view.name).version
    if after < 0:
        raise PositionTrimmedError(
            f"the changes of view {view.name!r} begin after version 0, not after {after}"
        )
    if after > newest:
        raise missing_version(view.name, after, newest)
    return _changes(store, view, after + 1, newest if up_to is None else min(up_to, newest))


def _changes(store: Store, view: StoredView, low: int, high: int) -> Iterator[tuple[VersionRecord, pa.Table]]:
    while low <= high:
        with store.lock:
            data = store.data_now(view)
            if data is None:
                raise _dropped(view)
            snapshot = data.snapshot()
            pin, rows_of_versions = _versions_between(store, view, low, min(high, low + _WINDOW_VERSIONS - 1))
        window = _window(store.versions.read(rows_of_versions))
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


def _dropped(view: StoredView) -> NotFoundError:
    """A view made again under this name has another history, which does not go on from this one."""
    return NotFoundError(f"view {view.name!r} was dropped meanwhile")


def _window(found: list[VersionRecord]) -> list[VersionRecord]:
    """As many of these versions as fit into one window; at least one."""
    rows = np.cumsum([version.changed_rows for version in found])
    return found[: max(1, int(np.searchsorted(rows, _WINDOW_ROWS)))]
