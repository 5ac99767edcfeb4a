"""A soak's client: reads views, their versions and the mediator's status, over restarts of the mediator."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import grpc
import pyarrow as pa

from lab.soak.deployment import Deployment
from lab.soak.layout import TICKET, View
from lab.soak.oracle import Change
from lab.soak.recompute import Bag, Row
from protos.lockstep.v1 import mediator_pb2 as pb
from protos.lockstep.v1.mediator_pb2_grpc import MediatorServiceStub
from protos.security.settings import PLAIN
from protos.security.tls import open_channel
from protos.version import PROTOCOL_VERSION

_CALL_SECONDS = 60.0
_Answer = TypeVar("_Answer")


class Reader:
    """Reads from the mediator of a deployment, wherever it listens."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    @contextmanager
    def _stub(self) -> Iterator[MediatorServiceStub]:
        address = self._deployment.address or "127.0.0.1:1"
        with open_channel(address, PLAIN, PROTOCOL_VERSION) as channel:
            yield MediatorServiceStub(channel)

    def status(self) -> pb.GetStatusResponse:
        with self._stub() as stub:
            return stub.GetStatus(pb.GetStatusRequest(), timeout=_CALL_SECONDS)

    def state(self, view: View, as_of: int | None = None) -> tuple[int, Bag]:
        """A version of a view (default: the newest), and its number."""
        with self._stub() as stub:
            request = pb.QueryRequest(sql=f"SELECT * FROM {view.name}", as_of=as_of)
            answers = list(stub.Query(request, timeout=_CALL_SECONDS))
        return answers[0].versions[view.name], Counter(
            row for answer in answers if answer.arrow for row in _rows(answer.arrow)
        )

    def vector(self, view: View) -> dict[str, int]:
        """How many transactions of each source the newest version reflects."""
        with self._stub() as stub:
            request = pb.QueryRequest(sql=f"SELECT * FROM {view.name} WHERE l0 = {TICKET}")
            answers = list(stub.Query(request, timeout=_CALL_SECONDS))
        (values,) = [row for answer in answers if answer.arrow for row in _rows(answer.arrow)]
        return {source: int(values[at]) for source, at in view.tickets.items()}

    def changes(self, view: View, newest: int) -> Iterator[Change]:
        """Every version after 0 up to `newest`."""
        if not newest:
            return
        with self._stub() as stub:
            for answer in stub.WatchView(pb.WatchViewRequest(name=view.name, after=0)):
                rows = {tuple(row): count for *row, count in _rows(answer.arrow)}
                version = answer.version
                yield Change(version.version, version.source, version.batched, rows)
                if version.version >= newest:
                    return

    def patiently(self, read: Callable[[], _Answer], seconds: float) -> _Answer:
        """What a read gives, tried again while the mediator is away or the view not there yet."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return read()
            except grpc.RpcError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def _rows(arrow: bytes) -> Iterator[Row]:
    """The rows of an Arrow stream; column by column, because a soak reads many thousand small ones."""
    with pa.ipc.open_stream(arrow) as stream:
        columns = stream.read_all().columns
    return zip(*(column.to_pylist() for column in columns), strict=True)
