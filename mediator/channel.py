"""Channels: one ordered stream per source, and the mediator's half of the ordering contract.

A channel keeps one Exchange to a wrapper alive. It decodes what arrives, checks the order, hands updates
on, and resolves maintenance queries. When the stream breaks it attaches again with backoff, defines its
local views from the last position it has delivered, and asks its open queries anew; whoever waits for an
answer does not notice.

A connection whose other end has gone without a word (half-open) is noticed by gRPC's keepalive: after
`keepalive_seconds` of silence a ping is sent, and after as many again without an answer the stream breaks.
"""

from __future__ import annotations

import datetime
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import grpc
import pyarrow as pa

from algebra.arrow_ipc import to_ipc
from algebra.engines.contract import Relation
from algebra.errors import (
    LockstepError,
    OrderingViolationError,
    ProtocolVersionError,
    SourceUnavailableError,
)
from algebra.global_transaction import GlobalTransaction
from algebra.local_view import Keys, LocalView
from algebra.position import ORIGIN, Position
from algebra.schema import COUNT, Catalog
from algebra.sweep import Answer
from mediator.backoff import Backoff
from protos.convert import (
    PROTOCOL_VERSION,
    catalog_from_proto,
    global_transaction_from_proto,
    local_view_to_proto,
    now,
    position_from_proto,
    position_to_proto,
)
from protos.correlation import log_transactions
from protos.incoming import checked_touched, decoded_answer, decoded_delta
from protos.lockstep.v1 import types_pb2, wrapper_pb2_grpc
from protos.lockstep.v1 import wrapper_pb2 as pb
from protos.security.settings import PLAIN, Connection
from protos.security.tls import open_channel
from protos.server import keepalive_options
from protos.status import error_from_rpc, error_of

log = logging.getLogger(__name__)

MAX_BACKOFF_SECONDS = 5.0
FIRST_BACKOFF_SECONDS = 0.2
CONNECT_SECONDS = 5.0
KEEPALIVE_SECONDS = 5.0
CREDIT_SECONDS = 0.2
"""While all changes up to a position are waited for, how often their credit is given back."""
SILENT_SECONDS = 10.0
"""A source that is connected and was not heard of for so long counts as away; heartbeats come each second."""

