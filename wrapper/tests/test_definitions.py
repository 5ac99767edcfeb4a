"""Several local views of one source are defined together: a transaction reaches all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.registry import create
from adapters.spi import SourceConfig
from algebra.decompose import decompose
from algebra.local_view import LocalView
from algebra.position import Position
from protos.convert import catalog_from_proto, local_view_to_proto, position_to_proto
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.message_queue import WrapperMessageQueue
from wrapper.server import WrapperServer
from wrapper.tests.exchange import Mediator
from wrapper.tests.sqlite_writer import SqliteWriter


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SqliteWriter]:
    with SqliteWriter(tmp_path / "s.db") as made:
        made.commit("CREATE TABLE r (a INTEGER PRIMARY KEY, b INTEGER)", "INSERT INTO r VALUES (1, 2)")
        yield made


@pytest.fixture
def mediator(writer: SqliteWriter, tmp_path: Path) -> Iterator[Mediator]:
    server = WrapperServer(
        create(SourceConfig("s", "sqlite", f"sqlite:///{tmp_path / 's.db'}")), "127.0.0.1:0"
    )
    with Mediator(server.start(), "s") as made:
        made.expect("attached")
        yield made
    server.stop(0)


def local_views(mediator: Mediator) -> tuple[LocalView, ...]:
    catalog = catalog_from_proto("s", list(mediator.describe().relations))
    sql = "SELECT x.a, y.b FROM s.r x JOIN s.r y ON x.b = y.a"
    return decompose("v", sql, {"s": catalog}, per_relation=True).local_views


def define(mediator: Mediator, view: LocalView, after: Position, more: bool) -> None:
    mediator.send(
        define=pb.DefineLocalView(
            local_view=local_view_to_proto(view), after=position_to_proto(after), more=more
        )
    )


def test_nothing_is_reported_before_all_are_defined(mediator: Mediator, writer: SqliteWriter) -> None:
    left, right = local_views(mediator)
    _, position = mediator.load(left)
    writer.commit("INSERT INTO r VALUES (2, 3)")
    mediator.credit()
    define(mediator, left, position, more=True)
    assert mediator.expect("defined").local_view == left.name
    asked = mediator.ask(left, None)
    writer.commit("INSERT INTO r VALUES (3, 4)")
    define(mediator, right, position, more=False)
    assert mediator.expect("defined").local_view == right.name
    update = mediator.expect("update")
    assert [delta.local_view for delta in update.deltas] == [left.name, right.name]
    assert all(list(delta.touched) == [0, 1] for delta in update.deltas)
    mediator.result(left, asked)


def test_progress_waits_for_a_local_view_that_is_behind(mediator: Mediator, writer: SqliteWriter) -> None:
    left, right = local_views(mediator)
    _, position = mediator.load(left)
    mediator.credit(1)
    define(mediator, left, position, more=False)
    mediator.expect("defined")
    writer.commit("INSERT INTO r VALUES (2, 3)")
    assert [delta.local_view for delta in mediator.expect("update").deltas] == [left.name]
    assert mediator.receive(heartbeats=True).WhichOneof("message") == "progress"
    define(mediator, right, position, more=False)
    while (kind := mediator.receive(heartbeats=True).WhichOneof("message")) != "defined":
        assert kind == "progress"
    mediator.credit()
    while (following := mediator.receive(heartbeats=True)).WhichOneof("message") != "update":
        assert not following.progress.HasField("position"), "no progress before what it would speak of"


def test_messages_that_could_not_be_handled_come_first_again() -> None:
    messages: WrapperMessageQueue[int] = WrapperMessageQueue(lambda: None)
    for number in (1, 2, 3):
        messages.put(number)
    taken = messages.take_all()
    messages.put(4)
    messages.put_back(taken[1:])
    assert messages.take_all() == [2, 3, 4]
