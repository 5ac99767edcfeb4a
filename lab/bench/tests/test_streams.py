"""Streams are reproducible and consistent with the tables they run on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from lab.bench.baseline import recompute
from lab.bench.streams import KIND_WEIGHTS, Transaction, read_stream, transactions, write_stream
from lab.bench.tests.tiny import apply, arrow_table, tiny_base
from lab.bench.workload import TABLES, Row

BASE = tiny_base()
DIGEST = "269928bf770d2cdf31a3cc0874512234852f491082e5b9108d67ef1f40d09ae7"


def test_the_same_seed_gives_the_same_stream() -> None:
    assert list(transactions(BASE, 200, 7)) == list(transactions(BASE, 200, 7))
    assert list(transactions(BASE, 200, 7)) != list(transactions(BASE, 200, 8))


def test_a_stream_begins_like_every_longer_one() -> None:
    assert list(transactions(BASE, 50, 7)) == list(transactions(BASE, 300, 7))[:50]


def test_the_order_of_random_draws_is_fixed() -> None:
    """Other systems run these very bytes; a changed draw would make figures incomparable."""
    lines = [transaction.to_json() for transaction in transactions(BASE, 500, 7)]
    assert lines[0] == (
        '{"tx":1,"source":"B","kind":"insert_order","ops":[["+","orders",[41,1,"1993-07-21"]],'
        '["+","lineitem",[41,1,1,24,9867560]]],"view_rows":1}'
    )
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == DIGEST


def test_every_transaction_touches_one_source_and_exists_in_the_mix() -> None:
    stream = list(transactions(BASE, 400, 7))
    assert [t.number for t in stream] == list(range(1, 401))
    assert set(Counter(t.kind for t in stream)) == set(KIND_WEIGHTS)
    for transaction in stream:
        assert {TABLES[op.table].source for op in transaction.operations} == {transaction.source}


def test_every_deleted_row_exists_and_no_key_is_inserted_twice() -> None:
    tables = {name: {TABLES[name].key_of(row): row for row in rows} for name, rows in BASE.items()}
    for transaction in transactions(BASE, 400, 7):
        for op in transaction.operations:
            key = TABLES[op.table].key_of(op.row)
            if op.sign == "-":
                assert tables[op.table].pop(key) == op.row
            else:
                assert key not in tables[op.table]
                tables[op.table][key] = op.row


def test_predicted_view_rows_are_those_of_a_recompute() -> None:
    tables = {name: set(rows) for name, rows in BASE.items()}
    view = _view(tables)
    for transaction in transactions(BASE, 60, 7):
        apply(tables, transaction)
        after = _view(tables)
        changed = (after - view).total() + (view - after).total()
        assert transaction.view_rows == changed, transaction
        view = after


def test_a_stream_survives_its_file(tmp_path: Path) -> None:
    stream = list(transactions(BASE, 20, 7))
    path = tmp_path / "k20.jsonl"
    write_stream(path, stream)
    assert list(read_stream(path)) == stream
    assert list(read_stream(path, 5)) == stream[:5]


@pytest.mark.parametrize("kind", list(KIND_WEIGHTS))
def test_json_round_trip(kind: str) -> None:
    transaction = next(t for t in transactions(BASE, 100, 7) if t.kind == kind)
    assert Transaction.from_json(transaction.to_json()) == transaction


def _view(tables: Mapping[str, set[Row]]) -> Counter[Row]:
    view = recompute({name: arrow_table(name, list(rows)) for name, rows in tables.items()}, repeats=1).view
    return Counter(zip(*(column.to_pylist() for column in view.columns), strict=True))
