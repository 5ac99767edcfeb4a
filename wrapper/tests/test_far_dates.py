"""Dates before year 1 and after 9999: Arrow and DuckDB hold them, Python does not."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from algebra.arrow_ipc import from_ipc
from protos.convert import local_view_to_proto, position_to_proto
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper import query_processor
from wrapper.tests.follower import Follower, World

FAR = [-800_000, 0, 4_000_000]
"""Days since 1970."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_processor, "HEARTBEAT_SECONDS", 0.0)


@pytest.mark.parametrize("most_rows", [1, 1000])
@pytest.mark.parametrize("type_", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_far_dates_are_reported_and_asked_for(type_: pa.DataType, most_rows: int) -> None:
    sql = {"pairs": "SELECT a.x, b.x AS y, b.d FROM m.r a JOIN m.r b ON a.d = b.d"}
    relations = {"r": {"x": pa.int64(), "d": type_}}
    world = World(random.Random(1), relations, sql, before=0)
    found = Follower(world, most_rows)
    view = replace(world.views["pairs"], name="pairs")
    names = {(c.source.occurrence, c.source.column): c.name for c in view.columns}
    after = position_to_proto(world.position)
    found._send(define=pb.DefineLocalView(local_view=local_view_to_proto(view), after=after))
    unit = 1 if type_ == pa.date32() else 86_400_000_000
    whole = pa.int32() if type_ == pa.date32() else pa.int64()
    for x, days in enumerate(FAR):
        dates = pa.array([days * unit], whole).cast(type_)
        with world.database.transaction() as transaction:
            transaction.insert("r", pa.table({"x": pa.array([x]), "d": dates}))
    found._send(query=pb.MaintenanceQuery(query_id=1, local_view="pairs"))
    found.credit(1)
    answered = False
    reported: list[tuple[int, int, int]] = []
    while len(reported) < len(FAR):
        found.processor._turn()
        while found.session.queue._responses:
            response, _ = found.session.queue._responses.popleft()
            assert not response.HasField("error"), response
            answered = answered or response.result.last
            for delta in response.update.deltas:
                rows = from_ipc(delta.arrow)
                far = [d // unit for d in rows[names["b", "d"]].cast(whole).to_pylist()]
                left, right = (rows[names[alias, "x"]].to_pylist() for alias in ("a", "b"))
                reported += zip(left, right, far, strict=True)
        found.credit(1)
    assert answered
    assert reported == [(x, x, days) for x, days in enumerate(FAR)]
    found.close()
