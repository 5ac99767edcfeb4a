"""The processes of clients' queries, beside a mediator as its users run it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from integration_tests.client import Client
from integration_tests.processes import LockstepProcess
from protos.lockstep.v1 import mediator_pb2 as pb

ENDLESS_ROWS = "SELECT a.range FROM range(1000000000) a, range(1000000) b"
GONE_SECONDS = 60


@pytest.fixture
def mediator(tmp_path: Path) -> Iterator[LockstepProcess]:
    file = tmp_path / "lockstep.yaml"
    file.write_text(
        "mediator: {listen: 127.0.0.1:0, warehouse: warehouse, engine: duckdb}\n"
        "sources: {shop: {address: '127.0.0.1:1'}}\n"
    )
    process = LockstepProcess("mediator", str(file))
    yield process
    process.stop()


@pytest.fixture
def client(mediator: LockstepProcess) -> Iterator[Client]:
    client = Client(mediator.wait_ready())
    yield client
    client.close()


def begun(client: Client, mediator: LockstepProcess) -> tuple[Any, list[psutil.Process]]:
    """A query that never ends, and the processes of queries that there are then."""
    assert psutil.Process(mediator.pid).children() == []
    call = client.stub.Query(pb.QueryRequest(sql=ENDLESS_ROWS))
    next(call)
    found = psutil.Process(mediator.pid).children()
    assert len(found) == 2, "the query's, and one for the next"
    return call, found


def test_no_query_outlives_a_mediator_that_was_killed(client: Client, mediator: LockstepProcess) -> None:
    _call, processes = begun(client, mediator)
    mediator.kill()
    for process in processes:
        process.wait(GONE_SECONDS)


def test_a_mediator_that_stops_leaves_no_query(client: Client, mediator: LockstepProcess) -> None:
    _call, processes = begun(client, mediator)
    assert mediator.stop() == 0
    for process in processes:
        process.wait(GONE_SECONDS)


def test_a_query_ends_with_its_call(client: Client, mediator: LockstepProcess) -> None:
    client.query("SELECT 1 AS one")
    (spare,) = psutil.Process(mediator.pid).children()
    answer = client.stub.Query(pb.QueryRequest(sql=ENDLESS_ROWS))
    next(answer)
    answer.cancel()
    spare.wait(GONE_SECONDS)
    assert client.query("SELECT 1 AS one")["one"].to_pylist() == [1]
