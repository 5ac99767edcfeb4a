"""The view as a client follows it: version 0 by query, every later version by its change."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from algebra.arrow_ipc import from_ipc
from algebra.errors import LockstepError
from cli import shapes
from cli.client import MediatorClient
from cli.demo.layout import COLUMNS, VIEW
from cli.demo.oracle import Bag, Ticket, VersionChange, add, ticket
from protos.lockstep.v1 import mediator_pb2 as pb
from protos.security.settings import PLAIN

if TYPE_CHECKING:
    import pyarrow as pa

_COUNT = "_count"


def state_as_of(mediator: MediatorClient, version: int) -> Bag:
    """The view's rows at a version, read by a query."""
    request = pb.QueryRequest(sql=f"SELECT {', '.join(COLUMNS)} FROM {VIEW}", as_of=version)
    state: Bag = Counter()
    for answer in mediator.stream(mediator.stub.Query, request):
        if answer.arrow:
            columns = (column.to_pylist() for column in from_ipc(answer.arrow).columns)
            state.update(zip(*columns, strict=True))
    return state


class Follower:
    """Follows the view in a thread; what it has seen can be read at any time."""

    def __init__(self, address: str) -> None:
        self._mediator = MediatorClient(address, connection=PLAIN)
        self.initial = state_as_of(self._mediator, 0)
        self.changes: list[VersionChange] = []
        self.newest: pb.Version | None = None
        self.problem: LockstepError | None = None
        self._state: Bag = Counter(self.initial)
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)
        self._thread.start()

    @property
    def ticket(self) -> Ticket | None:
        """How many transactions of each source the newest version shows."""
        with self._lock:
            return ticket(self._state)

    @property
    def rows(self) -> int:
        """Rows of the newest version, duplicates counted."""
        with self._lock:
            return self._state.total()

    def close(self) -> None:
        """End the following; what was seen stays."""
        self._closed = True
        self._mediator.close()
        self._thread.join()

    def _follow(self) -> None:
        request = pb.WatchViewRequest(name=VIEW, after=0)
        try:
            for answer in self._mediator.stream(self._mediator.stub.WatchView, request):
                change = _version_change(answer)
                with self._lock:
                    self.changes.append(change)
                    self.newest = answer.version
                    add(self._state, change.rows)
        except LockstepError as error:
            self.problem = None if self._closed else error


def _version_change(answer: pb.WatchViewResponse) -> VersionChange:
    version = answer.version
    committed = shapes.time(version.committed_at)
    return VersionChange(
        version.version,
        version.source,
        version.batched,
        committed.timestamp() if committed else 0.0,
        _rows(from_ipc(answer.arrow)),
    )


def _rows(table: pa.Table) -> list[tuple[tuple[object, ...], int]]:
    values = [table.column(name).to_pylist() for name in COLUMNS]
    return list(zip(zip(*values, strict=True), table.column(_COUNT).to_pylist(), strict=True))
