"""What the warehouse's tests build and compare with: version rows, counted tables and bags."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from algebra.position import ORIGIN, Position
from mediator.warehouse import VersionRow, ViewInstall, Warehouse

Bag = Counter[tuple[Any, ...]]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
START = datetime(2026, 1, 1, tzinfo=UTC)


def row(version: int, source: str = "shop", vector: Mapping[str, Position] | None = None) -> VersionRow:
    """The version made by transaction `version` of `source`."""
    position = Position(version, f"t{version}") if version else ORIGIN
    return VersionRow(
        version=version,
        source=source if version else "",
        position=position,
        vector=vector or {source: position, "crm": Position(7, 'say "hi"')},
        observed_at=START + timedelta(seconds=version),
    )


def counted(
    rows: Mapping[tuple[Any, ...], int], schema: pa.Schema = SCHEMA, version: int | None = None
) -> pa.Table:
    """These counted rows as a table; with `version`, as that version's change."""
    arrays = [pa.array([key[i] for key in rows], field.type) for i, field in enumerate(schema)]
    table = pa.table(arrays, schema=schema).append_column("_count", pa.array(list(rows.values()), pa.int64()))
    if version is not None:
        table = table.append_column("_version", pa.array([version] * len(rows), pa.int64()))
    return table


def change(
    view: str, version: int, rows: Mapping[tuple[Any, ...], int], schema: pa.Schema = SCHEMA
) -> ViewInstall:
    """An install of one version with this change."""
    return ViewInstall(view, [row(version)], table=counted(rows, schema, version))


def bag(table: pa.Table | pa.RecordBatchReader) -> Bag:
    """{row: count} of a counted table; fails if it is not in normal form."""
    if isinstance(table, pa.RecordBatchReader):
        table = table.read_all()
    counts = table["_count"].to_pylist()
    columns = [column.to_pylist() for column in table.drop_columns(["_count"]).columns]
    keys = [tuple(map(_comparable, key)) for key in zip(*columns, strict=True)]
    assert len(set(keys)) == len(keys), "a row occurs twice"
    assert 0 not in counts, "a count is zero"
    return Counter(dict(zip(keys, counts, strict=True)))


def at(warehouse: Warehouse, view: str, version: int | None = None) -> Bag:
    """The view at a version."""
    return bag(warehouse.read(view, version))


def plus(left: Bag, right: Mapping[tuple[Any, ...], int]) -> Bag:
    """The sum of two counted relations, without zeros."""
    total = Counter(left)
    for key, count in right.items():
        total[key] += count
    return Counter({key: count for key, count in total.items() if count})


def random_change(generator: random.Random, state: Bag) -> dict[tuple[Any, ...], int]:
    """A change that the state allows: inserts, deletes, duplicates, or nothing."""
    delta: Bag = Counter()
    for _ in range(generator.choice([0, 1, 1, 2, 5])):
        delta[(generator.randrange(12), generator.choice(["a", "b", None]))] += generator.choice([1, 1, 2])
    for key in list(state):
        if generator.random() < 0.15:
            delta[key] -= generator.randint(1, state[key])
    return {key: count for key, count in delta.items() if count}


def _comparable(value: object) -> object:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
