"""The marks of global transactions, and rows, stay with their updates, however the queue is cut."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from algebra.assembly import SEQUENCE
from algebra.global_transaction import GlobalTransaction
from algebra.position import Position
from mediator.update_queue import DeliveredRun, UpdateMessageQueue

INT = pa.int64()
X, Y = (GlobalTransaction(id, frozenset({"s", "t"})) for id in "xy")
MARKS = [X, None, None, Y, None]
WHEN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def queue() -> UpdateMessageQueue:
    """Five transactions of one source. The first four touch the view, the fourth without rows."""
    queue = UpdateMessageQueue(2, [pa.schema([("a", INT)])] * 2, installed=0)
    rows = pa.table({"a": [1, 2, 3], "_tx": pa.array([0, 1, 2], pa.int32()), "_count": [1, 1, 1]})
    positions = [Position(10 * (i + 1)) for i in range(5)]
    run = queue.next_run(
        "s", positions, [False] * 5, [1, 2, 3, 4, 5], WHEN, {0: (rows, (0, 1, 2)), 1: (None, (3,))}, MARKS
    )
    assert run is not None
    queue.log_update(run)
    return queue


def marks(runs: Sequence[DeliveredRun]) -> dict[int, GlobalTransaction | None]:
    """The mark of each waiting transaction by the ordinal of its position."""
    return {p.ordinal: m for run in runs for p, m in zip(run.positions, run.marks, strict=True)}


def test_each_update_has_its_mark(queue: UpdateMessageQueue) -> None:
    assert marks(queue.runs) == {10: X, 20: None, 30: None, 40: Y}


def test_a_prefix_keeps_its_marks(queue: UpdateMessageQueue) -> None:
    assert marks(queue.prefix(horizon=2, limit=9)) == {10: X, 20: None}


def test_what_is_installed_leaves_with_its_mark(queue: UpdateMessageQueue) -> None:
    queue.installed(1)
    assert marks(queue.runs) == {20: None, 30: None, 40: Y}


@pytest.mark.parametrize("rebase", [True, False])
def test_what_a_vector_reflects_leaves_with_its_mark(queue: UpdateMessageQueue, rebase: bool) -> None:
    vector = {"s": Position(30)}
    if rebase:
        queue.rebase(7, vector)
    else:
        queue.forget(vector)
    assert marks(queue.runs) == {40: Y}


def test_without_marks_none_is_a_part(queue: UpdateMessageQueue) -> None:
    queue.clear(0)
    run = queue.next_run("s", [Position(1), Position(2)], [False] * 2, [1, 2], WHEN, {0: (None, (0, 1))})
    assert run is not None
    queue.log_update(run)
    assert marks(queue.runs) == {1: None, 2: None}


def test_a_run_is_cut_into_transactions_without_copying_rows() -> None:
    """Each has the rows that carry its number, of each node; one may have none of a node, or none at all."""
    width, first = 3, 7
    numbers = {0: [7, 7, 9, 10, 10, 10], 2: [8, 9, 9]}
    tables = {
        node: pa.table(
            {
                "a": [f"{node} {i}" for i in range(len(versions))],
                "_count": [1] * len(versions),
                SEQUENCE: [version * width + node for version in versions],
            }
        )
        for node, versions in numbers.items()
    }
    run = DeliveredRun("s", first, [Position(i) for i in range(1, 7)], [False] * 6, range(6), WHEN, tables)
    before = pa.total_allocated_bytes()
    deltas = run.deltas(width)
    assert pa.total_allocated_bytes() == before
    expected = [
        {
            node: rows.drop_columns([SEQUENCE])
            for node, table in tables.items()
            if (rows := table.filter(pc.equal(table[SEQUENCE], version * width + node))).num_rows
        }
        for version in range(first, first + 6)
    ]
    assert deltas == expected
    assert [sorted(found) for found in deltas] == [[0], [2], [0, 2], [0], [], []]
