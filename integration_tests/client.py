"""A client of a running mediator, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from algebra.arrow_ipc import from_ipc
from protos.lockstep.v1 import mediator_pb2 as pb
from protos.lockstep.v1 import mediator_pb2_grpc
from protos.security.settings import PLAIN, Connection
from protos.security.tls import open_channel
from protos.version import PROTOCOL_VERSION

Bag = Counter[tuple[Any, ...]]


class Client:
    """Calls a mediator; waits are bounded by gRPC deadlines."""

    def __init__(self, address: str, timeout: float = 240, connection: Connection = PLAIN) -> None:
        self.address = address
        self._channel = open_channel(address, connection, PROTOCOL_VERSION)
        self.stub = mediator_pb2_grpc.MediatorServiceStub(self._channel)
        self._timeout = timeout

    def close(self) -> None:
        self._channel.close()

    def create_view(self, name: str, sql: str, **spec: Any) -> pb.View:
        request = pb.CreateViewRequest(view=pb.ViewSpec(name=name, sql=sql, **spec))
        events = list(self.stub.CreateView(request, timeout=self._timeout))
        assert any(event.progress.phase == "load" for event in events)
        return events[-1].view

    def query(self, sql: str, as_of: int | None = None) -> pa.Table:
        request = pb.QueryRequest(sql=sql, as_of=as_of)
        chunks = [from_ipc(r.arrow) for r in self.stub.Query(request, timeout=self._timeout) if r.arrow]
        return pa.concat_tables(chunks)

    def bag(self, view: str, as_of: int | None = None) -> Bag:
        """The view at a version, as a bag of rows."""
        table = self.query(f'SELECT * FROM "{view}"', as_of)
        return Counter(tuple(row.values()) for row in table.to_pylist())

    def watch(self, view: str, after: int) -> Iterator[tuple[pb.Version, Bag]]:
        """Every version after the given one, with its change as signed counts."""
        request = pb.WatchViewRequest(name=view, after=after)
        for response in self.stub.WatchView(request, timeout=self._timeout):
            change: Bag = Counter()
            for row in from_ipc(response.arrow).to_pylist():
                count = row.pop("_count")
                change[tuple(row.values())] = count
            yield response.version, change

    def wait_for_version(self, view: str, version: int) -> None:
        """Return when the view has reached a version."""
        newest = self.view(view).version
        if newest < version:
            for reached, _ in self.watch(view, newest):
                if reached.version >= version:
                    return

    def view(self, name: str) -> pb.View:
        return self.stub.GetView(pb.GetViewRequest(name=name), timeout=self._timeout).view

    def status(self) -> pb.GetStatusResponse:
        return self.stub.GetStatus(pb.GetStatusRequest(), timeout=self._timeout)

    def verify(self, name: str) -> pb.VerifyResult:
        *_, last = self.stub.VerifyView(pb.VerifyViewRequest(name=name), timeout=self._timeout)
        return last.result

    def refresh(self, name: str) -> pb.RefreshResult:
        *_, last = self.stub.RefreshView(pb.RefreshViewRequest(name=name), timeout=self._timeout)
        return last.result

    def compact(self, name: str) -> pb.CompactViewResponse:
        return self.stub.CompactView(pb.CompactViewRequest(name=name), timeout=self._timeout)

    def history(self, name: str) -> list[pb.Version]:
        found: list[pb.Version] = []
        while not found or found[-1].version:
            before = found[-1].version if found else None
            request = pb.GetHistoryRequest(name=name, before=before)
            found += self.stub.GetHistory(request, timeout=self._timeout).versions
        return found
