"""Types: every value comes back as it was written, through fetch, through changes, and as a key."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from adapters.conformance.bench import Bench
from adapters.conformance.case import Case
from adapters.conformance.model import canonical
from adapters.conformance.operations import Delete, Insert, Transaction, Update
from adapters.conformance.queries import select, table


@dataclass(frozen=True)
class Sample:
    """A logical type with values at its edges. `no_keys`: values whose equality sources differ on."""

    name: str
    type: pa.DataType
    values: tuple[Any, ...]
    absent: Any
    no_keys: tuple[Any, ...] = ()


MOMENTS = (
    datetime(2024, 2, 29, 12, 34, 56, 789012),
    datetime(2024, 2, 29, 12, 34, 56, 789013),
    datetime(2024, 2, 29, 12, 34, 56, 789000),
    datetime(2024, 2, 29, 12, 34, 56),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(1970, 1, 1),
    datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
)

SAMPLES = (
    Sample(
        "integer",
        pa.int64(),
        (0, 1, -1, 2**31, 2**53 + 1, 2**53, 2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1),
        absent=7,
    ),
    Sample(
        "float",
        pa.float64(),
        (1.5, -1.5, 0.1, 0.1 + 0.2, 1e308, 5e-324, 3.0, math.inf, -math.inf, math.nan, 0.0, -0.0),
        absent=7.5,
        no_keys=(math.nan, 0.0, -0.0),
    ),
    Sample(
        "decimal",
        pa.decimal128(18, 4),
        tuple(map(Decimal, ("0.1000", "0.3000", "0.0001", "-0.0001", "1.1000", "99999999999999.9999",
                            "-99999999999999.9999", "99999999999999.9998", "0.0000"))),
        absent=Decimal("7.7000"),
    ),
    Sample(
        "wide-decimal",
        pa.decimal128(38, 10),
        tuple(map(Decimal, ("1234567890123456789012345678.0123456789",
                            "1234567890123456789012345678.0123456788",
                            "-1234567890123456789012345678.0123456789", "0.0000000001"))),
        absent=Decimal("7.0000000000"),
    ),
    Sample(
        "text",
        pa.string(),
        ("plain", "Plain", "PLAIN", "plain ", " plain", "", " ", "NULL", "null", "007", "7", "7.0", "1e3",
         "it's", 'say "hi"', "semi;colon -- comment", "back\\slash \\n", "new\nline\ttab\r\n", "ünïcödé",
         "u\u0308ni\u0308", "表 😀 👩‍👩‍👧", "%_?:$1{}", "ß", "SS", "\u00a0", "0x00", "true",
         "long " * 20_000),
        absent="absent",
    ),
    Sample(
        "blob",
        pa.binary(),
        (b"\x00\x01\x00", b"\x00", b"", b"plain", b"Plain", bytes(range(256)), b"\xff\xfe", b"'\"\\",
         b"\x00" * 70_000),
        absent=b"absent",
    ),
    Sample("boolean", pa.bool_(), (True, False), absent=None),
    Sample(
        "date",
        pa.date32(),
        (date(2024, 2, 29), date(1970, 1, 1), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31),
         date(1582, 10, 10), date(1900, 3, 1)),
        absent=date(2000, 1, 1),
    ),
    Sample("timestamp", pa.timestamp("us"), MOMENTS, absent=datetime(2000, 1, 1)),
    Sample(
        "timestamp-with-zone",
        pa.timestamp("us", "UTC"),
        tuple(moment.replace(tzinfo=UTC) for moment in MOMENTS),
        absent=datetime(2000, 1, 1, tzinfo=UTC),
    ),
)  # fmt: skip


def _held(sample: Sample, bench: Bench) -> tuple[Any, ...]:
    """Those of the values that the source can hold."""
    stored = bench.quirks.stored.get(sample.type)
    return tuple(value for value in sample.values if stored is None or stored.holds(value))


def _round_trip(sample: Sample, bench: Bench) -> None:
    """Each value is inserted, moved to another row, and deleted, beside a NULL."""
    start = bench.start(table("sample", {"id": pa.int64(), "value": sample.type}, key=["id"]))
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
    start = bench.start(table("sample", {"value": sample.type}))
    values = _held(sample, bench)
    bench.write(Transaction((Insert("sample", tuple((v,) for v in values) * 2),)))
    bench.write(Transaction(tuple(Delete("sample", (v,)) for v in values[::2])))
    bench.require_agreement(start)


def _as_key(sample: Sample, bench: Bench) -> None:
    """Keys of this type select exactly the rows with an equal value; NULL is not equal to anything."""
    bench.start(table("sample", {"id": pa.int64(), "value": sample.type}, key=["id"]))
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


CASES = tuple(case for sample in SAMPLES for case in _cases(sample))
