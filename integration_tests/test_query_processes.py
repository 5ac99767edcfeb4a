"""The processes of clients' queries, beside a mediator as its users run it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from integration_tests.client import Client
from integration_tests.processes import LockstepProcess
from integration_tests.site import Site, wait_for
from mediator.warehouse import client_query
from protos.lockstep.v1 import mediator_pb2 as pb
from protos.security.settings import ServerSecurity

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
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path)


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


def test_a_caller_that_does_not_read_gives_its_place_back(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pager that nobody closes, say: what its query holds is needed by others when its time is over."""
    monkeypatch.setattr(client_query, "UNREAD_SECONDS", 0.5)
    audit = tmp_path / "audit.jsonl"
    server, client = site.mediator(query_seconds=2.0, query_processes=2, security=ServerSecurity(audit=audit))
    unread = client.stub.Query(pb.QueryRequest(sql=ENDLESS_ROWS))
    next(unread)
    wait_for(server, lambda mediator: not mediator.warehouse._queries._places)
    assert client.query("SELECT 1 AS one")["one"].to_pylist() == [1]
    outcomes = [json.loads(line)["outcome"] for line in audit.read_text().splitlines()]
    assert sorted(outcomes[-2:]) == ["LIMIT_EXCEEDED", "ok"]
    with pytest.raises(grpc.RpcError) as ended:
        list(unread)
    assert ended.value.code() is grpc.StatusCode.CANCELLED
