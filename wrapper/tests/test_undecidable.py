"""A predicate that cannot be decided for some row: its local view ends with a reason, and others go on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from algebra.expressions import Call, ColumnRef, Operator
from protos.convert import local_view_to_proto, position_to_proto
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper import query_processor
from wrapper.tests.follower import INT, Follower, World

RELATIONS = {"r": {"x": INT, "whole": pa.decimal128(38, 0), "part": pa.decimal128(38, 38)}}
"""No decimal has the digits of both columns."""
VIEWS = {
    "all": "SELECT a.x FROM m.r a",
    "one": "SELECT a.x FROM m.r a WHERE a.whole = a.part",
    "two": "SELECT a.x, b.x AS y FROM m.r a JOIN m.r b ON a.x = b.x WHERE a.whole = a.part",
    "across": "SELECT a.x, b.x AS y FROM m.r a JOIN m.r b ON a.x = b.x",
}
UNDECIDABLE = (1, Decimal(5), Decimal("0.5"))


@pytest.fixture
def world() -> World:
    made = World(random.Random(1), RELATIONS, VIEWS, before=0)
    across = Call(Operator.EQ, (ColumnRef("a", "whole"), ColumnRef("b", "part")))
    made.views["across"] = replace(made.views["across"], predicates=(across,))
    return made


@pytest.fixture
def follower(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follower]:
    monkeypatch.setattr(query_processor, "HEARTBEAT_SECONDS", 0.0)
    made = Follower(world, 1000)
    yield made
    made.close()


def follow(follower: Follower, name: str) -> None:
    view, after = replace(follower.world.views[name], name=name), follower.world.position
    message = pb.DefineLocalView(local_view=local_view_to_proto(view), after=position_to_proto(after))
    follower._send(define=message)


def said(follower: Follower) -> list[pb.ExchangeResponse]:
    """What the wrapper says in one turn."""
    follower.processor._turn()
    return [response for response, _ in iter(follower.session.queue._responses)]


@pytest.mark.parametrize("name", ["one", "two", "across"])
def test_a_change_that_cannot_be_decided_ends_its_local_view_alone(follower: Follower, name: str) -> None:
    for followed in ("all", name):
        follow(follower, followed)
    with follower.world.database.transaction() as transaction:
        transaction.insert("r", [UNDECIDABLE])
    follower.credit(1000)
    found = said(follower)
    (error,) = [response.error for response in found if response.HasField("error")]
    assert (error.reason, error.local_view) == ("DATA", name)
    assert error.message == f"local view {name!r}: its predicates cannot be decided for some row"
    (update,) = [response.update for response in found if response.HasField("update")]
    assert [delta.local_view for delta in update.deltas] == ["all"]


@pytest.mark.parametrize("name", ["one", "two", "across"])
def test_an_answer_that_cannot_be_decided_is_an_error_of_the_query(follower: Follower, name: str) -> None:
    """As of what was reported: the wrapper takes back what happened since, and joins by itself."""
    with follower.world.database.transaction() as transaction:
        transaction.insert("r", [UNDECIDABLE])
    follow(follower, name)
    with follower.world.database.transaction() as transaction:
        transaction.insert("r", [(2, Decimal(0), Decimal(0))])
    follower._send(query=pb.MaintenanceQuery(query_id=7, local_view=name))
    (error,) = [response.error for response in said(follower) if response.HasField("error")]
    assert (error.reason, error.query_id) == ("DATA", 7)
    assert "cannot be decided for some row" in error.message
