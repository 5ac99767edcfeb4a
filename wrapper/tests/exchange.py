"""The mediator's end of an Exchange, under a test's control."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from algebra.arrow_ipc import from_ipc, to_ipc
from algebra.decompose import Decomposition, decompose
from algebra.delta import Delta
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from protos.convert import (
    PROTOCOL_VERSION,
    catalog_from_proto,
    local_view_to_proto,
    position_from_proto,
    position_to_proto,
)
from protos.lockstep.v1 import wrapper_pb2 as pb
from protos.lockstep.v1 import wrapper_pb2_grpc
from protos.security.settings import PLAIN, Connection
from protos.security.tls import open_channel


class Mediator:
    """Speaks the wrapper protocol step by step; every wait has a generous limit."""

    def __init__(
        self,
        address: str,
        source: str,
        version: int = PROTOCOL_VERSION,
        connection: Connection = PLAIN,
    ) -> None:
        self._channel = open_channel(address, connection, PROTOCOL_VERSION)
        self.stub = wrapper_pb2_grpc.WrapperServiceStub(self._channel)
        self._requests: queue.SimpleQueue[pb.ExchangeRequest | None] = queue.SimpleQueue()
        self.send(attach=pb.Attach(mediator="test", protocol_version=version, source=source))
        self._responses = self.stub.Exchange(iter(self._requests.get, None), timeout=120)
        self._queries = 0

    def __enter__(self) -> Mediator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.put(None)
        self._responses.cancel()
        self._channel.close()

    def send(self, **message: Any) -> None:
        self._requests.put(pb.ExchangeRequest(**message))

    def receive(self, *, heartbeats: bool = False) -> pb.ExchangeResponse:
        """The next message; progress is skipped unless wanted."""
        for response in self._responses:
            if heartbeats or response.WhichOneof("message") != "progress":
                found: pb.ExchangeResponse = response
                return found
        raise AssertionError("the wrapper ended the stream")

    def expect(self, kind: str) -> Any:
        response = self.receive()
        assert response.WhichOneof("message") == kind, response
        return getattr(response, kind)

    def describe(self) -> pb.DescribeSourceResponse:
        return self.stub.DescribeSource(pb.DescribeSourceRequest())

    def decompose(self, sql: str, name: str = "V") -> Decomposition:
        """The parts of a view over this source alone."""
        described = self.describe()
        catalog = catalog_from_proto(described.source, list(described.relations))
        return decompose(name, sql, {catalog.source: catalog})

    def define(self, view: LocalView, after: Position) -> None:
        self.send(
            define=pb.DefineLocalView(local_view=local_view_to_proto(view), after=position_to_proto(after))
        )

    def load(self, view: LocalView) -> tuple[Delta, Position]:
        """A local view's extent and the position of its snapshot."""
        request = pb.LoadLocalViewRequest(local_views=[local_view_to_proto(view)])
        delta = Delta.of_bag(view.arrow.empty_table())
        for chunk in self.stub.LoadLocalView(request):
            position = position_from_proto(chunk.position)
            if chunk.arrow:
                delta = delta.plus(Delta.of_bag(from_ipc(chunk.arrow)))
        return delta, position

    def credit(self, rows: int = 1_000_000) -> None:
        self.send(credit=pb.Credit(rows=rows))

    def ask(self, view: LocalView, keys: Keys | None) -> int:
        self._queries += 1
        query = pb.MaintenanceQuery(query_id=self._queries, local_view=view.name)
        if keys is not None:
            query.key_columns.extend(keys.columns)
            query.arrow = to_ipc(keys.values)
        self.send(query=query)
        return self._queries

    def result(self, view: LocalView, query_id: int) -> tuple[Delta, Position]:
        """The answer to a query; nothing but its chunks may come before it is complete."""
        delta = Delta.of_bag(view.arrow.empty_table())
        while True:
            chunk = self.expect("result")
            assert chunk.query_id == query_id
            if chunk.arrow:
                delta = delta.plus(Delta.of_bag(from_ipc(chunk.arrow)))
            if chunk.last:
                return delta, position_from_proto(chunk.position)


def deltas_of(update: pb.Update, view: LocalView) -> list[Delta]:
    """The ΔIS of each transaction of an update."""
    found = []
    (delta,) = [d for d in update.deltas if d.local_view == view.name]
    rows = from_ipc(delta.arrow).to_pylist() if delta.arrow else []
    for index in range(len(update.transactions)):
        own = [row for row in rows if row["_tx"] == index]
        pairs: Sequence[tuple[Sequence[Any], int]] = [
            ([row[c.name] for c in view.columns], row["_count"]) for row in own
        ]
        found.append(Delta.of({c.name: c.type for c in view.columns}, pairs))
    return found
