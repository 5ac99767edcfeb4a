"""The kit's cases of ugly names, without the one name that MariaDB itself refuses."""

from __future__ import annotations

import pyarrow as pa

from adapters.conformance import conformance_tests
from adapters.conformance.bench import Bench
from adapters.conformance.case import case
from adapters.conformance.cases.names import UGLY, _exercise
from adapters.conformance.queries import table
from adapters.mariadb.tests.harnesses import MariaDBHarness, MariaDBTriggerHarness

NAMES = tuple(
    name.strip() if name.endswith(" ") else name  # a name must not end with a blank
    for name in UGLY
    if all(ord(letter) < 0x10000 for letter in name)
)


@case
def ugly_names_of_tables(bench: Bench) -> None:
    """Tables with blanks, quotes, keywords and semicolons are captured and fetched."""
    tables = [
        table(name, {"id": pa.int64(), name: pa.int64()}, key=["id"]) for name in [*NAMES[:9], "Ünï 表"]
    ]
    start = bench.start(*tables)
    for relation in tables:
        _exercise(bench, relation.name, tuple(column.name for column in relation.columns))
    bench.require_agreement(start)


@case
def ugly_names_of_columns(bench: Bench) -> None:
    """So are such columns, key or not."""
    start = bench.start(
        table("keyed", dict.fromkeys(NAMES, pa.int64()), key=NAMES[:3]),
        table("bag", dict.fromkeys(reversed(NAMES), pa.int64())),
    )
    _exercise(bench, "keyed", NAMES)
    _exercise(bench, "bag", tuple(reversed(NAMES)))
    bench.require_agreement(start)


CASES = (ugly_names_of_tables, ugly_names_of_columns)
TestLog = conformance_tests(MariaDBHarness, CASES)
TestTrigger = conformance_tests(MariaDBTriggerHarness, CASES)
