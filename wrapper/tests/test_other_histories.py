"""A position of another history is refused, also where it has the ordinal of one that is there.

A database that was restored and written further, or whose capture was made anew, counts on from where it was.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from algebra.position import Position
from protos.convert import local_view_to_proto, position_to_proto
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper import query_processor
from wrapper.tests.follower import Follower, World


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_processor, "HEARTBEAT_SECONDS", 0.0)


def capture_anew(world: World) -> None:
    world.adapter.remove()
    world.adapter.prepare(list(world.relations))


class Outdated:
    """A wrapper with a local view "chain" of this history, and one of the history before: "two"."""

    def __init__(self, most_rows: int = 1000) -> None:
        self.world = World(random.Random(1))
        self.before = self.world.position
        capture_anew(self.world)
        self.now = self.world.position
        assert self.now == self.before
        assert self.now.token != self.before.token
        self.follower = Follower(self.world, most_rows)

    def define(self, name: str, after: Position) -> None:
        view = replace(self.world.views[name], name=name)
        define = pb.DefineLocalView(local_view=local_view_to_proto(view), after=position_to_proto(after))
        self.follower._send(define=define)

    def ask(self, name: str) -> None:
        self.follower._send(query=pb.MaintenanceQuery(query_id=1, local_view=name))

    def said(self) -> list[pb.ExchangeResponse]:
        """What the wrapper says in one turn, without heartbeats."""
        self.follower.processor._turn()
        taken = [response for response, _ in self.follower.session.queue._responses]
        self.follower.session.queue._responses.clear()
        return [response for response in taken if not response.HasField("progress")]


def lost(said: list[pb.ExchangeResponse]) -> list[str]:
    return [r.error.local_view for r in said if r.error.reason == "POSITION_TRIMMED" and r.error.local_view]


def test_without_credit_a_query_is_not_answered_from_another_history() -> None:
    """Nothing is read for a report then, by which it would be known."""
    found = Outdated()
    found.define("two", found.before)
    found.ask("two")
    said = found.said()
    assert lost(said) == ["two"]
    assert not [r for r in said if r.HasField("result")]
    found.follower.close()


@pytest.mark.parametrize("order", [("chain", "two"), ("two", "chain")])
def test_a_local_view_of_another_history_does_not_go_along_with_others(order: tuple[str, str]) -> None:
    found = Outdated()
    for name in order:
        found.define(name, found.before if name == "two" else found.now)
    for _ in range(3):
        found.world.transact()
    found.follower.credit(1000)
    said = found.said()
    assert lost(said) == ["two"]
    assert [d.local_view for r in said for d in r.update.deltas] == ["chain"]
    found.follower.close()


def test_a_local_view_of_another_history_does_not_join_others_on_their_way() -> None:
    """Others begin before it stands, and pass where it stands."""
    found = Outdated()
    for _ in range(3):
        found.world.transact()
    found.define("chain", found.now)
    found.define("two", replace(found.before, ordinal=found.now.ordinal + 2))
    found.follower.credit(1000)
    said = found.said()
    assert lost(said) == ["two"]
    assert {d.local_view for r in said for d in r.update.deltas} == {"chain"}
    found.follower.close()


def test_what_was_read_ahead_for_others_does_not_answer_for_another_history() -> None:
    found = Outdated(most_rows=1)
    for _ in range(8):
        found.world.transact()
    found.define("chain", found.now)
    found.define("two", replace(found.before, ordinal=found.now.ordinal + 3))
    found.follower.credit(1)
    assert lost(found.said()) == []
    assert found.follower.processor._backlog._stored
    found.ask("two")
    said = found.said()
    assert lost(said) == ["two"]
    assert not [r for r in said if r.HasField("result")]
    found.follower.close()
