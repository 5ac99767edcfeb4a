"""The client reads what a mediator says, and turns refusals and halts into one line."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures

import grpc
import pyarrow as pa
import pytest

from lab.bench import client as client_module
from lab.bench.client import Counters, MediatorClient
from lab.bench.errors import BenchmarkError
from protos.lockstep.v1 import mediator_pb2 as pb
from protos.lockstep.v1.mediator_pb2_grpc import (
    MediatorServiceServicer,
    add_MediatorServiceServicer_to_server,
)


class FakeMediator(MediatorServiceServicer):
    """Answers from its fields; every status is one version further, up to `newest`."""

    def __init__(self) -> None:
        self.version, self.newest, self.pending = 0, 3, 1
        self.state = "maintained"

    def CreateView(
        self, request: pb.CreateViewRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.CreateViewResponse]:
        if "nonsense" in request.view.sql:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such\nrelation")
        yield pb.CreateViewResponse(progress=pb.LoadProgress(phase="load"))
        yield pb.CreateViewResponse(view=pb.View(spec=request.view))

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.GetStatusResponse:
        self.version = min(self.newest, self.version + 1)
        view = pb.ViewStatus(
            view="v", version=self.version, pending=self.pending, batches=2, state=self.state, problem="why"
        )
        sources = [pb.SourceStatus(source=name, queries=3, bytes_received=10, bytes_sent=1) for name in "ab"]
        return pb.GetStatusResponse(views=[view], sources=sources)

    def GetHistory(
        self, request: pb.GetHistoryRequest, context: grpc.ServicerContext
    ) -> pb.GetHistoryResponse:
        return pb.GetHistoryResponse(versions=[pb.Version(version=n, changed_rows=n) for n in (2, 1, 0)])

    def Query(self, request: pb.QueryRequest, context: grpc.ServicerContext) -> Iterator[pb.QueryResponse]:
        for value in (1, 2):
            yield pb.QueryResponse(arrow=_arrow(pa.table({"x": [value]})))
        yield pb.QueryResponse(last=True)

    def WatchView(
        self, request: pb.WatchViewRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchViewResponse]:
        for number in range(request.after + 1, 4):
            yield pb.WatchViewResponse(version=pb.Version(version=number))


@pytest.fixture
def mediator() -> FakeMediator:
    return FakeMediator()  # type: ignore[abstract]  # only what the client calls


@pytest.fixture
def client(mediator: FakeMediator) -> Iterator[MediatorClient]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    add_MediatorServiceServicer_to_server(mediator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with MediatorClient(f"127.0.0.1:{port}", "v") as connected:
        yield connected
    server.stop(None)


def test_a_view_is_created_or_the_refusal_is_one_line(client: MediatorClient) -> None:
    client.create_view("SELECT 1", max_batch=10, timeout=10)
    with pytest.raises(BenchmarkError, match="the view was not created: no such relation"):
        client.create_view("nonsense", max_batch=10, timeout=10)


def test_counters_sum_over_the_sources(client: MediatorClient) -> None:
    counters = client.counters()
    assert (counters.version, counters.batches, counters.queries) == (1, 2, 6)
    assert (counters.bytes_received, counters.bytes_sent) == (20, 2)
    assert client.counters().minus(counters) == Counters(version=1)


def test_waiting_ends_with_the_version(client: MediatorClient) -> None:
    assert client.wait_for_version(3, stalled=10).version == 3


def test_waiting_ends_short_of_the_version_when_nothing_is_pending(
    client: MediatorClient, mediator: FakeMediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "QUIET_SECONDS", 0.1)
    mediator.pending = 0
    assert client.wait_for_version(5, stalled=10).version == 3


def test_pending_work_that_does_not_move_is_an_error(client: MediatorClient) -> None:
    with pytest.raises(BenchmarkError, match="no new version for 0 s after version 3"):
        client.wait_for_version(5, stalled=0.2)


def test_a_view_that_stays_paused_is_an_error(
    client: MediatorClient, mediator: FakeMediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAUSED_SECONDS", 0.1)
    mediator.state = "paused"
    with pytest.raises(BenchmarkError, match="paused the view: why"):
        client.wait_for_version(5, stalled=10)


def test_history_is_oldest_first_and_after_a_version(client: MediatorClient) -> None:
    assert [row.version for row in client.history()] == [1, 2]
    assert [row.changed_rows for row in client.history(after=1)] == [2]


def test_chunks_of_an_answer_are_one_table(client: MediatorClient) -> None:
    assert client.read_view().to_pydict() == {"x": [1, 2]}


def test_a_watch_stamps_every_version(client: MediatorClient) -> None:
    watch = client.watch(after=1)
    assert 0 < watch.wait_for(2, timeout=10) <= watch.wait_for(3, timeout=10)
    with pytest.raises(BenchmarkError, match="version 4 did not arrive: the mediator ended the stream"):
        watch.wait_for(4, timeout=10)
    watch.close()


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
