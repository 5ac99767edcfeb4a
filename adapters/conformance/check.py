"""A live source looked over without writing to it: the part of the kit that needs no harness.

Writers may go on meanwhile; what is compared was read in one snapshot, or is connected by the changes between
two. What cannot be tried without writing is listed, so that nobody takes it for right.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum

import pyarrow as pa

from adapters.conformance.model import Bag, bag_of, difference, plus
from adapters.conformance.queries import select, whole
from adapters.spi import COUNT, Adapter, Snapshot
from algebra.errors import ConfigurationError, LockstepError, ResyncRequiredError
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import Catalog, RelationSchema

MAX_ROWS = 10_000
"""Rows read of each relation."""

MAX_KEYS = 50
"""Key values tried on each relation."""


@dataclass(frozen=True)
class CheckResult:
    """One line of the report: what was looked at, whether it is right, and what was seen.

    `tried`: False where nothing was looked at, and `detail` says why.
    """

    name: str
    ok: bool
    detail: str
    tried: bool = True


def check_source(adapter: Adapter, max_rows: int = MAX_ROWS) -> list[CheckResult]:
    """Everything that can be tried on a live source, prepared or not, without writing to it.

    Relations with more than `max_rows` rows are checked on the first rows that come.
    """
    results = [
        _try("capabilities", lambda: _capabilities(adapter)),
        _try("declared capture", lambda: _declared(adapter)),
    ]
    catalogs: list[Catalog] = []

    def read_catalog() -> str:
        catalogs.append(adapter.catalog())
        return _catalog(adapter, catalogs[0])

    results.append(_try("catalog", read_catalog))
    if not results[-1].ok:
        return results
    catalog = catalogs[0]
    results.append(_try("prepare (dry run)", lambda: _planned(adapter, catalog)))
    results.append(_rights(adapter, catalog))
    results += [
        _try(f"relation {schema.name}", functools.partial(_relation, adapter, catalog, schema, max_rows))
        for schema in catalog
    ]
    results += _captured(adapter, catalog, max_rows)
    results.append(CheckResult("needs writing", True, NEEDS_WRITING, tried=False))
    return results


NEEDS_WRITING = (
    "installing and removing capture, every kind of transaction, rollback and value, concurrent writers, "
    "trimming, restarts, lost connections and changed schemas; the adapter's own tests try these on a source "
    "that they make"
)


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


def _declared(adapter: Adapter) -> str:
    found, declared = adapter.capabilities, type(adapter).captures
    if found.capture not in declared:
        raise _WrongError(
            f"capture {found.capture!r} is not declared by its class; there are {list(declared)}"
        )
    profile = declared[found.capture]
    return f"at most {found.level} consistency; rights: {profile.rights}; load: {profile.load}"


def _catalog(adapter: Adapter, catalog: Catalog) -> str:
    again = adapter.catalog()
    if {name: s.columns for name, s in again.relations.items()} != {s.name: s.columns for s in catalog}:
        raise _WrongError("two readings of the catalog differ")
    for schema in catalog:
        strange = [name for name in schema.key if not schema.has_column(name)]
        if strange:
            raise _WrongError(f"the key of {schema.name} names {strange[0]!r}, which is no column of it")
    keyless = [schema.name for schema in catalog if not schema.key]
    text = f"{len(catalog.relations)} relations: {', '.join(sorted(catalog.relations)) or 'none'}"
    return text + (f"; without a key: {', '.join(sorted(keyless))}" if keyless else "")


def _rights(adapter: Adapter, catalog: Catalog) -> CheckResult:
    """What is missing to install capture, where the adapter can tell without trying."""
    try:
        missing = adapter.missing_rights(tuple(catalog.relations))
    except LockstepError as error:
        return CheckResult("rights", False, str(error))
    if missing is None:
        return CheckResult(
            "rights", True, "whether capture may be installed only prepare can tell", tried=False
        )
    if missing:
        return CheckResult("rights", False, "\n".join(missing))
    return CheckResult("rights", True, "capture may be installed, or is")


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
            nothing = snapshot.fetch(query, Keys(keys.columns, keys.values.slice(0, 0))).read_all()
            if nothing.num_rows:
                raise _WrongError(f"a fetch by no keys at all shows {nothing.num_rows} rows")
            _join(snapshot, catalog, schema, keys, wanted if complete else answer)
    return f"{rows.num_rows} rows{'' if complete else ' and more'}, {tried} keys tried"


def _join(snapshot: Snapshot, catalog: Catalog, schema: RelationSchema, keys: Keys, wanted: Bag) -> None:
    """A relation joined with itself by its declared key is itself, where the key is one."""
    if not schema.key or len(keys.columns) != len(schema.key):
        return
    joined = select(
        catalog,
        {"r": schema.name, "again": schema.name},
        [("r", column.name) for column in schema.columns],
        joins=[(("r", name), ("again", name)) for name in schema.key],
    )
    found = bag_of(snapshot.fetch(joined, keys).read_all())
    _agree("a join of the relation with itself by its key is not itself", wanted, found)


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


def _captured(adapter: Adapter, catalog: Catalog, max_rows: int) -> list[CheckResult]:
    """What can be said of the changes, if capture is installed."""
    try:
        with adapter.snapshot() as snapshot:
            position = snapshot.position
            snapshot.changes(position)
            before = {
                schema.name: _read(snapshot, whole(catalog, schema.name), max_rows) for schema in catalog
            }
    except ConfigurationError as error:
        return [CheckResult("changes", True, f"not captured yet: {error}", tried=False)]
    except Exception as error:
        return [_try("changes", functools.partial(_reraise, error))]
    return [
        _try("changes", lambda: _changes(adapter, position)),
        _try("agreement", lambda: _agreement(adapter, catalog, position, before, max_rows)),
        _try("foreign positions", lambda: _foreign(adapter)),
    ]


def _reraise(error: Exception) -> str:
    raise error


def _changes(adapter: Adapter, before: Position) -> str:
    with adapter.snapshot() as snapshot:
        position = snapshot.position
        if position < before:
            raise _WrongError(f"the position went back from {before} to {position}")
        later = snapshot.changes(position)
        if len(later):
            raise _WrongError(f"the snapshot at {position} shows {len(later)} changes after its own position")
    return f"readable, at position {position}"


def _agreement(
    adapter: Adapter,
    catalog: Catalog,
    position: Position,
    before: Mapping[str, tuple[pa.Table, bool]],
    max_rows: int,
) -> str:
    """What was there, and the changes since, are what is there now, in every relation under capture."""
    # Preparing what is prepared is no step.
    captured = [s for s in catalog if not adapter.prepare((s.name,), dry_run=True)]
    with adapter.snapshot() as snapshot:
        changes = snapshot.changes(position)
        compared = 0
        for schema in captured:
            old, complete = before[schema.name]
            new, still_complete = _read(snapshot, whole(catalog, schema.name), max_rows)
            if not complete or not still_complete:
                continue
            changed = changes.tables.get(schema.name)
            step = bag_of(changed.select([*_names(schema), COUNT])) if changed is not None else Counter()
            fault = f"{schema.name} is not what it was at {position} plus the changes since"
            _agree(fault, plus(_shown(schema, old), step), _shown(schema, new))
            compared += 1
    return f"{len(changes)} transactions since {position}; {compared} relations compared"


def _shown(schema: RelationSchema, rows: pa.Table) -> Bag:
    """Fetched rows as a bag, with the columns' own names."""
    return bag_of(rows.rename_columns(_names(schema)))


def _names(schema: RelationSchema) -> list[str]:
    return [column.name for column in schema.columns]


def _foreign(adapter: Adapter) -> str:
    with adapter.snapshot() as snapshot:
        future = replace(snapshot.position, ordinal=snapshot.position.ordinal + 1_000_000)
        stranger = replace(snapshot.position, token="of no history")
        for name, position in (("from the future", future), ("of another history", stranger)):
            try:
                snapshot.changes(position)
            except ResyncRequiredError:
                continue
            raise _WrongError(f"a position {name} is not refused")
    return "refused"


__all__ = ["CheckResult", "check_source"]
