"""Local views of one source that have come differently far, where transactions cannot be told apart.

What happened while no wrapper watched an SQLite file is one entry, from wherever it is asked for. A local
view that has seen a part of it must not get that part again.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from adapters.registry import create
from adapters.spi import SourceConfig
from adapters.sqlite.snapshot import token
from algebra.expressions import ColumnRef
from algebra.local_view import LocalView, Occurrence, OutputColumn
from algebra.position import Position
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.server import WrapperServer
from wrapper.tests.exchange import Mediator
from wrapper.tests.sqlite_writer import SqliteWriter


def view(name: str) -> LocalView:
    column = OutputColumn("x", ColumnRef("r", "x"), pa.int64())
    return LocalView(f"{name}.s", "s", (Occurrence("r", "r"),), (), (), (column,))


EARLY, LATE = view("early"), view("late")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, folder: Path) -> tuple[WrapperServer, str]:
    server = WrapperServer(create(SourceConfig("s", "sqlite", f"sqlite:///{folder / 's.db'}")), "127.0.0.1:0")
    stack.callback(server.stop, 0)
    return server, server.start()


def rows(update: pb.Update) -> dict[str, Counter[int]]:
    """By local view, the rows that it got."""
    found: dict[str, Counter[int]] = {}
    for delta in update.deltas:
        table = pa.ipc.open_stream(delta.arrow).read_all()
        found[delta.local_view] = Counter(
            dict(zip(*table.select(["x", "_count"]).to_pydict().values(), strict=True))
        )
    return found


def test_a_batch_that_begins_before_a_cursor_is_not_reported_from_there(
    stack: ExitStack, tmp_path: Path
) -> None:
    writer = stack.enter_context(SqliteWriter(tmp_path / "s.db"))
    writer.commit("CREATE TABLE r (x INTEGER)")
    server, address = start(stack, tmp_path)
    with Mediator(address, "s") as mediator:
        mediator.expect("attached")
        _, beginning = mediator.load(EARLY)
    server.stop(0)
    for x in (1, 2, 3):
        writer.commit(f"INSERT INTO r VALUES ({x})")  # nobody watches
    [[middle]] = writer.rows("SELECT max(seq) FROM _lockstep_log WHERE c0 = 2")
    [[nonce]] = writer.rows(f"SELECT nonce FROM _lockstep_log WHERE seq = {middle}")
    [[epoch]] = writer.rows("SELECT value FROM _lockstep_meta WHERE name = 'epoch'")
    seen = Position(middle, token(epoch, nonce))
    # What the write-ahead log could tell of single transactions is gone.
    checkpoint = (
        "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA wal_checkpoint(TRUNCATE)')"
    )
    subprocess.run([sys.executable, "-c", checkpoint, str(tmp_path / "s.db")], check=True)
    _, address = start(stack, tmp_path)
    with Mediator(address, "s") as mediator:
        mediator.expect("attached")
        mediator.define(EARLY, beginning)
        mediator.define(LATE, seen)
        mediator.expect("defined")
        mediator.expect("defined")
        mediator.credit()
        got: dict[str, Counter[int]] = {}
        while len(got) < 2:
            update = mediator.expect("update")
            assert all(transaction.batched for transaction in update.transactions)
            got.update(rows(update))
    assert got == {EARLY.name: Counter([1, 2, 3]), LATE.name: Counter([3])}
