"""The benchmark's client of a mediator: create, watch and read one view, with counters as plain values."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from lab.bench.errors import BenchmarkError
from protos.lockstep.v1 import mediator_pb2 as pb
from protos.lockstep.v1.mediator_pb2_grpc import MediatorServiceStub
from protos.security.settings import PLAIN
from protos.security.tls import open_channel
from protos.version import PROTOCOL_VERSION

if TYPE_CHECKING:
    import pyarrow as pa

POLL_SECONDS = 0.1
"""How often progress is asked for: rarely enough not to slow the mediator down."""

QUIET_SECONDS = 20.0
"""How long nothing may move, with nothing pending, before a stream counts as finished."""

PAUSED_SECONDS = 15.0
"""How long a view may be paused; a restarted mediator takes a moment to reach its sources."""


@dataclass(frozen=True)
class Counters:
    """What the mediator has counted since it started, for one view and over all sources.

    `problem` says why the view is not maintained right now; empty if it is.
    """

    version: int = 0
    pending: int = 0
    batches: int = 0
    transactions: int = 0
    queries: int = 0
    compensations: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    problem: str = ""

    def minus(self, before: Counters) -> Counters:
        """What was counted in between."""
        return Counters(
            version=self.version - before.version,
            pending=self.pending - before.pending,
            batches=self.batches - before.batches,
            transactions=self.transactions - before.transactions,
            queries=self.queries - before.queries,
            compensations=self.compensations - before.compensations,
            bytes_received=self.bytes_received - before.bytes_received,
            bytes_sent=self.bytes_sent - before.bytes_sent,
        )


@dataclass(frozen=True)
class VersionRow:
    """One line of a view's history."""

    version: int
    committed_ns: int
    changed_rows: int
    batched: bool


class MediatorClient:
    """A connection to one mediator, about one view; use it as a context manager."""

    def __init__(self, address: str, view: str) -> None:
        self._view = view
        self._channel = open_channel(address, PLAIN, PROTOCOL_VERSION)
        self._stub = MediatorServiceStub(self._channel)

    def create_view(self, sql: str, max_batch: int, timeout: float) -> None:
        """Create the view and wait until it is loaded."""
        spec = pb.ViewSpec(name=self._view, sql=sql, max_batch=max_batch)
        try:
            for response in self._stub.CreateView(pb.CreateViewRequest(view=spec), timeout=timeout):
                if response.WhichOneof("event") == "view":
                    return
        except grpc.RpcError as error:
            raise _refused("the view was not created", error) from error
        raise BenchmarkError("the view was not created: the mediator ended the stream early")

    def counters(self) -> Counters:
        """The counters now."""
        try:
            status = self._stub.GetStatus(pb.GetStatusRequest(), timeout=60)
        except grpc.RpcError as error:
            raise _refused("the mediator gave no status", error) from error
        view = next((v for v in status.views if v.view == self._view), None)
        if view is None:
            return Counters()
        return Counters(
            version=view.version,
            pending=view.pending,
            batches=view.batches,
            transactions=view.transactions,
            queries=sum(source.queries for source in status.sources),
            compensations=view.compensations,
            bytes_received=sum(source.bytes_received for source in status.sources),
            bytes_sent=sum(source.bytes_sent for source in status.sources),
            problem=view.problem if view.state == "paused" else "",
        )

    def wait_for_version(self, version: int, stalled: float) -> Counters:
        """The counters once that version is there, or nothing is pending and nothing moves any more.

        Fewer versions than transactions are right where a source could not tell transactions apart; the
        caller decides. Raises BenchmarkError if work is pending and no version appears for `stalled` seconds,
        or if the view is paused for longer than a restart explains.
        """
        last_version, moved = -1, time.monotonic()
        while True:
            counters = self.counters()
            if counters.version >= version:
                return counters
            still = time.monotonic() - moved
            if counters.version != last_version:
                last_version, moved = counters.version, time.monotonic()
            elif counters.problem and still > PAUSED_SECONDS:
                raise BenchmarkError(f"the mediator paused the view: {counters.problem}")
            elif counters.pending == 0 and still > QUIET_SECONDS:
                return counters
            elif still > stalled:
                raise BenchmarkError(f"no new version for {stalled:.0f} s after version {last_version}")
            time.sleep(POLL_SECONDS)

    def history(self, after: int = 0) -> list[VersionRow]:
        """The versions after that one, oldest first."""
        try:
            versions = self._versions(after)
        except grpc.RpcError as error:
            raise _refused("the mediator gave no history", error) from error
        rows = [
            VersionRow(v.version, v.committed_at.ToNanoseconds(), v.changed_rows, v.batched)
            for v in versions
            if v.version > after
        ]
        return sorted(rows, key=lambda row: row.version)

    def _versions(self, after: int) -> list[pb.Version]:
        """At least the versions after that one; one response holds a bounded number."""
        request = pb.GetHistoryRequest(name=self._view)
        found: list[pb.Version] = []
        while True:
            page = self._stub.GetHistory(request, timeout=300).versions
            found += page
            if not page or page[-1].version <= max(after, 0):
                return found
            request = pb.GetHistoryRequest(name=self._view, before=page[-1].version)

    def read_view(self) -> pa.Table:
        """The view's rows at its newest version."""
        import pyarrow as pa

        request = pb.QueryRequest(sql=f"SELECT * FROM {self._view}")
        try:
            chunks = [response.arrow for response in self._stub.Query(request, timeout=600) if response.arrow]
        except grpc.RpcError as error:
            raise _refused("the view could not be read", error) from error
        if not chunks:
            raise BenchmarkError("the view could not be read: the answer has no columns")
        return pa.concat_tables([pa.ipc.open_stream(chunk).read_all() for chunk in chunks])

    def watch(self, after: int) -> VersionWatch:
        """A subscription that notes when each version after that one arrives here."""
        return VersionWatch(self._stub, self._view, after)

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class VersionWatch:
    """Receives a view's change stream in a thread and stamps every version on arrival."""

    def __init__(self, stub: MediatorServiceStub, view: str, after: int) -> None:
        self._call = stub.WatchView(pb.WatchViewRequest(name=view, after=after))
        self._received: dict[int, int] = {}
        self._problem = ""
        self._arrival = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="watch-view", daemon=True)
        self._thread.start()

    def wait_for(self, version: int, timeout: float) -> int:
        """When the version arrived, in nanoseconds of the host's clock; waits for it if need be."""
        with self._arrival:
            self._arrival.wait_for(lambda: version in self._received or self._problem, timeout)
            if version not in self._received:
                raise BenchmarkError(f"version {version} did not arrive: {self._problem or 'time is up'}")
            return self._received[version]

    def close(self) -> None:
        """End the subscription."""
        self._call.cancel()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            for response in self._call:
                now = time.time_ns()
                with self._arrival:
                    self._received[response.version.version] = now
                    self._arrival.notify_all()
            problem = "the mediator ended the stream"
        except grpc.RpcError as error:
            problem = _details(error)
        with self._arrival:
            self._problem = problem
            self._arrival.notify_all()


def _refused(what: str, error: grpc.RpcError) -> BenchmarkError:
    return BenchmarkError(f"{what}: {_details(error)}")


def _details(error: grpc.RpcError) -> str:
    return " ".join((error.details() or str(error)).split()) if isinstance(error, grpc.Call) else str(error)
