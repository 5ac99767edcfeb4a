"""Large updates leave in parts that the other end can put together again."""

from __future__ import annotations

import pyarrow as pa
import pytest

from adapters.spi import Changes
from algebra.arrow_ipc import from_ipc
from algebra.position import Position
from protos.convert import now
from wrapper import order_assignment
from wrapper.message_queue import OrderMessageQueue
from wrapper.order_assignment import OrderAssignment
from wrapper.update_processor import DeltaIS


def delta(rows: int, transactions: int) -> DeltaIS:
    table = pa.table(
        {
            "x": pa.array(range(rows), pa.int64()),
            "_tx": pa.array([i * transactions // max(rows, 1) for i in range(rows)], pa.int32()),
            "_count": pa.array([1] * rows, pa.int64()),
        }
    )
    return DeltaIS(table, tuple(range(transactions)))


@pytest.mark.parametrize(("rows", "parts"), [(0, 1), (3, 1), (1000, 20)])
def test_rows_are_split_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, rows: int, parts: int) -> None:
    monkeypatch.setattr(order_assignment, "CHUNK_BYTES", 1000)
    queue = OrderMessageQueue()
    changes = Changes((Position(1), Position(2)), {})
    deltas = {"a": delta(rows, 2), "b": delta(2, 2)}
    cost = OrderAssignment(queue).send_update(changes, deltas, Position(2), now())
    queue.close()
    sent = [response.update for response in queue if response.WhichOneof("message") == "update"]
    assert cost == rows + 2 + 2
    assert len(sent) >= parts
    assert [update.more for update in sent] == [True] * (len(sent) - 1) + [False]
    assert [update.cost for update in sent] == [0] * (len(sent) - 1) + [cost]
    assert [len(update.transactions) for update in sent] == [2] + [0] * (len(sent) - 1)
    for name, expected in deltas.items():
        told = [d for update in sent for d in update.deltas if d.local_view == name]
        found = [from_ipc(d.arrow) for d in told if d.arrow]
        assert sum(table.num_rows for table in found) == expected.rows.num_rows
        if found:
            assert pa.concat_tables(found).equals(expected.rows)
    touched = {d.local_view: list(d.touched) for d in sent[0].deltas}
    assert touched == {"a": [0, 1], "b": [0, 1]}, "told by the first part"
