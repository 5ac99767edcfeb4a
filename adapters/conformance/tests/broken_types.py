"""Faults in values: for each type, one way to distort it and one way to confuse it as a key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from adapters.conformance.samples import SAMPLES, Sample
from adapters.conformance.tests.fault import (
    BrokenSnapshot,
    Fault,
    Record,
    edit_changes,
    edit_rows,
    snapshot_fault,
)
from adapters.spi import SourceTransaction
from algebra.local_view import Keys, LocalView
from algebra.position import Position

Distortion = Callable[[Any], Any]


def _float32(value: float) -> Any:
    return pa.array([value], pa.float64()).cast(pa.float32(), safe=False)[0].as_py()


def _as_float(value: int) -> int:
    return min(int(float(value)), 2**63 - 1)


def _julian(value: date) -> date:
    return value + timedelta(days=2) if date(1, 1, 1) <= value < date(1582, 10, 15) else value


def _to_milliseconds(value: Any) -> Any:
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


DISTORTIONS: dict[str, Distortion] = {
    "integer": _as_float,
    "float": _float32,
    "decimal": lambda value: Decimal(f"{value:f}"[:-2]),
    "wide-decimal": lambda value: Decimal(f"{value:f}"[:-2]),
    "text": lambda value: value or None,
    "blob": lambda value: value.split(b"\0")[0],
    "boolean": lambda value: True,
    "date": _julian,
    "timestamp": _to_milliseconds,
    "timestamp-with-zone": _to_milliseconds,
}

CONFUSIONS: dict[str, Distortion] = {
    **DISTORTIONS,
    "text": str.casefold,
    "blob": bytes.lower,
    "date": lambda value: value.year // 100,
}


def _distorting(sample: Sample, distort: Distortion) -> type[BrokenSnapshot]:
    def value(found: Any) -> Any:
        return None if found is None else distort(found)

    def fields(record: Record) -> Record:
        return {**record, "value": value(record["value"])}

    class Distorts(BrokenSnapshot):
        """Only changes are distorted, so that the two ways of reading a value differ."""

        def entries(self, after: Position) -> list[SourceTransaction]:
            healthy = super().entries(after)
            return [edit_changes(entry, lambda _, rows: list(map(fields, rows))) for entry in healthy]

    Distorts.__name__ = f"Distorts {sample.name} in changes"
    return Distorts


def _distorting_fetch(sample: Sample, distort: Distortion) -> type[BrokenSnapshot]:
    class Distorts(BrokenSnapshot):
        def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
            place = next(c.name for c in query.columns if c.source.column == "value")

            def fields(record: Record) -> Record:
                found = record[place]
                return {**record, place: None if found is None else distort(found)}

            return edit_rows(super().answer(query, keys), fields)

    Distorts.__name__ = f"Distorts {sample.name} in fetch"
    return Distorts


def _confusing(sample: Sample, confuse: Distortion) -> type[BrokenSnapshot]:
    class Confuses(BrokenSnapshot):
        """Keys match by what `confuse` makes of them."""

        def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
            everything = super().answer(query, None)
            if keys is None:
                return everything
            (name,) = keys.columns
            wanted = [confuse(key) for key in keys.values[name].to_pylist()]

            def match(row: Record) -> Record | None:
                return row if row[name] is not None and confuse(row[name]) in wanted else None

            return edit_rows(everything, match)

    Confuses.__name__ = f"Confuses {sample.name} keys"
    return Confuses


def _faults(sample: Sample) -> list[Fault]:
    distort, confuse = DISTORTIONS[sample.name], CONFUSIONS[sample.name]
    seen_by = (f"type-{sample.name}", f"bag-of-{sample.name}")
    return [
        snapshot_fault(_distorting(sample, distort), *seen_by),
        snapshot_fault(_distorting_fetch(sample, distort), *seen_by),
        snapshot_fault(_confusing(sample, confuse), f"key-of-{sample.name}"),
    ]


FAULTS = tuple(fault for sample in SAMPLES for fault in _faults(sample))
