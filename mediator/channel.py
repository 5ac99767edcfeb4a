"""Channels: one ordered stream per source, and the mediator's half of the ordering contract.

A channel keeps one Exchange to a wrapper alive. It decodes what arrives, checks the order, hands updates
on, and resolves maintenance queries. When the stream breaks it attaches again with backoff, defines its
local views from the last position it has delivered, and asks its open queries anew; whoever waits for an
answer does not notice.

The channel is the life of that stream, its state and its lock. What is said on it is the business of
`ReportedViews` (downwards definitions, upwards updates) and `OpenQueries` (queries, and their answers).
"""

from __future__ import annotations

import datetime
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import grpc

from algebra.errors import (
    INTERNAL_ERROR,
    LimitExceededError,
    LockstepError,
    OrderingViolationError,
    SourceUnavailableError,
    StorageError,
)
from algebra.local_view import LocalView
from algebra.position import Position
from algebra.sweep import Answer
from mediator.backoff import Backoff
from mediator.config import ASSEMBLED_ROWS
from mediator.open_queries import OpenQueries, Query
from mediator.reported_views import ReportedViews, SourceUpdate
from mediator.wrapper_connection import (
    KEEPALIVE_SECONDS,
    SourceDescription,
    WrapperConnection,
    check_version,
)
from protos.convert import PROTOCOL_VERSION, now, position_from_proto, position_to_proto
from protos.correlation import log_transactions
from protos.lockstep.v1 import types_pb2
from protos.lockstep.v1 import wrapper_pb2 as pb
from protos.security.settings import PLAIN, WRAPPER_REQUEST_BYTES, Connection
from protos.status import error_from_rpc, error_of

log = logging.getLogger(__name__)

MAX_BACKOFF_SECONDS = 5.0
FIRST_BACKOFF_SECONDS = 0.2
MOST_QUERY_BYTES = WRAPPER_REQUEST_BYTES - (64 << 10)
"""A larger query would be refused with its stream, and again on the next one. Some is left for its frame."""
MOST_UNSENT = 1000
"""Messages that may wait to leave; beyond, acknowledgements are left out: the next one says what they say."""
CREDIT_SECONDS = 0.2
"""While all changes up to a position are waited for, how often their credit is given back."""
SILENT_SECONDS = 10.0
"""A source that is connected and was not heard of for so long counts as away; heartbeats come each second."""

LONGEST_ERROR = 1000
"""Characters that are kept of what a wrapper says of an error."""


@dataclass
class ChannelCounters:
    """What went over the wire since the mediator started."""

    transactions: int = 0
    queries: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0


