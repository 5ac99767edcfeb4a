"""A backlog in runs of a few rows, cut everywhere: each ΔIS, answer and progress as by recomputation."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapters.spi import Snapshot
from algebra.errors import SourceUnavailableError
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper import query_processor
from wrapper.message_queue import OrderMessageQueue
from wrapper.tests.follower import VIEWS, Follower, World


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the source, and every turn ends with a sign of life."""
    monkeypatch.setattr(query_processor, "HEARTBEAT_SECONDS", 0.0)


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


@pytest.mark.parametrize("most_rows", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_between_runs(seed: int, most_rows: int) -> None:
    """Commits, queries, views that come and go with cursors of their own, little credit, new streams."""
    rnd = random.Random(seed)
    found = follower(seed, most_rows)
    world = found.world
    oldest = world.position.ordinal
    often = ["transact"] * 5 + ["turn"] * 4 + ["credit"] * 2
    for _ in range(60):
        match rnd.choice([*often, "ask", "define", "drop", "attach"]):
            case "transact":
                world.transact()
            case "turn":
                found.turn()
            case "credit":
                found.credit(rnd.choice([1, 1, 5, 20]))
            case "ask" if found.followed:
                found.ask(rnd.choice(list(found.followed)))
            case "define" if len(found.followed) < 3:
                name = rnd.choice([name for name in VIEWS if name not in found.followed])
                found.turn()
                found.define(name, rnd.randint(oldest, world.position.ordinal))
            case "drop" if len(found.followed) > 1:
                found.drop(rnd.choice(list(found.followed)))
            case "attach" if rnd.random() < 0.3:
                found.attach()
    if not found.followed:
        found.define("chain", oldest)
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


def test_a_query_is_answered_without_credit_after_all_runs() -> None:
    found = follower(4, 2)
    world = found.world
    found.define("chain", world.position.ordinal)
    for _ in range(20):
        world.transact()
    found.ask("chain")
    found.turn()
    assert found.answered == 1
    assert found.runs > 4
    assert found.session.credit < 0
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


def test_a_source_that_fails_between_runs_is_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = follower(6, 2)
    world = found.world
    found.define("chain", world.position.ordinal)
    for _ in range(20):
        world.transact()
    found.credit(1000)
    found.turn()
    found.turn()
    before = found.followed["chain"].at
    delta_is = found.processor._updates.delta_is

    def fails(*_: object) -> object:
        raise SourceUnavailableError("away for a test")

    monkeypatch.setattr(found.processor._updates, "delta_is", fails)
    with pytest.raises(SourceUnavailableError):
        found.turn()
    monkeypatch.setattr(found.processor._updates, "delta_is", delta_is)
    assert found.followed["chain"].at == before
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
    folder = Path(backlog._folder.name)
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
