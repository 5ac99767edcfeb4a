"""The wrapper's gRPC service: streams in and out of the query processor; it never touches the source itself.

Loads of whole extents run on an adapter of their own, so that a long load does not hold up the Exchange.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import grpc
import pyarrow as pa

from adapters.spi import Adapter
from algebra.arrow_ipc import to_ipc
from algebra.errors import LimitExceededError, LockstepError, ProtocolVersionError, RefusedError
from algebra.local_view import LocalView
from algebra.schema import Catalog
from protos.convert import (
    PROTOCOL_VERSION,
    local_view_from_proto,
    position_to_proto,
    relation_to_proto,
)
from protos.lockstep.v1 import types_pb2, wrapper_pb2_grpc
from protos.lockstep.v1 import wrapper_pb2 as pb
from protos.security.audit import AuditLog
from protos.security.guard import Call, call_of
from protos.status import abort
from wrapper.allow_list import MediatorPolicy, Policies, allowed_view
from wrapper.message_queue import OrderMessageQueue
from wrapper.query_processor import QueryProcessor, typed_query
from wrapper.rate_limit import RateLimit
from wrapper.session import Arrival, Session

log = logging.getLogger(__name__)

LOAD_CHUNK_BYTES = 4 << 20
MOST_WAITING = 1000
MOST_WAITING_BYTES = 256 << 20
"""Messages of a mediator that wait, and their bytes; beyond, its stream is not read until some are done."""


class WrapperService(wrapper_pb2_grpc.WrapperServiceServicer):
    """Serves one source. `new_adapter` makes further adapters of it, for loads."""

    def __init__(
        self,
        processor: QueryProcessor,
        new_adapter: Callable[[], Adapter],
        audit: AuditLog,
        policies: Policies | None = None,
    ) -> None:
        self._processor = processor
        self._new_adapter = new_adapter
        self._audit = audit
        self._policies = policies or Policies()
        self._limits: dict[str, RateLimit] = {}
        self._newest: Session | None = None
        self._lock = threading.Lock()

    def _policy(self, call: Call) -> tuple[MediatorPolicy, RateLimit]:
        """What the calling mediator may see, and how often it may ask, over all its calls."""
        policy = self._policies.of(call.principal.name)
        with self._lock:
            limit = self._limits.setdefault(call.principal.name, RateLimit(policy.queries_per_second))
        return policy, limit

    def _told(self, call: Call, error: LockstepError) -> LockstepError:
        """The error as the caller may hear it; the log has it in full."""
        if isinstance(error, RefusedError):
            return error
        source = self._processor.source
        log.error("source %s: %s for %s failed: %s", source, call.action, call.principal.title, error)
        return self._policies.of(call.principal.name).told(error, source)

    def DescribeSource(
        self, request: pb.DescribeSourceRequest, context: grpc.ServicerContext
    ) -> pb.DescribeSourceResponse:
        adapter, call = self._new_adapter(), call_of(context)
        try:
            policy, limit = self._policy(call)
            limit.admit()
            catalog = policy.visible(adapter.catalog())
            return pb.DescribeSourceResponse(
                source=catalog.source,
                relations=[relation_to_proto(relation) for relation in catalog],
                capabilities=capabilities_to_proto(adapter),
                adapter=adapter.config.adapter,
                protocol_version=PROTOCOL_VERSION,
            )
        except LockstepError as error:
            abort(context, self._told(call, error))
        finally:
            adapter.close()

    def LoadLocalView(
        self, request: pb.LoadLocalViewRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.LoadLocalViewResponse]:
        adapter, call = self._new_adapter(), call_of(context)
        try:
            policy, limit = self._policy(call)
            for _ in request.local_views:
                limit.admit()
            yield from self._load(adapter, request, policy)
        except LockstepError as error:
            abort(context, self._told(call, error))
        finally:
            adapter.close()

    def _load(
        self, adapter: Adapter, request: pb.LoadLocalViewRequest, policy: MediatorPolicy
    ) -> Iterator[pb.LoadLocalViewResponse]:
        catalog = adapter.catalog()
        views = [
            allowed_view(local_view_from_proto(message), catalog, policy) for message in request.local_views
        ]
        if not views:
            raise RefusedError("a load without local views")
        adapter.prepare(list(dict.fromkeys(relation for view in views for relation in view.relations)))
        with adapter.snapshot() as snapshot:
            position = position_to_proto(snapshot.position)
            for view in views:
                estimate = _row_estimate(view, catalog)
                sent = 0
                answer = typed_query(view, None, catalog).answer(snapshot)
                batches = policy.bounded(answer, f"local view {view.name!r}")
                for table in _chunks(batches, LOAD_CHUNK_BYTES):
                    sent += table.num_rows
                    yield pb.LoadLocalViewResponse(
                        position=position,
                        local_view=view.name,
                        arrow=to_ipc(table),
                        rows=sent,
                        row_estimate=estimate,
                    )
            yield pb.LoadLocalViewResponse(position=position, last=True)

    def Exchange(
        self, request_iterator: Iterator[pb.ExchangeRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ExchangeResponse]:
        try:
            first = next(request_iterator, None)
            if first is None or first.WhichOneof("message") != "attach":
                raise RefusedError("the first message on Exchange must be Attach")
            self._check_attach(first.attach)
            call = call_of(context)
            policy, limit = self._policy(call)
            adapter = self._new_adapter()
            attached = pb.Attached(
                source=adapter.config.name,
                capabilities=capabilities_to_proto(adapter),
                protocol_version=PROTOCOL_VERSION,
            )
            adapter.close()
        except LockstepError as error:
            abort(context, error)
        name = "".join(c if c.isprintable() else "?" for c in first.attach.mediator[:200])
        queue = OrderMessageQueue(self._processor.limits.queue_bytes)
        session = Session(name, queue, policy, self._refusals(call))
        ended = threading.Event()
        context.add_callback(session.queue.close)
        context.add_callback(ended.set)
        log.info("%s attached as %s", session.mediator, call.principal.title)
        yield pb.ExchangeResponse(attached=attached)
        self._replace(session)
        self._processor.messages.put(Arrival(session, first))
        threading.Thread(
            target=self._receive,
            args=(session, request_iterator, limit, ended),
            name="exchange-receive",
            daemon=True,
        ).start()
        for response in session.queue:
            self._processor.counters.sent_bytes += response.ByteSize()
            yield response

    def _replace(self, session: Session) -> None:
        """End the stream of the mediator before this one, at once.

        The query processor would, when it comes to the new one; but it may be waiting for the old one, which
        does not read what it is sent.
        """
        with self._lock:
            before, self._newest = self._newest, session
        if before is not None:
            before.queue.close()

    def _refusals(self, call: Call) -> Callable[[str, LockstepError], None]:
        """What to do when something that a mediator sends on its Exchange is refused: write it down."""

        def refused(what: str, error: LockstepError) -> None:
            if isinstance(error, RefusedError):
                self._processor.counters.refusals += 1
                self._audit.record(call.principal, call.peer, what, call.target, error.reason, error.message)

        return refused

    def _receive(
        self,
        session: Session,
        requests: Iterator[pb.ExchangeRequest],
        limit: RateLimit,
        ended: threading.Event,
    ) -> None:
        try:
            defining = False
            for request in requests:
                kind, size = request.WhichOneof("message"), request.ByteSize()
                if kind in ("query", "define"):
                    limit.wait(ended)
                self._wait_for_room(session, kind, defining, ended)
                session.received_bytes += size
                self._processor.messages.put(Arrival(session, request, size))
                if kind == "define":
                    defining = request.define.more
        except grpc.RpcError:
            pass  # the stream broke; the mediator will attach again
        except LockstepError as error:
            session.refused("exchange", error)
            session.tell(error, self._processor.source)
        finally:
            session.queue.close()

    def _wait_for_room(
        self, session: Session, kind: str | None, defining: bool, ended: threading.Event
    ) -> None:
        """Return when one more message may wait.

        While local views are being defined together, queries wait for the last of them, which is yet to be
        read: so they cannot be waited for, and too many of them are refused.
        """
        while not ended.is_set():
            waiting, too_large = len(self._processor.messages), session.waiting_bytes >= MOST_WAITING_BYTES
            if not defining:
                full = waiting + len(session.queries) >= MOST_WAITING or too_large
            elif kind == "query" and (len(session.queries) >= MOST_WAITING or too_large):
                raise LimitExceededError(
                    "too many queries wait for the last of the local views that are defined together"
                )
            else:
                full = waiting >= MOST_WAITING or (waiting > 0 and too_large)
            if not full:
                return
            ended.wait(0.05)

    def _check_attach(self, attach: pb.Attach) -> None:
        if attach.protocol_version != PROTOCOL_VERSION:
            raise ProtocolVersionError(
                f"the mediator speaks protocol version {attach.protocol_version}, "
                f"this wrapper {PROTOCOL_VERSION}: upgrade the older one"
            )
        name = self._processor.source
        if attach.source != name:
            raise RefusedError(f"the mediator wants source {attach.source!r}, this wrapper serves {name!r}")


def capabilities_to_proto(adapter: Adapter) -> types_pb2.Capabilities:
    """What the adapter's capture can do, for the mediator."""
    found = adapter.capabilities
    return types_pb2.Capabilities(
        capture=found.capture,
        boundaries=found.boundaries.value,
        history=found.history,
        total_order=found.total_order,
        before_images=found.before_images,
        needs_write=found.needs_write,
        global_transactions=found.global_transactions,
        bounded_runs=found.bounded_runs,
    )


def _chunks(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    total = 0
    for batch in batches:
        held.append(batch)
        total += batch.nbytes
        if total >= size:
            yield pa.Table.from_batches(held)
            held, total = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _row_estimate(view: LocalView, catalog: Catalog) -> int | None:
    """The largest relation's estimate: a join along foreign keys has about that many rows."""
    estimates = [catalog.relation(name).row_estimate for name in view.relations]
    return max((estimate for estimate in estimates if estimate is not None), default=None)
