"""Types: every value comes back as it was written, through fetch, through changes, and as a key."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from adapters.conformance.bench import Bench
from adapters.conformance.case import Case
from adapters.conformance.model import canonical
from adapters.conformance.operations import Delete, Insert, Transaction, Update
from adapters.conformance.queries import select, table
from adapters.conformance.samples import SAMPLES, Sample
from algebra.position import Position


def _held(sample: Sample, bench: Bench) -> tuple[Any, ...]:
    """Those of the values that the source can hold."""
    stored = bench.quirks.stored.get(sample.type)
    return tuple(value for value in sample.values if stored is None or stored.holds(value))


def _declare(sample: Sample, bench: Bench) -> None:
    if sample.declared:
        bench.harness.declared = {("sample", "value"): sample.declared}


def _start(sample: Sample, bench: Bench) -> Position:
    _declare(sample, bench)
    return bench.start(table("sample", {"id": pa.int64(), "value": sample.type}, key=["id"]))


def _round_trip(sample: Sample, bench: Bench) -> None:
    """Each value is inserted, moved to another row, and deleted, beside a NULL."""
    start = _start(sample, bench)
    values = (*_held(sample, bench), None)
    moved = (*values[1:], values[0])
    bench.write(Transaction((Insert("sample", tuple(enumerate(values))),)))
    bench.require_agreement(start, "after the insert")
    bench.write(
        Transaction(
            tuple(
                Update("sample", (i, before), (i, after))
                for i, (before, after) in enumerate(zip(values, moved, strict=True))
            )
        )
    )
    bench.require_agreement(start, "after the update")
    bench.write(Transaction(tuple(Delete("sample", (i, moved[i])) for i in range(0, len(moved), 2))))
    bench.require_agreement(start, "after the delete")


def _as_bag(sample: Sample, bench: Bench) -> None:
    """The same values in a table without a key, where a row is found by its values alone."""
    _declare(sample, bench)
    start = bench.start(table("sample", {"value": sample.type}))
    values = _held(sample, bench)
    bench.write(Transaction((Insert("sample", tuple((v,) for v in values) * 2),)))
    bench.write(Transaction(tuple(Delete("sample", (v,)) for v in values[::2])))
    bench.require_agreement(start)


def _as_key(sample: Sample, bench: Bench) -> None:
    """Keys of this type select exactly the rows with an equal value; NULL is not equal to anything."""
    _start(sample, bench)
    held = _held(sample, bench)
    values = (*held, None, *held[:3], None)
    bench.write(Transaction((Insert("sample", tuple(enumerate(values))),)))
    query = select(bench.catalog, {"s": "sample"}, [("s", "id"), ("s", "value")])
    odd = {canonical(value) for value in sample.no_keys}
    stored = [bench.model.stored("sample", (0, v))[1] for v in held if canonical(v) not in odd]
    distinct = list(dict.fromkeys(value for value in stored if value is not None))
    absent = [bench.model.stored("sample", (0, sample.absent))[1]] if sample.absent is not None else []
    for keys in (
        [*distinct[::2], *absent],
        [*distinct[1::2], *absent],
        distinct,
        *([v] for v in distinct[:4]),
    ):
        text = repr(keys) if len(keys) < 3 else f"{len(keys)} keys"
        bench.require_answer(
            query, (["o1"], [(key,) for key in keys]), f"fetch by {sample.name} keys, {text}"
        )


def _cases(sample: Sample) -> list[Case]:
    kinds = (
        ("type", _round_trip, "comes back as written through fetch and through changes"),
        ("bag-of", _as_bag, "is counted as written in a table without a key"),
        ("key-of", _as_key, "selects exactly the equal rows when it is a key of a fetch"),
    )
    return [
        Case(f"{prefix}-{sample.name}", f"Every {sample.name} {demand}.", functools.partial(check, sample))
        for prefix, check, demand in kinds
    ]


def cases_of(samples: Iterable[Sample]) -> tuple[Case, ...]:
    """The type cases for these samples."""
    return tuple(case for sample in samples for case in _cases(sample))


CASES = cases_of(SAMPLES)
