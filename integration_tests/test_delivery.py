"""Delivery that breaks half-way: each transaction reaches each view once, whatever fails on its way."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from algebra.arrow_ipc import from_ipc
from algebra.errors import OrderingViolationError
from algebra.position import Position
from algebra.sweep import Answer
from integration_tests.site import ALONE, PATIENCE, VIEW, Site, inside, wait_for
from mediator import process, update_queue
from mediator.acknowledgements import Acknowledgements
from mediator.open_queries import Query
from mediator.process import MaintenanceProcess
from mediator.reported_views import SourceUpdate
from mediator.views import MaintainedView
from protos.convert import now

OTHER = "SELECT r.x FROM one.r AS r"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path)


def fails_at(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, call: int) -> None:
    """Have the call of that number raise what nobody foresaw; all others are as they were."""
    real, calls = getattr(place, name), [0]

    def flaky(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise MemoryError("for a test")
        return real(*given, **named)

    monkeypatch.setattr(place, name, flaky)


def test_an_update_that_one_view_did_not_take_is_queued_for_none(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes again when the source has attached again; the view that could have taken it has it once."""
    _, client = site.mediator()
    client.create_view("v", ALONE)
    client.create_view("w", OTHER)
    fails_at(monkeypatch, update_queue, "DeliveredRun", 2)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 3)")
    for name in ("v", "w"):
        client.wait_for_version(name, 1)
    site.writers["one"].commit("INSERT INTO r VALUES (4, 4)")
    for name, rows in (("v", [(1, 1), (2, 2), (3, 3), (4, 4)]), ("w", [(1,), (2,), (3,), (4,)])):
        client.wait_for_version(name, 2)
        assert client.bag(name) == Counter(rows)
        assert client.view(name).version == 2
        assert from_ipc(client.verify(name).arrow).num_rows == 0