_RECONNECT = (
    # gRPC's own pauses between attempts to connect, which grow to two minutes unless told otherwise, and how
    # long one attempt may take where nothing answers.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


@dataclass(frozen=True)
class SourceUpdate:
    """ΔIS of consecutive transactions of one source, as delivered.

    `deltas` maps a local view's name to its rows (columns, `_tx`, `_count`) and to the indexes of the
    transactions that touch it. `marks` tells for each transaction of which global one it is a part, if any.
    `subscriptions` maps a local view's name to the number under which it was defined: an update of an earlier
    definition, which was on its way when the local view was defined anew, is known by it.
    """

    source: str
    positions: tuple[Position, ...]
    batched: tuple[bool, ...]
    observed_at: datetime.datetime
    deltas: dict[str, tuple[Relation | None, tuple[int, ...]]]
    marks: tuple[GlobalTransaction | None, ...]
    subscriptions: Mapping[str, int]


@dataclass
class ChannelCounters:
    """What went over the wire since the mediator started."""

    transactions: int = 0
    queries: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0


@dataclass
class _Defined:
    """A local view, how far it was delivered, and whether the wrapper has begun to report it.

    Until then, what the wrapper sends is not about this definition: neither changes nor progress.
    """

    view: LocalView
    delivered: Position
    subscription: int
    reported: bool = False


@dataclass
class _OpenQuery:
    request: pb.MaintenanceQuery
    schema: pa.Schema
    future: Future[Answer]
    chunks: list[Relation] = field(default_factory=list)
    position: Position | None = None
    """Of the first chunk; an answer is about one state of the source."""

    def ask_again(self) -> pb.ExchangeRequest:
        """The request for a new stream; what the old one answered is void."""
        self.chunks.clear()
        self.position = None
        return pb.ExchangeRequest(query=self.request)


@dataclass(frozen=True)
class SourceDescription:
    """A source's catalog and what its capture can do."""

    catalog: Catalog
    capabilities: types_pb2.Capabilities


def _check_version(source: str, theirs: int) -> None:
    """Raise unless the wrapper speaks our version; one that does not say so is from before versions were
    told."""
    if theirs not in (0, PROTOCOL_VERSION):
        raise ProtocolVersionError(
            f"the wrapper of source {source!r} speaks protocol version {theirs}, "
            f"this mediator {PROTOCOL_VERSION}: upgrade the older one"
        )


class SourceChannel:
    """One source's stream. `on_update` and `on_failed` are called from the channel's own thread, in order."""

    def __init__(
        self,
        source: str,
        address: str,
        mediator: str,
        on_update: Callable[[SourceUpdate], None],
        on_view_failed: Callable[[str, LockstepError], None],
        credit_rows: int,
        keepalive_seconds: float = KEEPALIVE_SECONDS,
        backoff: Backoff | None = None,
        connection: Connection = PLAIN,
    ) -> None:
        self.source = source
        self.address = address
        self.counters = ChannelCounters()
        self.capabilities: types_pb2.Capabilities | None = None
        self.memory: types_pb2.WrapperMemory | None = None
        self.state = "connecting"
        self.since = now()
        self.problem = ""
        self._mediator = mediator
        self._on_update = on_update
        self._on_view_failed = on_view_failed
        self._credit_rows = credit_rows
        self._owed = 0
        self._parts: list[pb.Update] = []
        self._heard_at: datetime.datetime | None = None
        self._backoff = backoff or Backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        self._lock = threading.Condition()
        self._outgoing: queue.SimpleQueue[pb.ExchangeRequest | None] = queue.SimpleQueue()
        self._defined: dict[str, _Defined] = {}
        self._queries: dict[int, _OpenQuery] = {}
        self._ids = itertools.count(1)
        self._asked = 0
        """The last query id that was given out."""
        self._given: set[str] = set()
        """Local views that the wrapper was told of on this stream; it may speak of no other."""
        self._reported = ORIGIN
        self._stopped = threading.Event()
        self._call: grpc.Call | None = None
        options = [*keepalive_options(keepalive_seconds), *_RECONNECT]
        self._channel = open_channel(address, connection, PROTOCOL_VERSION, options)
        self._stub = wrapper_pb2_grpc.WrapperServiceStub(self._channel)
        self._thread = threading.Thread(target=self._run, name=f"channel-{source}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin_stop(self) -> None:
        """Tell the stream to end; `stop` waits for it."""
        self._stopped.set()
        self._outgoing.put(None)
        if self._call is not None:
            self._call.cancel()

    def stop(self) -> None:
        self.begin_stop()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._channel.close()

    @property
    def connected(self) -> bool:
        """Whether the stream is up, and the source answers its wrapper."""
        return self.state == "connected"

    @property
    def heard_at(self) -> datetime.datetime | None:
        """When the wrapper was last heard of."""
        return self._heard_at

    @property
    def away_since(self) -> datetime.datetime | None:
        """Since when nothing was heard of the source; None if it is there."""
        heard = self._heard_at
        if not self.connected:
            return min(heard, self.since) if heard is not None else self.since
        if heard is not None and self._defined and (now() - heard).total_seconds() > SILENT_SECONDS:
            return heard
        return None

    @property
    def owed(self) -> int:
        """The credit that the wrapper has used and not been given again, in rows."""
        return self._owed

    @property
    def position(self) -> Position:
        """The last position heard of: every transaction up to it has been delivered."""
        return self._reported

    def wait_connected(self, timeout: float) -> None:
        """Return when the stream is up; SourceUnavailableError after `timeout` seconds."""
        with self._lock:
            if not self._lock.wait_for(lambda: self.connected, timeout):
                raise SourceUnavailableError(
                    f"the wrapper of source {self.source!r} at {self.address} does not answer: "
                    f"{self.problem or 'is it running?'}"
                )

    # Questions outside the ordered stream

    def describe(self, timeout: float = 30.0) -> SourceDescription:
        """The source's catalog, as its wrapper shows it now."""
        try:
            response = self._stub.DescribeSource(
                pb.DescribeSourceRequest(), timeout=timeout, wait_for_ready=False
            )
        except grpc.RpcError as error:
            raise self._unavailable(error) from None
        if response.source != self.source:
            raise SourceUnavailableError(
                f"the wrapper at {self.address} serves source {response.source!r}, not {self.source!r}"
            )
        _check_version(self.source, response.protocol_version)
        self.capabilities = response.capabilities
        return SourceDescription(
            catalog_from_proto(self.source, list(response.relations)), response.capabilities
        )

    def load(self, views: Sequence[LocalView]) -> Iterator[pb.LoadLocalViewResponse]:
        """The extents of local views, all in one snapshot, chunk by chunk."""
        request = pb.LoadLocalViewRequest(local_views=[local_view_to_proto(view) for view in views])
        try:
            for response in self._stub.LoadLocalView(request):
                self.counters.bytes_received += response.ByteSize()
                yield response
        except grpc.RpcError as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: grpc.RpcError) -> LockstepError:
        found = error_from_rpc(error)
        if isinstance(found, SourceUnavailableError) or type(found) is LockstepError:
            return SourceUnavailableError(
                f"the wrapper of source {self.source!r} at {self.address} does not answer: {found.message}"
            )
        return found

    # The ordered stream, downwards

    def define(self, views: Sequence[LocalView], after: Position, subscription: int = 0) -> None:
        """Have changes of local views reported, from this position on, and of all of them at once.

        Their updates will carry the number `subscription`.
        """
        with self._lock:
            added = [_Defined(view, after, subscription) for view in views]
            self._defined.update({defined.view.name: defined for defined in added})
            if self._is_up:
                self._send_definitions(added)

    def _send_definitions(self, definitions: Sequence[_Defined]) -> None:
        for number, defined in enumerate(definitions, start=1):
            defined.reported = False
            self._given.add(defined.view.name)
            define = pb.DefineLocalView(
                local_view=local_view_to_proto(defined.view),
                after=position_to_proto(defined.delivered),
                more=number < len(definitions),
            )
            self._send(pb.ExchangeRequest(define=define))

    def drop(self, name: str) -> None:
        """End the reporting of a local view."""
        with self._lock:
            if self._defined.pop(name, None) is not None and self._is_up:
                self._send(pb.ExchangeRequest(drop=pb.DropLocalView(local_view=name)))

    def ask(self, view: LocalView, keys: Keys | None) -> Future[Answer]:
        """Send an MQ; the future answer arrives in order with the updates."""
        request = pb.MaintenanceQuery(query_id=next(self._ids), local_view=view.name)
        if keys is not None:
            request.key_columns.extend(keys.columns)
            request.arrow = to_ipc(keys.values)
        return self._ask(request, view.arrow)

    def evaluate(
        self, view: LocalView, terms: Sequence[tuple[int, Mapping[str, Relation]]]
    ) -> Future[Answer]:
        """Ask for a sum of terms over a local view, each with rows in place of some occurrences.

        The answer has the local view's columns and `_count`.
        """
        request = pb.MaintenanceQuery(
            query_id=next(self._ids),
            local_view=view.name,
            definition=local_view_to_proto(view),
            terms=[
                pb.Term(
                    sign=sign,
                    substitutions=[
                        pb.Substitution(occurrence=alias, arrow=to_ipc(rows)) for alias, rows in given.items()
                    ],
                )
                for sign, given in terms
            ],
        )
        return self._ask(request, view.arrow.append(pa.field(COUNT, pa.int64())))

    def _ask(self, request: pb.MaintenanceQuery, schema: pa.Schema) -> Future[Answer]:
        future: Future[Answer] = Future()
        with self._lock:
            self._queries[request.query_id] = _OpenQuery(request, schema, future)
            self._asked = max(self._asked, request.query_id)
            self.counters.queries += 1
            if self._is_up:
                self._send(pb.ExchangeRequest(query=request))
        return future

    def abandon(self, futures: Sequence[Future[Answer]]) -> None:
        """Forget open queries; their answers will be ignored."""
        with self._lock:
            self._queries = {i: q for i, q in self._queries.items() if q.future not in futures}

    def acknowledge(self, position: Position) -> None:
        """Everything up to here is committed: the source may trim its history."""
        with self._lock:
            if self._is_up:
                self._send(
                    pb.ExchangeRequest(acknowledge=pb.Acknowledge(position=position_to_proto(position)))
                )

    def grant(self, rows: int) -> None:
        """Let the wrapper send that many more rows of updates, in advance: they are not owed later."""
        with self._lock:
            if self._is_up:
                self._owed -= rows
                self._send(pb.ExchangeRequest(credit=pb.Credit(rows=rows)))

    def give_back(self) -> None:
        """Give the wrapper credit for what it has sent: there is room again."""
        with self._lock:
            if self._is_up and self._owed > 0:
                self._send(pb.ExchangeRequest(credit=pb.Credit(rows=self._owed)))
                self._owed = 0

    def delivered(self, local_view: str) -> Position:
        """Every change of the local view up to here has been delivered."""
        with self._lock:
            return self._defined[local_view].delivered

    def wait_delivered(self, local_view: str, position: Position, timeout: float) -> None:
        """Return when every change of the local view up to the position has been delivered.

        The wrapper gets credit for them however much waits: who calls this cannot go on without.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self.give_back()
            with self._lock:
                if self._lock.wait_for(
                    lambda: self._defined[local_view].delivered >= position, CREDIT_SECONDS
                ):
                    return
        raise SourceUnavailableError(
            f"source {self.source!r} has not reported its changes up to {position} in time"
        )

    @property
    def _is_up(self) -> bool:
        return self.state in ("connected", "unavailable")

    def _send(self, request: pb.ExchangeRequest) -> None:
        self.counters.bytes_sent += request.ByteSize()
        self._outgoing.put(request)

    # The ordered stream, upwards

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._exchange()
            except grpc.RpcError as error:
                self._disconnected(error_from_rpc(error).message)
            except SourceUnavailableError as error:
                self._disconnected(error.message)
            except LockstepError as error:
                log.error("source %s: %s", self.source, error)
                self._disconnected(error.message)
            except Exception as error:
                log.exception("source %s: unexpected error on its channel", self.source)
                self._disconnected(f"internal error: {error}")
            self._stopped.wait(self._backoff.next())

    def _exchange(self) -> None:
        outgoing: queue.SimpleQueue[pb.ExchangeRequest | None] = queue.SimpleQueue()
        outgoing.put(
            pb.ExchangeRequest(
                attach=pb.Attach(
                    mediator=self._mediator, protocol_version=PROTOCOL_VERSION, source=self.source
                )
            )
        )
        self._wait_ready()
        call = self._stub.Exchange(iter(outgoing.get, None))
        self._call = call
        try:
            for response in call:
                if self._stopped.is_set():
                    return
                self.counters.bytes_received += response.ByteSize()
                self._heard_at = now()
                self._handle(response, outgoing)
            self._disconnected("the wrapper ended the stream")
        finally:
            outgoing.put(None)
            call.cancel()

    def _wait_ready(self) -> None:
        """Return when the connection is up; gives up soon, and at once when the channel is stopped."""
        ready = grpc.channel_ready_future(self._channel)
        deadline = time.monotonic() + CONNECT_SECONDS
        while not self._stopped.is_set():
            try:
                ready.result(timeout=0.2)
                return
            except grpc.FutureTimeoutError:
                if time.monotonic() > deadline:
                    break
        ready.cancel()
        raise SourceUnavailableError(f"nothing answers at {self.address}")

    def _connected(
        self, attached: pb.Attached, outgoing: queue.SimpleQueue[pb.ExchangeRequest | None]
    ) -> None:
        if attached.source != self.source:
            raise OrderingViolationError(
                f"the wrapper at {self.address} serves source {attached.source!r}, not {self.source!r}"
            )
        _check_version(self.source, attached.protocol_version)
        with self._lock:
            if self._outgoing is outgoing:
                raise OrderingViolationError(f"source {self.source!r} attached twice on one stream")
            self._outgoing = outgoing
            self._given.clear()
            self._reported = ORIGIN
            self._parts.clear()
            self._owed = 0
            self._backoff.reset()
            self.capabilities = attached.capabilities
            self.state, self.since, self.problem = "connected", now(), ""
            self._send(pb.ExchangeRequest(credit=pb.Credit(rows=self._credit_rows)))
            self._send_definitions(list(self._defined.values()))
            for open_query in self._queries.values():
                self._send(open_query.ask_again())
            self._lock.notify_all()
        log.info("source %s connected at %s", self.source, self.address)

    def _disconnected(self, problem: str) -> None:
        if self._stopped.is_set():
            return
        with self._lock:
            if self.state != "connecting":
                self.state, self.since = "connecting", now()
                log.warning("source %s: connection lost: %s", self.source, problem)
            self.problem = problem
            self._lock.notify_all()

    def _handle(
        self, response: pb.ExchangeResponse, outgoing: queue.SimpleQueue[pb.ExchangeRequest | None]
    ) -> None:
        kind = response.WhichOneof("message")
        if kind != "attached" and self._outgoing is not outgoing:
            raise OrderingViolationError(
                f"source {self.source!r} sent {kind or 'nothing'} before it attached"
            )
        if self.state == "unavailable" and kind != "error":
            self._set_state("connected", "")
        match kind:
            case "attached":
                self._connected(response.attached, outgoing)
            case "defined":
                self._begun(response.defined.local_view)
            case "update":
                self._deliver(response.update)
            case "result":
                self._collect(response.result)
            case "progress":
                self._progress(position_from_proto(response.progress.position))
                if response.progress.HasField("memory"):
                    self.memory = response.progress.memory
            case "error":
                self._failed(response.error)
            case _:
                raise OrderingViolationError(f"source {self.source!r} sent a message of no known kind")

    def _set_state(self, state: str, problem: str) -> None:
        with self._lock:
            if self.state != state:
                self.state, self.since = state, now()
            self.problem = problem
            self._lock.notify_all()

    def _begun(self, local_view: str) -> None:
        with self._lock:
            if local_view in self._defined:
                self._defined[local_view].reported = True

    def _progress(self, position: Position) -> None:
        with self._lock:
            if position < self._reported:
                raise OrderingViolationError(
                    f"source {self.source!r} went back from {self._reported} to {position}"
                )
            self._reported = position
            for defined in self._defined.values():
                if defined.reported:
                    defined.delivered = max(defined.delivered, position)
            self._lock.notify_all()

    def _deliver(self, update: pb.Update) -> None:
        self._parts.append(update)
        if update.more:
            return
        parts, self._parts = self._parts, []
        self._deliver_whole(parts)

    def _deliver_whole(self, parts: Sequence[pb.Update]) -> None:
        """Deliver an update that came in these parts: the first has its transactions."""
        update = parts[0]
        named = {delta.local_view for delta in update.deltas}
        if any(delta.local_view not in named for part in parts for delta in part.deltas):
            raise OrderingViolationError(
                f"source {self.source!r} sent rows of a local view that the update does not name"
            )
        positions = tuple(position_from_proto(t.position) for t in update.transactions)
        if any(later <= earlier for earlier, later in itertools.pairwise(positions)):
            raise OrderingViolationError(f"source {self.source!r} sent transactions out of order")
        deltas: dict[str, tuple[Relation | None, tuple[int, ...]]] = {}
        subscriptions: dict[str, int] = {}
        with self._lock:
            for delta in update.deltas:
                if delta.local_view not in self._given:
                    raise OrderingViolationError(
                        f"source {self.source!r} sent changes of local view {delta.local_view!r}, "
                        "which it was not given"
                    )
                if delta.local_view in deltas:
                    raise OrderingViolationError(
                        f"source {self.source!r} sent changes of local view {delta.local_view!r} twice"
                    )
                defined = self._defined.get(delta.local_view)
                if defined is None or not defined.reported:
                    continue  # dropped or defined anew while the update was on its way
                touched = checked_touched(delta, len(positions))
                if touched and positions[touched[0]] <= defined.delivered:
                    raise OrderingViolationError(
                        f"source {self.source!r} repeated a transaction of local view {delta.local_view!r}"
                    )
                payloads = [
                    d.arrow for part in parts for d in part.deltas if d.local_view == delta.local_view
                ]
                rows = decoded_delta([payload for payload in payloads if payload], defined.view, touched)
                deltas[delta.local_view] = (rows, touched)
                subscriptions[delta.local_view] = defined.subscription
            self.counters.transactions += len(positions)
        found = SourceUpdate(
            source=self.source,
            positions=positions,
            batched=tuple(t.batched for t in update.transactions),
            observed_at=update.observed_at.ToDatetime(datetime.UTC),
            deltas=deltas,
            marks=tuple(global_transaction_from_proto(t.part_of) for t in update.transactions),
            subscriptions=subscriptions,
        )
        log_transactions(log, "delivered", self.source, positions)
        # Deliver before the position moves: whoever waits for the position then finds the update queued.
        self._on_update(found)
        with self._lock:
            self._owed += parts[-1].cost
            for name, (_, touched) in deltas.items():
                defined = self._defined.get(name)
                if touched and defined is not None and defined.subscription == subscriptions[name]:
                    self._defined[name].delivered = positions[touched[-1]]
            self._lock.notify_all()

    def _collect(self, result: pb.QueryResult) -> None:
        with self._lock:
            open_query = self._queries.get(result.query_id)
            if open_query is None:
                if not 0 < result.query_id <= self._asked:
                    raise OrderingViolationError(
                        f"source {self.source!r} answered query {result.query_id}, which was not asked"
                    )
                return  # abandoned
            position = position_from_proto(result.position)
            if open_query.position is not None and position != open_query.position:
                raise OrderingViolationError(
                    f"source {self.source!r} answered one query at {open_query.position} and at {position}"
                )
            open_query.position = position
            if position != self._reported:
                raise OrderingViolationError(
                    f"source {self.source!r} answered at {position} after reporting up to {self._reported}"
                )
            if result.arrow:
                name = open_query.request.local_view
                open_query.chunks.append(decoded_answer(result.arrow, open_query.schema, name))
            if not result.last:
                return
            del self._queries[result.query_id]
        empty = open_query.schema.empty_table()
        rows = pa.concat_tables(open_query.chunks) if open_query.chunks else empty
        open_query.future.set_result(Answer(rows, position))

    def _failed(self, error: pb.ExchangeError) -> None:
        found = error_of(error.reason, f"source {self.source!r}: {error.message}")
        if error.HasField("query_id"):
            with self._lock:
                open_query = self._queries.pop(error.query_id, None)
            if open_query is not None:
                open_query.future.set_exception(found)
        elif error.local_view:
            self._on_view_failed(error.local_view, found)
        else:
            if isinstance(found, SourceUnavailableError):
                self._set_state("unavailable", error.message)
            self.problem = error.message
            log.warning("source %s: %s", self.source, error.message)
