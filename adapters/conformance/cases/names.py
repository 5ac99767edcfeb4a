"""Names: tables and columns may be called anything."""

from __future__ import annotations

import pyarrow as pa

from adapters.conformance.bench import Bench
from adapters.conformance.case import CaseSkipped, case
from adapters.conformance.operations import Delete, Insert, Transaction, Update
from adapters.conformance.queries import select, table

UGLY = (
    "select",
    "two words",
    'quo"te',
    "apo'strophe",
    "semi;colon",
    "x; DROP TABLE y; --",
    "Ünï 表 😀",
    "1st",
    "per%cent",
    "ques?tion",
    ":colon",
    "$1",
    "{brace}",
    "back\\slash",
    "dot.ted",
    "[bracket]",
    "`tick`",
    " space ",
    "UPPER",
)

INNER = (
    "seq",
    "op",
    "tx",
    "old",
    "new",
    "key",
    "value",
    "position",
    "k0",
    "c0",
    "t0",
    "o0",
    "id",
    "rows",
    "log",
)
"""Names that an adapter may be using itself."""


def _exercise(bench: Bench, relation: str, columns: tuple[str, ...]) -> None:
    """Insert, update, delete, and fetch by key under ugly aliases and output names."""
    rows = [tuple(10 * r + c for c in range(len(columns))) for r in range(3)]
    changed = (rows[0][0], *(-value for value in rows[0][1:]))
    bench.write(
        Transaction((Insert(relation, tuple(rows)),)),
        Transaction((Update(relation, rows[0], changed),)),
        Transaction((Delete(relation, rows[1]),)),
    )
    query = select(
        bench.catalog,
        {'alias "1"': relation, "order": relation},
        [('alias "1"', column) for column in columns],
        joins=[(('alias "1"', columns[0]), ("order", columns[0]))],
        names=[f"out {column}" for column in columns],
    )
    keys = ([f"out {columns[-1]}"], [(changed[-1],), (99,)])
    bench.require_answer(query, keys, f"keyed self-join of {relation!r}")


@case
def ugly_table_names(bench: Bench) -> None:
    """Tables with spaces, quotes, keywords, semicolons and letters of any script are captured and fetched."""
    tables = [table(name, {"id": pa.int64(), name: pa.int64()}, key=["id"]) for name in UGLY[:9]]
    start = bench.start(*tables)
    for relation in tables:
        _exercise(bench, relation.name, tuple(column.name for column in relation.columns))
    bench.require_agreement(start)


@case
def ugly_column_names(bench: Bench) -> None:
    """Columns with spaces, quotes, keywords, semicolons and letters of any script, key or not."""
    start = bench.start(
        table("keyed", dict.fromkeys(UGLY, pa.int64()), key=UGLY[:3]),
        table("bag", dict.fromkeys(reversed(UGLY), pa.int64())),
    )
    _exercise(bench, "keyed", UGLY)
    _exercise(bench, "bag", tuple(reversed(UGLY)))
    bench.require_agreement(start)


@case
def names_an_adapter_may_use_itself(bench: Bench) -> None:
    """Columns called as an adapter's own log columns or aliases might be do not get in their way."""
    start = bench.start(
        table("changes", dict.fromkeys(INNER, pa.int64()), key=["seq"]),
        table("keys", dict.fromkeys(INNER, pa.int64())),
    )
    _exercise(bench, "changes", INNER)
    _exercise(bench, "keys", INNER)
    bench.require_agreement(start)


@case
def names_that_differ_in_case(bench: Bench) -> None:
    """`item` and `Item` are two tables, `a` and `A` two columns."""
    if not bench.quirks.case_sensitive_names:
        raise CaseSkipped("this source takes item and Item for the same name")
    columns = {"id": pa.int64(), "a": pa.int64(), "A": pa.int64()}
    start = bench.start(table("item", columns, key=["id"]), table("Item", columns, key=["id"]))
    _exercise(bench, "item", tuple(columns))
    bench.write(Transaction((Insert("Item", ((1, 2, 3),)),)))
    bench.require_agreement(start)


CASES = (ugly_table_names, ugly_column_names, names_an_adapter_may_use_itself, names_that_differ_in_case)
