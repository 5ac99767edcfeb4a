"""The mediator's gRPC service: requests in, protobuf and Arrow out; the work is the mediator's."""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import grpc

from algebra.arrow_ipc import schema_to_ipc, to_ipc
from algebra.errors import (
    INTERNAL_ERROR,
    ForbiddenError,
    LockstepError,
    NotFoundError,
    StorageError,
    ViewDefinitionError,
)
from algebra.position import Position
from mediator.config import ViewSpecConfig
from mediator.explain import explanation, maintenance
from mediator.mediator import Mediator
from mediator.storage_errors import storage_error, without_place
from mediator.views import MaintainedView, spec_from_json
from mediator.warehouse.query import NoSuchViewError
from mediator.warehouse.records import VersionRecord
from protos.convert import position_to_proto
from protos.lockstep.v1 import mediator_pb2 as pb
from protos.lockstep.v1 import mediator_pb2_grpc
from protos.process_memory import peak_bytes, resident_bytes
from protos.security.access import require
from protos.security.guard import Call, call_of
from protos.security.limits import counted_by
from protos.security.principals import Principal, Verb
from protos.status import abort

log = logging.getLogger(__name__)

HISTORY_VERSIONS = 10_000
"""How many versions one response of GetHistory holds at most."""

Method = TypeVar("Method", bound=Callable[..., Any])
Described = TypeVar("Described")


def _unary(method: Method) -> Method:
    @functools.wraps(method)
    def guarded(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request, context)
        except LockstepError as error:
            abort(context, self.told(error, context))
        except Exception as error:
            found = storage_error(error, "the warehouse")
            if found is None:
                raise
            abort(context, self.told(found, context))

    return guarded  # type: ignore[return-value]


