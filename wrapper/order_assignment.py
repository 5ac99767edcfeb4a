"""Order assignment: everything that leaves the wrapper leaves in an order the mediator can trust.

The rule: a query result of a local view at position p leaves after every ΔIS of that view up to p and
before every later one. Then the mediator knows, from order alone, which changes an answer shows too much. A
result is never held back for a ΔIS that is still being computed, as in the paper's OMQ: it is about the
source as of what was reported last, whatever the snapshot shows beyond.

Reference: wrapper paper, section 4.1, Figure 7 process OrderAssignment, and Theorem 2.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from adapters.spi import TRANSACTION, Changes
from algebra.arrow_ipc import to_ipc
from algebra.errors import OrderingViolationError
from algebra.position import ORIGIN, Position
from algebra.weight import weight
from protos.convert import global_transaction_to_proto, position_to_proto
from protos.lockstep.v1 import types_pb2
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.message_queue import OrderMessageQueue
from wrapper.update_processor import DeltaIS

CHUNK_BYTES = 8 << 20
"""About how many bytes of rows one message carries."""


class OrderAssignment:
    """Sends ΔIS and MQR in order, and refuses to send anything else."""

    def __init__(self, queue: OrderMessageQueue) -> None:
        self._queue = queue
        self._reported = ORIGIN
        self._told: dict[str, Position] = {}
        """Of each local view, the last position that was told: of a ΔIS, or of an answer."""

    @property
    def reported(self) -> Position:
        """Every transaction up to here has been sent."""
        return self._reported

    def send_update(
        self,
        changes: Changes,
        deltas: Mapping[str, DeltaIS],
        position: Position,
        observed_at: datetime.datetime,
    ) -> int:
        """Send the ΔIS of a run, in as many messages as its rows need; what it takes of the credit.

        `position` is how far the source is followed with it: the run's end, or beyond where nothing follows.
        Transactions that touch no local view and have no mark are left out, but count as reported.
        """
        touched = sorted({index for delta in deltas.values() for index in delta.touched})
        for name, delta in deltas.items():
            if delta.touched:
                self._tell(
                    name, changes.positions[delta.touched[0]], "the change of a transaction", again=False
                )
                self._told[name] = changes.positions[delta.touched[-1]]
        cost = 0
        if touched:
            cost = len(touched) + sum(weight(delta.rows) for delta in deltas.values())
            for message in self._parts(changes, deltas, touched):
                message.observed_at.FromDatetime(observed_at)
                message.cost = 0 if message.more else cost
                self._queue.put(pb.ExchangeResponse(update=message))
        if position > self._reported:
            self._reported = position
            self.send_progress()
        return cost

    @staticmethod
    def _parts(
        changes: Changes, deltas: Mapping[str, DeltaIS], touched: Sequence[int]
    ) -> Iterator[pb.Update]:
        """The update as messages of about CHUNK_BYTES of rows each; all but the last say that more follow."""
        number = {index: i for i, index in enumerate(touched)}
        message = pb.Update(
            transactions=[
                pb.SourceTransaction(
                    position=position_to_proto(changes.positions[i]),
                    batched=i in changes.batched,
                    part_of=global_transaction_to_proto(changes.part_of.get(i)),
                )
                for i in touched
            ],
            deltas=[
                pb.LocalViewDelta(local_view=name, touched=[number[index] for index in delta.touched])
                for name, delta in deltas.items()
                if delta.touched
            ],
        )
        empty = {told.local_view: told for told in message.deltas}
        size = 0
        for name in list(empty):
            for part, rows in enumerate(_chunks(_renumber(deltas[name].rows, list(touched)))):
                if size and (part or size + rows.nbytes > CHUNK_BYTES):
                    message.more = True
                    yield message
                    message, size, empty = pb.Update(), 0, {}
                told = empty.pop(name, None) or message.deltas.add(local_view=name)
                told.arrow = to_ipc(rows)
                size += rows.nbytes
        yield message

    def send_result(
        self, query_id: int, local_view: str, position: Position, batches: Iterator[pa.RecordBatch]
    ) -> None:
        """Send one MQR in chunks; all that happened to its local view up to the position was sent before."""
        self._tell(local_view, position, "an answer", again=True)
        held: list[pa.RecordBatch] = []
        size = chunk = 0
        for batch in batches:
            if self._queue.closed:
                return  # who asked has left, and the next one must not wait for the rest
            held.append(batch)
            size += batch.nbytes
            if size >= CHUNK_BYTES:
                self._send_chunk(query_id, position, chunk, held, last=False)
                held, size, chunk = [], 0, chunk + 1
        self._send_chunk(query_id, position, chunk, held, last=True)

    def _send_chunk(
        self, query_id: int, position: Position, chunk: int, batches: list[pa.RecordBatch], *, last: bool
    ) -> None:
        payload = to_ipc(pa.Table.from_batches(batches)) if batches else b""
        self._queue.put(
            pb.ExchangeResponse(
                result=pb.QueryResult(
                    query_id=query_id,
                    position=position_to_proto(position),
                    arrow=payload,
                    last=last,
                    chunk=chunk,
                )
            )
        )

    def _tell(self, local_view: str, position: Position, what: str, *, again: bool) -> None:
        """Note that something at a position leaves; only an answer may be at one that was told before."""
        told = self._told.get(local_view, ORIGIN)
        if position < told or (position == told and not again):
            raise OrderingViolationError(
                f"{what} of local view {local_view!r} at position {position} may not leave after {told}"
            )
        self._told[local_view] = position

    def begin(self, local_view: str, subscription: int = 0) -> None:
        """The local view is defined (anew): what was told of it before was about another definition."""
        self._told.pop(local_view, None)
        defined = pb.LocalViewDefined(local_view=local_view, subscription=subscription)
        self._queue.put(pb.ExchangeResponse(defined=defined))

    def send_progress(self, memory: types_pb2.WrapperMemory | None = None) -> None:
        """Tell how far the source has been followed; as the heartbeat, with the wrapper's memory."""
        progress = pb.Progress(position=position_to_proto(self._reported), memory=memory)
        self._queue.put(pb.ExchangeResponse(progress=progress))

    def send_sign_of_life(self, memory: types_pb2.WrapperMemory) -> None:
        """The heartbeat while one position cannot be told for all: some local view is still behind."""
        self._queue.put(pb.ExchangeResponse(progress=pb.Progress(memory=memory)))

    def send_error(
        self,
        reason: str,
        message: str,
        *,
        query_id: int | None = None,
        local_view: str = "",
        subscription: int = 0,
    ) -> None:
        """Report a failure in order with everything else."""
        self._queue.put(
            pb.ExchangeResponse(
                error=pb.ExchangeError(
                    reason=reason,
                    message=message,
                    query_id=query_id,
                    local_view=local_view,
                    subscription=subscription,
                )
            )
        )


def _chunks(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in pieces of about CHUNK_BYTES; none if there are no rows."""
    count = max(1, rows.num_rows * CHUNK_BYTES // max(rows.nbytes, 1))
    for start in range(0, rows.num_rows, count):
        yield rows.slice(start, count)


def _renumber(rows: pa.Table, touched: list[int]) -> pa.Table:
    """The rows with `_tx` counted over the transactions that are sent."""
    if touched == list(range(len(touched))):
        return rows
    numbers = np.searchsorted(np.asarray(touched), rows[TRANSACTION].to_numpy()).astype(np.int32)
    return rows.set_column(rows.column_names.index(TRANSACTION), TRANSACTION, pa.array(numbers))
