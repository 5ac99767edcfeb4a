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
from algebra.errors import ConfigurationError, LockstepError, RefusedError
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
from protos.status import abort
from wrapper.allow_list import allowed_view
from wrapper.message_queue import OrderMessageQueue
from wrapper.query_processor import Arrival, QueryProcessor, Session, typed_query

log = logging.getLogger(__name__)

LOAD_CHUNK_BYTES = 4 << 20


class WrapperService(wrapper_pb2_grpc.WrapperServiceServicer):
    """Serves one source. `new_adapter` makes further adapters of it, for loads."""

    def __init__(self, processor: QueryProcessor, new_adapter: Callable[[], Adapter]) -> None:
        self._processor = processor
        self._new_adapter = new_adapter

    def DescribeSource(
        self, request: pb.DescribeSourceRequest, context: grpc.ServicerContext
    ) -> pb.DescribeSourceResponse:
        adapter = self._new_adapter()
        try:
            catalog = adapter.catalog()
            return pb.DescribeSourceResponse(
                source=catalog.source,
                relations=[relation_to_proto(relation) for relation in catalog],
                capabilities=capabilities_to_proto(adapter),
                adapter=adapter.config.adapter,
                protocol_version=PROTOCOL_VERSION,
            )
        except LockstepError as error:
            abort(context, error)
        finally:
            adapter.close()

    def LoadLocalView(
        self, request: pb.LoadLocalViewRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.LoadLocalViewResponse]:
        adapter = self._new_adapter()
        try:
            yield from self._load(adapter, request)
        except LockstepError as error:
            abort(context, error)
        finally:
            adapter.close()

    def _load(self, adapter: Adapter, request: pb.LoadLocalViewRequest) -> Iterator[pb.LoadLocalViewResponse]:
        catalog = adapter.catalog()
        views = [allowed_view(local_view_from_proto(message), catalog) for message in request.local_views]
        if not views:
            raise RefusedError("a load without local views")
        adapter.prepare(list(dict.fromkeys(relation for view in views for relation in view.relations)))
        with adapter.snapshot() as snapshot:
            position = position_to_proto(snapshot.position)
            for view in views:
                estimate = _row_estimate(view, catalog)
                sent = 0
                batches = typed_query(view, None, catalog).answer(snapshot)
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
            adapter = self._new_adapter()
            attached = pb.Attached(source=adapter.config.name, capabilities=capabilities_to_proto(adapter))
            adapter.close()
        except LockstepError as error:
            abort(context, error)
        session = Session(first.attach.mediator, OrderMessageQueue())
        context.add_callback(session.queue.close)
        log.info("mediator %s attached", session.mediator)
        yield pb.ExchangeResponse(attached=attached)
        self._processor.messages.put(Arrival(session, first))
        threading.Thread(
            target=self._receive, args=(session, request_iterator), name="exchange-receive", daemon=True
        ).start()
        yield from session.queue

    def _receive(self, session: Session, requests: Iterator[pb.ExchangeRequest]) -> None:
        try:
            for request in requests:
                self._processor.messages.put(Arrival(session, request))
        except grpc.RpcError:
            pass  # the stream broke; the mediator will attach again
        finally:
            session.queue.close()

    def _check_attach(self, attach: pb.Attach) -> None:
        if attach.protocol_version != PROTOCOL_VERSION:
            raise ConfigurationError(
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
