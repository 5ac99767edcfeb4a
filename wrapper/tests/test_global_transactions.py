"""Marks of global transactions on their way through the wrapper, over a real SQLite source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.registry import create
from adapters.spi import SourceConfig
from algebra.global_transaction import GlobalTransaction
from algebra.local_view import LocalView
from protos.convert import global_transaction_from_proto
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.server import WrapperServer
from wrapper.tests.exchange import Mediator, deltas_of
from wrapper.tests.sqlite_writer import SqliteWriter

MARK = "INSERT INTO _lockstep_global (id, participants) VALUES ('{}', 'is1,is2')"
BOTH = frozenset({"is1", "is2"})


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SqliteWriter]:
    with SqliteWriter(tmp_path / "is1.db") as made:
        made.commit(
            "CREATE TABLE R1 (A INTEGER, C INTEGER)",
            "CREATE TABLE R2 (D INTEGER, E INTEGER)",
            "CREATE TABLE hidden (x INTEGER)",
            "INSERT INTO R1 VALUES (1, 10)",
            "INSERT INTO R2 VALUES (10, 100)",
        )
        yield made


@pytest.fixture
def mediator(writer: SqliteWriter, tmp_path: Path) -> Iterator[Mediator]:
    config = SourceConfig("is1", "sqlite", f"sqlite:///{tmp_path / 'is1.db'}", ("R1", "R2"))
    server = WrapperServer(create(config), "127.0.0.1:0")
    address = server.start()
    with Mediator(address, "is1") as made:
        made.expect("attached")
        yield made
    server.stop(0)


def defined(mediator: Mediator, *queries: str) -> list[LocalView]:
    views = [
        mediator.decompose(sql, f"V{number}").local_views[0] for number, sql in enumerate(queries, start=1)
    ]
    for view in views:
        _, position = mediator.load(view)
        mediator.define(view, position)
        mediator.expect("defined")
    return views


def marks(update: pb.Update) -> list[GlobalTransaction | None]:
    return [global_transaction_from_proto(transaction.part_of) for transaction in update.transactions]


def touched(update: pb.Update) -> dict[str, list[int]]:
    return {delta.local_view: list(delta.touched) for delta in update.deltas}


def test_an_update_carries_the_mark_of_each_transaction(mediator: Mediator, writer: SqliteWriter) -> None:
    (view,) = defined(mediator, "SELECT A FROM is1.R1")
    writer.commit("INSERT INTO R1 VALUES (2, 20)", MARK.format("x"))
    writer.commit("INSERT INTO R1 VALUES (3, 30)")
    writer.commit("DELETE FROM R1", MARK.format("y"), MARK.format("z"))
    mediator.credit()
    update = mediator.expect("update")
    y, z = GlobalTransaction("y", BOTH), GlobalTransaction("z", BOTH)
    assert marks(update) == [GlobalTransaction("x", BOTH), None, GlobalTransaction.joined([y, z])]
    assert [delta.is_empty for delta in deltas_of(update, view)] == [False, False, False]


def test_a_part_reaches_every_local_view_also_those_it_does_not_touch(
    mediator: Mediator, writer: SqliteWriter
) -> None:
    first, second = defined(mediator, "SELECT A FROM is1.R1", "SELECT E FROM is1.R2")
    writer.commit("INSERT INTO R2 VALUES (20, 200)")
    writer.commit(MARK.format("alone"))
    writer.commit("INSERT INTO R1 VALUES (2, 20)", MARK.format("x"))
    writer.commit("INSERT INTO hidden VALUES (1)", MARK.format("elsewhere"))
    mediator.credit()
    update = mediator.expect("update")
    assert [mark and mark.id for mark in marks(update)] == [None, "alone", "x", "elsewhere"]
    assert touched(update) == {first.name: [1, 2, 3], second.name: [0, 1, 2, 3]}
    assert [delta.is_empty for delta in deltas_of(update, first)] == [True, True, False, True]
    assert [delta.is_empty for delta in deltas_of(update, second)] == [False, True, True, True]


def test_a_view_that_resumes_gets_the_parts_after_its_own_position_only(
    mediator: Mediator, writer: SqliteWriter
) -> None:
    (early,) = defined(mediator, "SELECT A FROM is1.R1")
    writer.commit("INSERT INTO R1 VALUES (2, 20)", MARK.format("x"))
    late = mediator.decompose("SELECT E FROM is1.R2", "V2").local_views[0]
    _, position = mediator.load(late)
    mediator.define(late, position)
    mediator.expect("defined")
    writer.commit(MARK.format("y"))
    mediator.credit()
    update = mediator.expect("update")
    assert [mark and mark.id for mark in marks(update)] == ["x", "y"]
    assert touched(update) == {early.name: [0, 1], late.name: [1]}


def test_the_capabilities_say_that_marks_are_taken(mediator: Mediator) -> None:
    assert mediator.describe().capabilities.global_transactions


def test_the_marker_table_is_not_shown(mediator: Mediator, writer: SqliteWriter) -> None:
    defined(mediator, "SELECT A FROM is1.R1")
    assert [relation.name for relation in mediator.describe().relations] == ["R1", "R2"]
