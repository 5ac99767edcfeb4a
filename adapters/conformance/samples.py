"""Values at the edges of each logical type: the data of the type cases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Sample:
    """A logical type with values at its edges.

    `absent`: a value that is not among them, or None. `no_keys`: values whose equality sources differ on.
    `declared`: the type as the source writes it, for a type of its own (a uuid, an enum, an array); then
    `type` is what the adapter shows for it, and `values` are what its writer takes and its adapter shows.
    """

    name: str
    type: pa.DataType
    values: tuple[Any, ...]
    absent: Any
    no_keys: tuple[Any, ...] = ()
    declared: str = ""


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