def test_a_process_that_cannot_be_told_of_an_update_does_not_have_it_queued_twice(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own view waits for a refresh; the other one goes on, and nobody has the transaction twice."""
    server, client = site.mediator()
    client.create_view("v", VIEW, maintenance="nested-sweep")
    client.create_view("w", OTHER)
    wait_for(server, lambda mediator: mediator.views["v"].on_update is not None)
    fails_at(monkeypatch, process, "Update", 1)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    client.wait_for_version("w", 1)
    wait_for(server, lambda mediator: bool(mediator.views["v"].problem))
    assert client.bag("v") == Counter([(1, 1, 10), (2, 2, 20)])
    client.refresh("v")
    site.writers["one"].commit("INSERT INTO r VALUES (4, 2)")
    client.wait_for_version("v", 2)
    assert client.bag("v") == Counter([(1, 1, 10), (2, 2, 20), (3, 1, 10), (4, 2, 20)])
    client.wait_for_version("w", 2)
    assert client.bag("w") == Counter({(1,): 2, (2,): 2})
    assert inside(server).channels["one"].problem == ""


def an_update(view: MaintainedView, *positions: int) -> SourceUpdate:
    """Transactions at these positions that touch the first local view of source one, without rows."""
    name = next(local.name for local in view.local_views if local.source == "one")
    touched = tuple(range(len(positions)))
    return SourceUpdate(
        source="one",
        positions=tuple(map(Position, positions)),
        batched=(False,) * len(positions),
        observed_at=now(),
        deltas={name: (None, touched)},
        marks=(None,) * len(positions),
        subscriptions={name: view.subscription},
    )


def test_what_a_view_shows_already_is_not_queued_again(site: Site) -> None:
    """It was followed from an older version, because its last commit had not been noticed yet."""
    server, client = site.mediator()
    client.create_view("v", ALONE)
    mediator = inside(server)
    view = mediator.views["v"]
    with view.installing:
        at = view.vector["one"].ordinal
        mediator._deliver(an_update(view, at - 1, at))
        assert len(view.queue) == 0
        mediator._deliver(an_update(view, at, at + 1))
        assert [run.positions for run in view.queue.runs] == [[Position(at + 1)]]
        assert [run.first_version for run in view.queue.runs] == [view.version + 1]


def test_positions_of_a_source_do_not_go_back_within_a_view(site: Site) -> None:
    """Not even if they are told of another local view each time."""
    server, client = site.mediator()
    client.create_view("v", ALONE)
    client.create_view("w", OTHER)
    mediator = inside(server)
    view, other = mediator.views["v"], mediator.views["w"]
    with view.installing, other.installing:
        at = view.vector["one"].ordinal
        mediator._deliver(an_update(view, at + 2))
        again = an_update(view, at + 1, at + 3)
        again.deltas.update(an_update(other, at + 1).deltas)
        both = {**again.subscriptions, **an_update(other, at + 1).subscriptions}
        with pytest.raises(OrderingViolationError, match=r"source 'one' went back from .* for view 'v'"):
            mediator._deliver(SourceUpdate(**{**vars(again), "subscriptions": both}))
        assert (len(view.queue), len(other.queue)) == (1, 0)


def test_what_fails_after_a_commit_stops_nobody_and_repeats_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, broken = Acknowledgements.tell, [True]

    def once(self: Acknowledgements) -> None:
        if broken:
            broken.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        tell(self)

    server, client = site.mediator()
    client.create_view("v", VIEW)
    monkeypatch.setattr(Acknowledgements, "tell", once)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    client.wait_for_version("v", 1)
    site.writers["two"].commit("INSERT INTO s VALUES (1, 11)")
    client.wait_for_version("v", 2)
    expected = Counter([(1, 1, 10), (2, 2, 20), (3, 1, 10), (1, 1, 11), (3, 1, 11)])
    assert (client.bag("v"), client.view("v").version) == (expected, 2)
    wait_for(server, lambda mediator: not mediator.storage_problem[0])
    assert from_ipc(client.verify("v").arrow).num_rows == 0


@pytest.mark.parametrize("algorithm", ["eca", "eca-key"])
def test_an_answer_is_not_overtaken_by_an_update_that_came_after_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """Who asks may be kept from going on for any time, right when the query has left."""
    writer = site.writers["one"]
    writer.commit(
        "CREATE TABLE a (k INTEGER PRIMARY KEY, x INTEGER)",
        "CREATE TABLE b (j INTEGER PRIMARY KEY, x INTEGER)",
        "INSERT INTO a VALUES (1, 1)",
    )
    server, client = site.mediator()
    client.create_view(
        "v", "SELECT a.k, b.j, a.x FROM one.a AS a JOIN one.b AS b ON a.x = b.x", maintenance=algorithm
    )
    channel = inside(server).channels["one"]
    ask = channel.ask
    asked: list[Future[Answer]] = []

    def interrupted(query: Query, answer: Future[Answer]) -> None:
        ask(query, answer)
        asked.append(answer)
        if len(asked) == 1:
            answer.result(timeout=PATIENCE)
            writer.commit("INSERT INTO b VALUES (5, 7)")
            wait_for(server, lambda _: channel.counters.transactions == 2)

    monkeypatch.setattr(channel, "ask", interrupted)
    writer.commit("INSERT INTO a VALUES (2, 7)")
    wait_for(server, lambda _: channel.counters.transactions == 2)
    wait_for(server, lambda mediator: not len(mediator.views["v"].queue))
    assert asked
    assert client.bag("v") == Counter([(2, 5, 7)])
    assert from_ipc(client.verify("v").arrow).num_rows == 0


def test_the_log_names_the_version_of_each_transaction(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mediator.maintainer")
    server, client = site.mediator()
    client.create_view("v", VIEW)
    with inside(server).views["v"].installing:
        site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
        wait_for(server, lambda mediator: len(mediator.views["v"].queue) == 1)
        site.writers["two"].commit("INSERT INTO s VALUES (3, 30)")
        wait_for(server, lambda mediator: len(mediator.views["v"].queue) == 2)
        site.writers["one"].commit("INSERT INTO r VALUES (4, 1)")
        wait_for(server, lambda mediator: len(mediator.views["v"].queue) == 3)
    client.wait_for_version("v", 3)
    wait_for(server, lambda _: "view v shows" in caplog.text)
    position = {
        version.version: f"{version.source}@{version.position.ordinal}" for version in client.history("v")
    }
    shown = [record for record in caplog.records if "view v shows" in record.getMessage()]
    assert {record.getMessage() for record in shown} == {
        f"view v shows, at versions 1 to 3: {position[1]} {position[3]}",
        f"view v shows, at version 2: {position[2]}",
    }
    told = {
        transaction: version
        for record in shown
        for transaction, version in zip(record.transactions, record.versions, strict=True)  # type: ignore[attr-defined]
    }
    assert told == {transaction: version for version, transaction in position.items() if version}


class OpenQueriesOfAProcess(list[Any]):
    """The maintenance thread removes an answered query in the middle of a channel's look at all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.looked, self.removed = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[Any]:
        looking = super().__iter__()
        if threading.current_thread().name == "channel-two":
            for first in looking:
                yield first
                self.looked.set()
                self.removed.wait(1)
                break
        yield from looking

    def __delitem__(self, index: Any) -> None:
        self.looked.wait(1)
        super().__delitem__(index)
        self.removed.set()


def test_an_answer_is_not_overlooked_while_the_one_before_it_is_taken(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would ask for it again, and the view would stand still for ever."""
    start = MaintenanceProcess.start

    def interrupted(self: MaintenanceProcess) -> None:
        self._asked = OpenQueriesOfAProcess()
        start(self)

    monkeypatch.setattr(MaintenanceProcess, "start", interrupted)
    server, client = site.mediator()
    client.create_view("v", VIEW, maintenance="psweep")
    channel = inside(server).channels["two"]
    ask = channel.ask
    asked: list[tuple[Query, Future[Answer]]] = []

    def both_at_once(query: Query, answer: Future[Answer]) -> None:
        asked.append((query, answer))
        if len(asked) == 2:
            for given in asked:
                ask(*given)

    monkeypatch.setattr(channel, "ask", both_at_once)
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    site.writers["one"].commit("INSERT INTO r VALUES (4, 2)")
    wait_for(server, lambda _: len(asked) == 2 and all(answer.done() for _, answer in asked))
    client.wait_for_version("v", 2)
    assert client.bag("v") == Counter({(1, 1, 10): 1, (2, 2, 20): 1, (3, 1, 10): 1, (4, 2, 20): 1})
