"""A live source looked over without writing to it: the part of the kit that needs no harness."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum

import pyarrow as pa

from adapters.conformance.model import Bag, bag_of, difference
from adapters.conformance.queries import whole
from adapters.spi import Adapter, Snapshot
from algebra.errors import ConfigurationError, LockstepError
from algebra.local_view import Keys, LocalView
from algebra.schema import Catalog, RelationSchema

MAX_ROWS = 10_000
"""Rows read of each relation."""

MAX_KEYS = 50
"""Key values tried on each relation."""


@dataclass(frozen=True)
class CheckResult:
    """One line of the report: what was looked at, whether it is right, and what was seen."""

    name: str
    ok: bool
    detail: str


def check_source(adapter: Adapter, max_rows: int = MAX_ROWS) -> list[CheckResult]:
    """Everything that can be tried on a live source, prepared or not, without writing to it.

    Relations with more than `max_rows` rows are checked on the first rows that come.
    """
    results = [_try("capabilities", lambda: _capabilities(adapter))]
    catalogs: list[Catalog] = []

    def read_catalog() -> str:
        catalogs.append(adapter.catalog())
        return f"{len(catalogs[0].relations)} relations: {', '.join(sorted(catalogs[0].relations)) or 'none'}"

    results.append(_try("catalog", read_catalog))
    if not results[-1].ok:
        return results
    catalog = catalogs[0]
    results.append(_try("prepare (dry run)", lambda: _planned(adapter, catalog)))
    results += [
        _try(f"relation {schema.name}", functools.partial(_relation, adapter, catalog, schema, max_rows))
        for schema in catalog
    ]
    results.append(_try("changes", lambda: _changes(adapter)))
    return results


class _WrongError(Exception):
    """The source contradicts itself."""


def _try(name: str, look: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(name, True, look())
    except (LockstepError, _WrongError) as error:
        return CheckResult(name, False, str(error))
    except Exception as error:
        # A report goes on after a fault of the adapter itself, and names it.
        return CheckResult(name, False, f"{type(error).__name__}: {error}")


def _capabilities(adapter: Adapter) -> str:
    shown = asdict(adapter.capabilities)
    return ", ".join(f"{name} {v.value if isinstance(v, Enum) else v}" for name, v in shown.items())


def _planned(adapter: Adapter, catalog: Catalog) -> str:
    steps = adapter.prepare(tuple(catalog.relations), dry_run=True)
    return "\n".join(steps) if steps else "nothing to do: all relations are prepared"


def _relation(adapter: Adapter, catalog: Catalog, schema: RelationSchema, max_rows: int) -> str:
    """Two fetches in one snapshot agree, and so does a fetch by keys, whatever the writers do."""
    query = whole(catalog, schema.name)
    with adapter.snapshot() as snapshot:
        rows, complete = _read(snapshot, query, max_rows)
        if complete:
            again, _ = _read(snapshot, query, max_rows)
            _agree("two fetches in one snapshot differ", bag_of(rows), bag_of(again))
        keys = _sample_keys(schema, query, rows)
        tried = 0
        if keys is not None:
            tried = keys.values.num_rows
            wanted = _matching(query, rows, keys)
            # Of a relation that was not read to its end, a fetch by keys may show more than was read.
            answer = bag_of(snapshot.fetch(query, keys).read_all())
            found = answer if complete else answer & wanted
            _agree(f"a fetch by {tried} keys is not the fetch of all, filtered", wanted, found)
            strange = [row for row in answer if not _matches(query, keys, row)]
            if strange:
                raise _WrongError(f"a fetch by keys shows a row with another key: {strange[0]}")
    return f"{rows.num_rows} rows{'' if complete else ' and more'}, {tried} keys tried"


def _read(snapshot: Snapshot, query: LocalView, max_rows: int) -> tuple[pa.Table, bool]:
    """The first rows, and whether these are all."""
    reader = snapshot.fetch(query)
    wanted = [(field.name, field.type) for field in query.arrow]
    shown = [(field.name, field.type) for field in reader.schema]
    if shown != wanted:
        raise _WrongError(f"fetch shows {shown}, the catalog says {wanted}")
    batches: list[pa.RecordBatch] = []
    for batch in _until(reader, max_rows):
        batch.validate(full=True)
        batches.append(batch)
    table = pa.Table.from_batches(batches, reader.schema)
    return table.slice(0, max_rows), table.num_rows <= max_rows


def _until(reader: pa.RecordBatchReader, max_rows: int) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in reader:
        yield batch
        rows += batch.num_rows
        if rows > max_rows:
            return


def _sample_keys(schema: RelationSchema, query: LocalView, rows: pa.Table) -> Keys | None:
    """Key values from the rows read: of the declared key, or else of the first column fit for it."""
    # Whether NaN equals NaN, and how far two floats must be alike, is each source's own matter.
    fit = [c.name for c in schema.columns if not pa.types.is_floating(c.type)]
    columns = list(schema.key) if schema.key and all(name in fit for name in schema.key) else fit[:1]
    places = [i for i, column in enumerate(schema.columns) if column.name in columns]
    if not places or not rows.num_rows:
        return None
    names = [query.columns[i].name for i in places]
    values = (
        rows.select(names).drop_null().group_by(names, use_threads=False).aggregate([]).slice(0, MAX_KEYS)
    )
    return Keys(tuple(names), values.select(names)) if values.num_rows else None


def _matches(query: LocalView, keys: Keys, row: tuple[object, ...]) -> bool:
    places = [query.arrow.get_field_index(name) for name in keys.columns]
    return tuple(row[i] for i in places) in bag_of(keys.values)


def _matching(query: LocalView, rows: pa.Table, keys: Keys) -> Bag:
    places = [query.arrow.get_field_index(name) for name in keys.columns]
    wanted = bag_of(keys.values)
    bag = bag_of(rows)
    return Counter({row: n for row, n in bag.items() if tuple(row[i] for i in places) in wanted})


def _agree(fault: str, expected: Bag, found: Bag) -> None:
    text = difference(expected, found)
    if text:
        raise _WrongError(f"{fault}: {text}")


def _changes(adapter: Adapter) -> str:
    with adapter.snapshot() as snapshot:
        try:
            position = snapshot.position
            later = snapshot.changes(position)
        except ConfigurationError as error:
            return f"not captured yet: {error}"
        if len(later):
            raise _WrongError(f"the snapshot at {position} shows {len(later)} changes after its own position")
    return f"readable, at position {position}"


__all__ = ["CheckResult", "check_source"]
