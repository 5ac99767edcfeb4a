"""More in one run than can be reported: its local view ends with a reason, and others go on."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from protos.convert import local_view_to_proto, position_to_proto
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.tests.follower import INT, Follower, World
from wrapper.update_processor import UpdateProcessor

RELATIONS = {"r": {"x": INT, "text": pa.string()}}
VIEWS = {"all": "SELECT a.x FROM m.r a", "large": "SELECT a.x, a.text FROM m.r a"}
COPIES = 129
"""Of 16 MiB: more than 2 GiB, of one piece of memory."""


def test_a_run_with_more_than_a_column_can_hold_ends_its_local_view_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweep = UpdateProcessor._sweep

    def many(self: UpdateProcessor, reported: Any, *more: Any) -> pa.Table:
        rows = sweep(self, reported, *more)
        return pa.concat_tables([rows] * COPIES) if reported.view.name == "large" else rows

    monkeypatch.setattr(UpdateProcessor, "_sweep", many)
    world = World(random.Random(1), RELATIONS, VIEWS, before=0)
    follower = Follower(world, 1000)
    for name in VIEWS:
        view = replace(world.views[name], name=name)
        follower._send(
            define=pb.DefineLocalView(
                local_view=local_view_to_proto(view), after=position_to_proto(world.position)
            )
        )
    with world.database.transaction() as transaction:
        transaction.insert("r", [(1, "x" * (1 << 24))])
    follower.credit(1000)
    follower.processor._turn()
    said = [response for response, _ in iter(follower.session.queue._responses)]
    follower.close()
    (error,) = [response.error for response in said if response.HasField("error")]
    assert (error.reason, error.local_view) == ("DATA", "large")
    assert "changed more than 2 GiB of one of its columns" in error.message
    (update,) = [response.update for response in said if response.HasField("update")]
    assert [delta.local_view for delta in update.deltas] == ["all"]