class SourceChannel:
    """One source's stream. `on_update` and `on_failed` are called from the channel's own thread, in order."""

    def __init__(
        self,
        source: str,
        address: str,
        mediator: str,
        on_update: Callable[[SourceUpdate], None],
        on_view_failed: Callable[[str, int, LockstepError], None],
        credit_rows: int,
        keepalive_seconds: float = KEEPALIVE_SECONDS,
        backoff: Backoff | None = None,
        connection: Connection = PLAIN,
        assembled_rows: int = ASSEMBLED_ROWS,
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
        self._heard_at: datetime.datetime | None = None
        self._failure = ""
        """What the wrapper said that failed on this stream; the reason if it ends the stream then."""
        self._backoff = backoff or Backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        self._lock = threading.Condition()
        self._outgoing: queue.SimpleQueue[pb.ExchangeRequest | None] = queue.SimpleQueue()
        self._views = ReportedViews(source, assembled_rows)
        self._queries = OpenQueries(source, assembled_rows)
        self._stopped = threading.Event()
        self._call: grpc.Call | None = None
        self._wrapper = WrapperConnection(source, address, keepalive_seconds, connection)
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
        self._wrapper.close()

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
        if heard is None or self._views.is_empty or (now() - heard).total_seconds() <= SILENT_SECONDS:
            return None
        return heard

    @property
    def owed(self) -> int:
        """The credit that the wrapper has used and not been given again, in rows."""
        return self._owed

    @property
    def position(self) -> Position:
        """The last position heard of: every transaction up to it has been delivered."""
        return self._views.position

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
        described = self._wrapper.describe(timeout)
        self.capabilities = described.capabilities
        return described

    def load(self, views: Sequence[LocalView]) -> Iterator[pb.LoadLocalViewResponse]:
        """The extents of local views, all in one snapshot, chunk by chunk."""
        for response in self._wrapper.load(views):
            self.counters.bytes_received += response.ByteSize()
            yield response

    # The ordered stream, downwards

    def define(self, views: Sequence[LocalView], after: Position, subscription: int = 0) -> None:
        """Have changes of local views reported, from this position on, and of all of them at once.

        Their updates will carry the number `subscription`.
        """
        with self._lock:
            added = self._views.define(views, after, subscription)
            if self._is_up:
                self._send_all(self._views.requests(added))

    def drop(self, name: str) -> None:
        """End the reporting of a local view."""
        with self._lock:
            if self._views.drop(name) and self._is_up:
                self._send(pb.ExchangeRequest(drop=pb.DropLocalView(local_view=name)))
            self._lock.notify_all()

    def ask(self, query: Query, answer: Future[Answer]) -> None:
        """Send an MQ. `answer` gets its result in order with the updates, and so do its callbacks."""
        if query.request.ByteSize() > MOST_QUERY_BYTES:
            raise LimitExceededError(
                f"a query to source {self.source!r} would carry {query.request.ByteSize():,} bytes of keys; "
                f"a wrapper takes {MOST_QUERY_BYTES:,}"
            )
        with self._lock:
            self._queries.add(query, answer)
            self.counters.queries += 1
            if self._is_up:
                self._send(pb.ExchangeRequest(query=query.request))

    def abandon(self, futures: Sequence[Future[Answer]]) -> None:
        """Forget open queries; their answers will be ignored."""
        with self._lock:
            self._queries.abandon(futures)

    def acknowledge(self, position: Position) -> None:
        """Everything up to here is committed: the source may trim its history."""
        with self._lock:
            # A wrapper whose source does not answer takes no messages, and it is told at every commit.
            if self._is_up and self._outgoing.qsize() < MOST_UNSENT:
                self._send(
                    pb.ExchangeRequest(acknowledge=pb.Acknowledge(position=position_to_proto(position)))
                )

    def give_back(self, most: int | None = None) -> None:
        """Give the wrapper credit for what it has sent, or for a part: there is room again."""
        with self._lock:
            rows = self._owed if most is None else min(self._owed, most)
            if self._is_up and rows > 0:
                self._send(pb.ExchangeRequest(credit=pb.Credit(rows=rows)))
                self._owed -= rows

    def delivered(self, local_view: str, subscription: int) -> Position | None:
        """Every change of the local view up to here has been delivered; None under another subscription."""
        with self._lock:
            return self._views.delivered_under(local_view, subscription)

    def wait_delivered(self, local_view: str, position: Position, timeout: float) -> None:
        """Return when every change of the local view up to the position has been delivered.

        The wrapper gets credit for them however much waits: who calls this cannot go on without.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and not self._stopped.is_set():
            self.give_back()
            with self._lock:
                if self._lock.wait_for(lambda: self._views.delivered(local_view) >= position, CREDIT_SECONDS):
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

    def _send_all(self, requests: Sequence[pb.ExchangeRequest]) -> None:
        for request in requests:
            self._send(request)

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
            except Exception:
                log.exception("source %s: unexpected error on its channel", self.source)
                self._disconnected(INTERNAL_ERROR)
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
        self._wrapper.renew()
        self._wrapper.wait_ready(self._stopped)
        call = self._wrapper.exchange(iter(outgoing.get, None))
        self._call = call
        try:
            for response in call:
                if self._stopped.is_set():
                    return
                self.counters.bytes_received += response.ByteSize()
                self._heard_at = now()
                self._handle(response, outgoing)
            self._disconnected(self._failure or "the wrapper ended the stream")
        finally:
            outgoing.put(None)
            call.cancel()

    def _connected(
        self, attached: pb.Attached, outgoing: queue.SimpleQueue[pb.ExchangeRequest | None]
    ) -> None:
        if attached.source != self.source:
            raise OrderingViolationError(
                f"the wrapper at {self.address} serves source {attached.source!r}, not {self.source!r}"
            )
        check_version(self.source, attached.protocol_version)
        with self._lock:
            if self._outgoing is outgoing:
                raise OrderingViolationError(f"source {self.source!r} attached twice on one stream")
            self._outgoing = outgoing
            definitions = self._views.begin_stream()
            # The wrapper begins anew, without a debt: so what it had overdrawn is not given back.
            self._owed = min(self._owed, self._credit_rows)
            self._failure = ""
            self.capabilities = attached.capabilities
            self.state, self.since, self.problem = "connected", now(), ""
            self._send(pb.ExchangeRequest(credit=pb.Credit(rows=self._credit_rows - self._owed)))
            self._send_all(definitions)
            self._send_all(self._queries.ask_again())
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
                self._begun(response.defined)
            case "update":
                self._deliver(response.update)
            case "result":
                self._collect(response.result)
            case "progress":
                if response.progress.HasField("position"):
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

    def _begun(self, defined: pb.LocalViewDefined) -> None:
        with self._lock:
            self._views.begun(defined.local_view, defined.subscription)

    def _progress(self, position: Position) -> None:
        with self._lock:
            self._views.progress(position)
            self._backoff.reset()  # not before: a wrapper may attach well, and fail at the source each time
            self._lock.notify_all()

    def _deliver(self, part: pb.Update) -> None:
        with self._lock:
            update = self._views.assemble(part, self._credit_rows - self._owed)
        if update is None:
            return
        # Deliver before the position moves: whoever waits for the position then finds the update queued.
        self._on_update(update)
        with self._lock:
            self._owed += part.cost
            self._views.note_delivered(update)
            self.counters.transactions += len(update.positions)
            self._lock.notify_all()
        log_transactions(log, "delivered", self.source, update.positions)

    def _collect(self, result: pb.QueryResult) -> None:
        position = position_from_proto(result.position)
        with self._lock:
            # A query is open until its answer is right in every way: else it is asked again.
            local_view = self._queries.local_view(result.query_id)
            if local_view is not None:
                self._views.check_answered(local_view, position)
            answered = self._queries.collect(result)
            if local_view is not None:
                self._views.note_answered(local_view, position)
        if answered is not None:
            future, answer = answered
            future.set_result(answer)

    def _failed(self, error: pb.ExchangeError) -> None:
        prefix = f"source {self.source!r}: "
        text = " ".join(error.message[:LONGEST_ERROR].split())
        found = error_of(error.reason, prefix + text.removeprefix(prefix))
        if isinstance(found, StorageError):
            # Its disk, not ours. All that it was asked and told comes again on the next stream.
            raise SourceUnavailableError(text)
        if error.HasField("query_id"):
            with self._lock:
                future = self._queries.take(error.query_id)
            if future is not None:
                future.set_exception(found)
        elif error.local_view:
            self._on_view_failed(error.local_view, error.subscription, found)
        else:
            if isinstance(found, SourceUnavailableError):
                self._set_state("unavailable", text)
            self._failure = self.problem = text
            log.warning("source %s: %s", self.source, text)
