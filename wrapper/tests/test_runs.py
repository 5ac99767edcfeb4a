"""A backlog in runs of a few rows, cut everywhere: each ΔIS, answer and progress as by recomputation."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from adapters.spi import Snapshot
from algebra.weight import ROW_BYTES
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper import order_assignment, query_processor
from wrapper.message_queue import OrderMessageQueue
from wrapper.tests.follower import ODD_RELATIONS, ODD_VIEWS, VIEWS, Follower, World


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the source, every turn ends with a sign of life, and answers come in chunks."""
    monkeypatch.setattr(query_processor, "HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(order_assignment, "CHUNK_BYTES", 1)


def follower(seed: int, most_rows: int) -> Follower:
    return Follower(World(random.Random(seed)), most_rows)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("most_rows", [1, 3])
def test_a_backlog_is_reported_in_runs(view: str, most_rows: int) -> None:
    found = follower(most_rows, most_rows)
    world = found.world
    found.define(view, world.position.ordinal)
    for _ in range(12):
        world.transact()
    found.settle()
    assert found.runs > 4
    world.transact()
    found.settle()
    found.close()


def test_changes_that_fit_one_run_leave_as_one_update() -> None:
    found = follower(1, 1000)
    found.define("chain", found.world.position.ordinal)
    for _ in range(12):
        found.world.transact()
    found.settle()
    assert found.runs == 1
    found.close()


@pytest.mark.parametrize(
    ("seed", "most_rows", "odd"),
    [
        *((seed, most_rows, False) for seed in range(4) for most_rows in (1, 3, 20)),
        *((seed, 3, True) for seed in range(4)),
    ],
)
def test_whatever_happens_between_runs(seed: int, most_rows: int, odd: bool) -> None:
    """Commits, queries, views that come and go with cursors of their own, little credit, new streams.

    And a source that goes away wherever it is read.
    """
    rnd = random.Random(seed)
    world = World(random.Random(seed), *((ODD_RELATIONS, ODD_VIEWS) if odd else ()))
    found = Follower(world, most_rows)
    oldest = world.position.ordinal
    often = ["transact"] * 5 + ["turn"] * 4 + ["credit"] * 2
    for _ in range(60):
        match rnd.choice([*often, "ask", "fail", "define", "drop", "attach"]):
            case "transact":
                world.transact()
            case "turn":
                found.turn()
            case "credit":
                found.credit(rnd.choice([1, 1, 5, 20]))
            case "ask" if found.followed:
                found.ask(rnd.choice(list(found.followed)))
            case "fail":
                world.adapter.weather.goes_away(rnd.choice(["changes", "rows", "rows"]), rnd.randint(1, 8))
            case "define" if len(found.followed) < 3:
                name = rnd.choice([name for name in world.sql if name not in found.followed])
                found.turn()
                found.define(name, rnd.randint(oldest, world.position.ordinal))
            case "drop" if len(found.followed) > 1:
                found.drop(rnd.choice(list(found.followed)))
            case "attach" if rnd.random() < 0.3:
                found.attach()
    if not found.followed:
        found.define(next(iter(world.sql)), oldest)
    found.settle()
    found.close()


@pytest.mark.parametrize("view", ["alone", "itself"])
def test_rows_that_become_larger_do_not_make_a_run_larger(view: str) -> None:
    """How large they are is known once they are read; no more leaves at once than fits a run."""
    sql = {
        "alone": "SELECT r.x, r.s FROM m.r r",
        "itself": "SELECT a.x, b.s FROM m.r a JOIN m.r b ON a.x = b.x",
    }
    world = World(random.Random(1), {"r": {"x": pa.int64(), "s": pa.string()}}, sql)
    found = Follower(world, 40)
    found.define(view, world.position.ordinal)
    small, large = "y", "y" * 10 * ROW_BYTES
    for number in range(200):
        with world.database.transaction() as transaction:
            transaction.insert("r", [(100 + number, small if number < 100 else large)])
        world._note()
    costs = []
    while found.followed[view].at < world.position.ordinal:
        found.credit(1 - found.session.credit)
        found.turn()
        costs.append(1 - found.session.credit)
    assert max(costs) <= 2 * 40, costs
    found.close()


@pytest.mark.parametrize("size", range(20 * ROW_BYTES, 21 * ROW_BYTES, 64))
def test_what_is_just_too_large_for_a_run_loses_nothing(size: int) -> None:
    """Two transactions that are asked for as one run, and weigh more together than one by one."""
    sql = {"alone": "SELECT r.x, r.s FROM m.r r"}
    world = World(random.Random(1), {"r": {"x": pa.int64(), "s": pa.string()}}, sql)
    found = Follower(world, 40)
    found.define("alone", world.position.ordinal)
    for number in range(5):
        with world.database.transaction() as transaction:
            transaction.insert("r", [(number, "y" * size)])
        world._note()
    found.settle()
    found.close()


def test_without_credit_reporting_stops_after_a_run_and_goes_on_where_it_stopped() -> None:
    found = follower(3, 2)
    world = found.world
    start = world.position.ordinal
    found.define("chain", start)
    for _ in range(20):
        world.transact()
    found.credit(1)
    for _ in range(5):
        found.turn()
    assert found.runs <= 2
    assert start < found.followed["chain"].at < world.position.ordinal
    found.settle()
    found.close()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("most_rows", [2, 1000])
def test_without_credit_a_query_is_answered_and_nothing_is_reported(view: str, most_rows: int) -> None:
    """As of what was reported, however much the snapshot shows beyond; with keys, and without."""
    found = follower(4, most_rows)
    world = found.world
    start = world.position.ordinal
    found.define(view, start)
    for _ in range(20):
        world.transact()
        found.ask(view)
        found.turn()
    assert found.answered == 20
    assert found.runs == 0
    assert found.followed[view].at == start
    found.settle()
    found.close()


@pytest.mark.parametrize("view", VIEWS)
def test_with_little_credit_a_query_is_answered_between_two_runs(view: str) -> None:
    found = follower(7, 2)
    world = found.world
    start = world.position.ordinal
    found.define(view, start)
    for _ in range(20):
        world.transact()
    answered_at = []
    while found.followed[view].at < world.position.ordinal:
        found.credit(max(1, 1 - found.session.credit))
        found.ask(view)
        found.turn()
        assert not found.asked
        answered_at.append(found.followed[view].at)
    assert start < answered_at[0] < answered_at[3] < world.position.ordinal
    found.settle()
    found.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_view_that_is_ahead_is_answered_while_another_catches_up(seed: int) -> None:
    """Each as of its own changes; neither waits for the other, and what was read ahead is kept."""
    found = follower(seed, 12)
    world = found.world
    start = world.position.ordinal
    for _ in range(35):
        world.transact()
    found.define("two", world.position.ordinal)
    for _ in range(10):
        world.transact()
    found.define("chain", start)
    while found.followed["chain"].at < start + 25:
        found.credit(4)
        found.ask("two")
        found.ask("chain")
        found.turn()
        assert not found.asked
        world.transact()
    assert found.followed["two"].at > found.followed["chain"].at
    found.settle()
    found.close()


def test_a_sign_of_life_comes_while_views_have_come_differently_far() -> None:
    found = follower(2, 2)
    world = found.world
    start = world.position.ordinal
    for _ in range(10):
        world.transact()
    found.define("two", world.position.ordinal)
    found.credit(1000)
    found.turn()
    reported = found.reported
    found.define("chain", start)
    found.turn()
    assert found.followed["chain"].at < reported
    assert found.signs_of_life > 0
    assert found.reported == reported
    found.settle()
    found.close()


def test_what_was_read_ahead_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run after run, each in a snapshot of its own, the source is asked for what is new."""
    found = follower(5, 3)
    world = found.world
    found.define("chain", world.position.ordinal)
    for _ in range(30):
        world.transact()
    asked: list[int] = []
    snapshot = world.adapter.snapshot

    @contextmanager
    def counted() -> Iterator[Snapshot]:
        with snapshot() as shown:
            changes = shown.changes

            def noted(after: object, most_rows: int | None = None) -> object:
                run = changes(after, most_rows)  # type: ignore[arg-type]
                asked.extend(position.ordinal for position in run.positions)
                return run

            shown.changes = noted  # type: ignore[method-assign, assignment]
            yield shown

    monkeypatch.setattr(world.adapter, "snapshot", counted)
    found.settle()
    assert found.runs > 8
    assert asked == list(range(7, world.position.ordinal + 1)), "each once, in order"
    found.close()


def test_a_backlog_that_is_looked_at_often_is_a_few_runs() -> None:
    """An answer looks through each of them; they must not become as many as there were looks."""
    found = follower(4, 1000)
    found.define("two", found.world.position.ordinal)
    for _ in range(100):
        found.world.transact()
        found.ask("two")
        found.turn()
    assert found.answered == 100
    assert found.runs == 0
    assert 1 <= len(found.processor._backlog._stored) <= 9
    found.settle()
    assert found.runs == 1
    found.close()


@pytest.mark.parametrize("at", ["its cursor", "an older position"])
def test_a_local_view_of_other_relations_is_defined_in_the_middle_of_a_backlog(at: str) -> None:
    found = follower(8, 2)
    world = found.world
    found.define("itself", world.position.ordinal)
    start = world.position.ordinal
    for _ in range(30):
        world.transact()
    found.credit(1000)
    while found.followed["itself"].at < start + 10:
        found.turn()
    found.define("chain", start if at == "an older position" else found.followed["itself"].at)
    found.settle()
    found.close()


def test_nobody_waits_for_the_source_while_there_is_more_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    found = follower(9, 2)
    world = found.world
    found.define("chain", world.position.ordinal)
    for _ in range(20):
        world.transact()
    waits: list[int] = []
    monkeypatch.setattr(world.adapter, "wait", lambda _: waits.append(found.session.credit))
    found.turn()
    assert len(waits) == 1, "there is no credit"
    found.credit(1000)
    while found.followed["chain"].at < world.position.ordinal:
        assert len(waits) == 1
        found.turn()
    found.turn()
    assert len(waits) > 1
    found.close()


def test_without_credit_the_source_is_looked_at_all_the_same() -> None:
    """Some captures tell transactions apart only while someone watches; and who has looked can wait."""
    found = follower(9, 2)
    world = found.world
    found.define("chain", world.position.ordinal)
    found.turn()
    for _ in range(3):
        world.transact()
        found.turn()
        assert world.adapter._seen == world.position.ordinal
    assert found.runs == 0
    found.settle()
    found.close()


def test_signs_of_life_come_also_while_runs_hold_nothing_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local view catches up over transactions that do not concern it: then nothing else is said."""
    monkeypatch.setattr(query_processor, "HEARTBEAT_SECONDS", 1.0)
    world = World(random.Random(10), sql={**VIEWS, "quiet": "SELECT t.w FROM m.t t"})
    start = world.position.ordinal
    clock = itertools.count(100, 10)
    found = Follower(world, 1, clock=lambda: next(clock))
    for number in range(10):
        with world.database.transaction() as transaction:
            transaction.insert("r", [(number, number)])
        world._note()
    found.define("alone", world.position.ordinal)
    found.credit(1000)
    found.turn()
    found.define("quiet", start)
    monkeypatch.setattr(world.adapter, "wait", lambda _: None)
    turns = 0
    while found.session.behind or not turns:
        told = found.signs_of_life + found.runs
        found.turn()
        turns += 1
        assert found.signs_of_life + found.runs > told or found.session.is_level
    assert turns > 5
    found.close()


@pytest.mark.parametrize("what", ["changes", "rows"])
@pytest.mark.parametrize("calls", range(1, 9))
def test_a_source_that_goes_away_while_it_is_read_is_taken_up_again(what: str, calls: int) -> None:
    """Wherever that is: while one of several local views is computed, in a run, or in an answer."""
    found = follower(6, 2)
    world = found.world
    for name in ("alone", "chain", "two"):
        found.define(name, world.position.ordinal)
    for _ in range(20):
        world.transact()
    found.credit(1000)
    found.ask("chain")
    found.ask("two")
    world.adapter.weather.goes_away(what, calls)
    while not found.failures:
        found.turn()
    found.settle()
    found.close()


def test_files_are_gone_when_all_is_reported() -> None:
    found = follower(7, 2)
    world = found.world
    found.define("chain", world.position.ordinal)
    for _ in range(20):
        world.transact()
    found.settle()
    backlog = found.processor._backlog
    assert backlog._folder is not None
    folder = backlog._folder.path
    world.transact()
    found.settle()
    assert list(folder.iterdir()) == []
    found.close()
    assert not folder.exists()


def test_the_queue_holds_bytes_and_no_more() -> None:
    queue = OrderMessageQueue(most_bytes=100_000)
    message = pb.ExchangeResponse(result=pb.QueryResult(arrow=b"x" * 30_000))
    larger = pb.ExchangeResponse(result=pb.QueryResult(arrow=b"x" * 300_000))

    def put_all() -> None:
        for one in [larger, *[message] * 10]:
            queue.put(one)

    sent = threading.Thread(target=put_all, daemon=True)
    sent.start()
    sent.join(0.3)
    assert sent.is_alive(), "the first is larger than all, and goes in alone"
    taken = iter(queue)
    assert next(taken) == larger
    sent.join(0.3)
    assert sent.is_alive()
    assert queue._bytes <= 100_000
    for _ in range(10):
        assert next(taken) == message
    sent.join(5)
    queue.close()
    assert list(taken) == []