def _streaming(method: Method) -> Method:
    @functools.wraps(method)
    def guarded(self: Any, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from method(self, request, context)
        except LockstepError as error:
            abort(context, self.told(error, context))

    return guarded  # type: ignore[return-value]


class MediatorService(mediator_pb2_grpc.MediatorServiceServicer):
    """Serves one mediator."""

    def __init__(self, mediator: Mediator) -> None:
        self._mediator = mediator

    @_streaming
    def CreateView(
        self, request: pb.CreateViewRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.CreateViewResponse]:
        spec = _spec_from_proto(request.view)
        call = call_of(context)
        call.target = spec.name
        for event in _with_progress(call, lambda progress: self._mediator.create_view(spec, progress)):
            if isinstance(event, pb.LoadProgress):
                yield pb.CreateViewResponse(progress=event)
            else:
                yield pb.CreateViewResponse(view=self._view(spec.name))

    @_unary
    def DropView(self, request: pb.DropViewRequest, context: grpc.ServicerContext) -> pb.DropViewResponse:
        self._mediator.drop_view(request.name)
        return pb.DropViewResponse()

    @_streaming
    def RefreshView(
        self, request: pb.RefreshViewRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.RefreshViewResponse]:
        call, name = call_of(context), request.name
        for event in _with_progress(call, lambda progress: self._mediator.refresh_view(name, progress)):
            if isinstance(event, pb.LoadProgress):
                yield pb.RefreshViewResponse(progress=event)
            else:
                version, rows = event
                yield pb.RefreshViewResponse(result=pb.RefreshResult(version=version, changed_rows=rows))

    @_unary
    def ListViews(self, request: pb.ListViewsRequest, context: grpc.ServicerContext) -> pb.ListViewsResponse:
        seen = self._seen_by(call_of(context).principal)
        return pb.ListViewsResponse(views=_of_those_left(seen, self._view))

    def _seen_by(self, principal: Principal) -> list[str]:
        """The views that a caller may know of."""
        return [name for name in self._names() if may_see(principal, name)]

    def _names(self) -> list[str]:
        return [stored.name for stored in self._mediator.warehouse.views()]

    def told(self, error: LockstepError, context: grpc.ServicerContext) -> LockstepError:
        """The error as its caller may hear it: of views that it may not know of it learns no name, and where
        the warehouse lies is for those who look after it."""
        principal = call_of(context).principal
        if isinstance(error, NoSuchViewError):
            return NoSuchViewError(error.name, self._seen_by(principal))
        if isinstance(error, StorageError) and not principal.may(Verb.MANAGE, ""):
            return StorageError(without_place(error.message))
        return error

    @_unary
    def GetView(self, request: pb.GetViewRequest, context: grpc.ServicerContext) -> pb.GetViewResponse:
        view = self._view(request.name)
        kept = self._mediator.views.get(request.name)
        return pb.GetViewResponse(view=view, explanation=self._explanation(kept) if kept else None)

    @_unary
    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.GetStatusResponse:
        mediator = self._mediator
        principal = call_of(context).principal
        manages = principal.may(Verb.MANAGE, "")
        response = pb.GetStatusResponse(
            engine=mediator.config.engine,
            # Where it lies on the server's disk is for those who look after it.
            warehouse=mediator.config.warehouse if manages else "",
            memory_bytes=resident_bytes(),
            peak_memory_bytes=peak_bytes(),
            waiting_rows=mediator.waiting_rows,
            limits=pb.Limits(
                umq_rows=mediator.config.umq_rows,
                max_batch=mediator.config.max_batch,
                embedded_memory=mediator.config.embedded_memory,
                keepalive_seconds=mediator.config.keepalive_seconds,
                assembled_rows=mediator.config.assembled_rows,
                extent_rows=mediator.config.extent_rows,
            ),
        )
        problem, problem_since = mediator.storage_problem
        response.problem = problem if manages or not problem else without_place(problem)
        if problem_since is not None:
            response.problem_since.FromDatetime(problem_since)
        response.started_at.FromDatetime(mediator.started_at)
        # Who may read some views only has no business with where their rows come from.
        all_seen = principal.may(Verb.READ, "") or manages
        for channel in mediator.channels.values() if all_seen else ():
            status = response.sources.add(
                source=channel.source,
                address=channel.address,
                state=channel.state,
                position=position_to_proto(channel.position),
                transactions=channel.counters.transactions,
                queries=channel.counters.queries,
                bytes_received=channel.counters.bytes_received,
                bytes_sent=channel.counters.bytes_sent,
                problem=channel.problem,
                capabilities=channel.capabilities,
                owed_rows=channel.owed,
                memory=channel.memory,
            )
            if channel.heard_at is not None:
                status.heard_at.FromDatetime(channel.heard_at)
            status.since.FromDatetime(channel.since)
        response.views.extend(_of_those_left(self._seen_by(principal), self._view_status))
        return response

    def _view_status(self, name: str) -> pb.ViewStatus:
        view: MaintainedView | None = self._mediator.views.get(name)
        newest = self._mediator.warehouse.newest(name)
        status = pb.ViewStatus(view=name, version=newest.version)
        self._tell_state(status, name)
        if view is not None:
            counters = view.counters
            status.parked = view.parked and not view.problem
            with self._mediator.changed:
                status.pending = len(view.queue)
                status.pending_rows = view.queue.rows
            status.batches = counters.batches
            status.transactions = counters.transactions
            status.queries = counters.queries
            status.compensations = counters.compensations
            status.rows = counters.rows
            status.lag_seconds = counters.lags[-1] if counters.lags else 0.0
            status.lag_p50_seconds = counters.lag(0.5)
            status.lag_p99_seconds = counters.lag(0.99)
        return status

    def _tell_state(self, told: pb.View | pb.ViewStatus, name: str) -> None:
        """Whether a view is maintained, stale or paused; why, and since when."""
        kept = self._mediator.views.get(name)
        waits_for, since = self._mediator.away(name)
        told.problem = self._mediator.problem(name)
        told.waits_for.extend(waits_for)
        if since is not None:
            told.stale_since.FromDatetime(since)
        if told.problem and (kept is not None or not waits_for):
            told.state = "paused"
        elif waits_for:
            told.state = "stale"
            told.problem = f"waits for {', '.join(waits_for)}"
        else:
            told.state = "maintained"

    @_streaming
    def Query(self, request: pb.QueryRequest, context: grpc.ServicerContext) -> Iterator[pb.QueryResponse]:
        call = call_of(context)
        # Names are looked up among these, now and when the query runs: a view that is made meanwhile is none.
        known = [name for name in self._names() if call.principal.may(Verb.READ, name)]

        def versions_of(views: Collection[str]) -> dict[str, int]:
            call.target = ", ".join(sorted(views))
            return _fixed_version(views, request.as_of) if request.HasField("as_of") else {}

        def give_up(reason: LockstepError) -> None:
            call.outcome, call.detail = reason.reason, reason.message
            with suppress(Exception):  # it may be ending by itself
                context.cancel()

        caller = counted_by(call.principal, call.peer)
        try:
            reader, versions = self._mediator.warehouse.query(
                request.sql, versions_of, context.add_callback, known, caller, give_up
            )
        except NoSuchViewError as error:
            raise _told(error, call.principal) from None
        yield pb.QueryResponse(arrow=schema_to_ipc(reader.schema), versions=versions)
        for batch in reader:
            if batch.num_rows:
                yield pb.QueryResponse(arrow=to_ipc(batch))
        call.outcome = "ok"
        yield pb.QueryResponse(last=True)

    @_streaming
    def WatchView(
        self, request: pb.WatchViewRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchViewResponse]:
        warehouse, changed = self._mediator.warehouse, self._mediator.changed
        view = warehouse.view(request.name)
        newest = warehouse.newest(request.name).version
        seen = request.after if request.HasField("after") else newest
        # A client that leaves must not keep this thread waiting for the next version.
        context.add_callback(lambda: _notify(changed))
        while context.is_active() and not self._mediator.stopping:
            for record, change in warehouse.changes(view, seen):
                yield pb.WatchViewResponse(version=_version(record), arrow=to_ipc(change))
                seen = record.version
            self._wait_for_version(request.name, seen, context)

    def _wait_for_version(self, name: str, seen: int, context: grpc.ServicerContext) -> None:
        """Return when there is a version after `seen`, or the client has left, or a while has passed."""
        warehouse, changed = self._mediator.warehouse, self._mediator.changed
        with changed:
            changed.wait_for(
                lambda: (
                    not context.is_active()
                    or self._mediator.stopping
                    or warehouse.newest(name).version > seen
                ),
                timeout=5.0,
            )

    @_unary
    def GetHistory(
        self, request: pb.GetHistoryRequest, context: grpc.ServicerContext
    ) -> pb.GetHistoryResponse:
        before = request.before if request.HasField("before") else None
        limit = request.limit if 0 < request.limit < HISTORY_VERSIONS else HISTORY_VERSIONS
        records = self._mediator.warehouse.history(request.name, limit, before)
        return pb.GetHistoryResponse(versions=[_version(record) for record in records])

    @_streaming
    def VerifyView(
        self, request: pb.VerifyViewRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.VerifyViewResponse]:
        call, name = call_of(context), request.name
        for event in _with_progress(call, lambda progress: self._mediator.verify_view(name, progress)):
            if isinstance(event, pb.LoadProgress):
                yield pb.VerifyViewResponse(progress=event)
            else:
                result = pb.VerifyResult(
                    version=event.version,
                    vector=_vector(event.vector),
                    rows=event.rows,
                    arrow=to_ipc(event.differences),
                    hidden_differences=event.hidden_differences,
                )
                yield pb.VerifyViewResponse(result=result)

    @_unary
    def CompactView(
        self, request: pb.CompactViewRequest, context: grpc.ServicerContext
    ) -> pb.CompactViewResponse:
        result = self._mediator.warehouse.compact(request.name)
        return pb.CompactViewResponse(
            version=result.version, files_before=result.files_before, files_after=result.files_after
        )

    @_unary
    def Explain(self, request: pb.ExplainRequest, context: grpc.ServicerContext) -> pb.ExplainResponse:
        call = call_of(context)
        if request.WhichOneof("what") == "view":
            call.target = request.view
            if not may_see(call.principal, request.view):
                require(call.principal, Verb.READ, request.view)
            stored = self._mediator.warehouse.view(request.view)
            kept = self._mediator.views.get(request.view)
            if kept is not None:
                return pb.ExplainResponse(explanation=self._explanation(kept))
            spec = spec_from_json(stored.spec)
        else:
            # It tells the columns of the sources: that is for those who may make views of them.
            require(call.principal, Verb.MANAGE, "a view that does not exist yet")
            spec = _spec_from_proto(request.spec)
        decomposition = self._mediator.explain(spec)
        promise = self._mediator.promise(spec, decomposition)
        return pb.ExplainResponse(explanation=explanation(decomposition, promise))

    def _explanation(self, view: MaintainedView) -> pb.Explanation:
        return explanation(view.decomposition, self._mediator.promise(view.spec, view.decomposition))

    def _view(self, name: str) -> pb.View:
        warehouse = self._mediator.warehouse
        stored, newest = warehouse.view(name), warehouse.newest(name)
        view = pb.View(
            spec=_spec_to_proto(spec_from_json(stored.spec)),
            version=newest.version,
            rows=newest.rows,
            vector=_vector(newest.vector),
            arrow_schema=schema_to_ipc(stored.visible_schema),
            sources=sorted(newest.vector),
        )
        self._tell_state(view, name)
        view.committed_at.FromDatetime(newest.committed_at)
        kept = self._mediator.views.get(name)
        if kept is not None:
            promise = self._mediator.promise(kept.spec, kept.decomposition)
            view.maintenance.CopyFrom(maintenance(promise))
        return view


def may_see(principal: Principal, view: str) -> bool:
    """Whether a caller may know how a view is doing."""
    return principal.may(Verb.READ, view) or principal.may(Verb.MANAGE, view)


def _told(error: NoSuchViewError, principal: Principal) -> LockstepError:
    """What a caller is told: who may read some views only, the same of one that is hidden and of none."""
    if principal.may(Verb.READ, ""):
        return error
    own = ", ".join(sorted(scope.partition(":")[2] for scope in principal.scopes if ":" in scope))
    return ForbiddenError(f"{principal.title} may read {own or 'nothing'}, and the query names more")


def _of_those_left(names: Iterable[str], describe: Callable[[str], Described]) -> Iterator[Described]:
    """What is to be told of each view, without those that were dropped since they were listed."""
    for name in names:
        with suppress(NotFoundError):
            yield describe(name)


def _fixed_version(views: Collection[str], version: int) -> dict[str, int]:
    """Which view a query with `as_of` reads at that version; it must read exactly one."""
    if len(views) != 1:
        raise ViewDefinitionError(f"--as-of needs a query over one view, not {len(views)}")
    return dict.fromkeys(views, version)


def _notify(condition: threading.Condition) -> None:
    with condition:
        condition.notify_all()


def _vector(vector: Mapping[str, Position]) -> dict[str, Any]:
    return {source: position_to_proto(position) for source, position in vector.items()}


def _version(record: VersionRecord) -> pb.Version:
    version = pb.Version(
        version=record.version,
        source=record.source,
        position=position_to_proto(record.position),
        vector=_vector(record.vector),
        changed_rows=record.changed_rows,
        batched=record.batched,
    )
    version.observed_at.FromDatetime(record.observed_at)
    version.committed_at.FromDatetime(record.committed_at)
    return version


def _spec_from_proto(spec: pb.ViewSpec) -> ViewSpecConfig:
    return ViewSpecConfig(
        name=spec.name,
        sql=spec.sql,
        maintenance=spec.maintenance,
        allow_cross_join=spec.allow_cross_join,
        max_batch=spec.max_batch,
        consistency=spec.consistency,
        force=spec.force,
    )


def _spec_to_proto(spec: ViewSpecConfig) -> pb.ViewSpec:
    return pb.ViewSpec(
        name=spec.name,
        sql=spec.sql,
        maintenance=spec.maintenance,
        allow_cross_join=spec.allow_cross_join,
        max_batch=spec.max_batch,
        consistency=spec.consistency,
        force=spec.force,
    )


def _with_progress(call: Call, work: Callable[[Callable[..., None]], Any]) -> Iterator[Any]:
    """Run `work` beside the stream: yields LoadProgress messages as they come, then the result.

    It goes on if the caller leaves; the call is told what came of it in any case.
    """
    events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def progress(phase: str, local_view: str, rows: int, estimate: int | None) -> None:
        message = pb.LoadProgress(phase=phase, local_view=local_view, rows=rows, row_estimate=estimate)
        events.put(("progress", message))

    def failed(error: LockstepError) -> None:
        call.outcome, call.detail = error.reason, error.message
        events.put(("error", error))

    def run() -> None:
        try:
            result = work(progress)
            call.outcome = "ok"
            events.put(("result", result))
        except LockstepError as error:
            failed(error)
        except Exception as error:
            found = storage_error(error, "the warehouse")
            if found is None:
                log.exception("%s failed unexpectedly", call.action)
            failed(found or LockstepError(INTERNAL_ERROR))

    thread = threading.Thread(target=run, name="view-work", daemon=True)
    thread.start()
    call.settle = thread.join
    while True:
        kind, value = events.get()
        if kind == "error":
            raise value
        yield value
        if kind == "result":
            return
