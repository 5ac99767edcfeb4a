"""Query processor: the wrapper's one thread that touches the source.

It takes messages from the WMQ and follows the source, each time inside one snapshot: first every change
that the snapshot shows is reported (steps 1 to 3 of the design's walk), then every waiting maintenance query
is answered in the same snapshot. So an answer never shows a change that was not reported before it.

While no mediator is attached it keeps looking at the source all the same, because some captures (SQLite's
write-ahead log) tell transactions apart only while someone watches.

Reference: wrapper paper, section 4.1 and Figure 7, process QueryProcessor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from adapters.spi import Adapter, Changes, Snapshot
from algebra.engines.embedded import EmbeddedEngine
from algebra.errors import (
    DataError,
    LimitExceededError,
    LockstepError,
    RefusedError,
    ResyncRequiredError,
    SourceUnavailableError,
)
from algebra.expressions import ColumnRef
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import Catalog
from protos.convert import local_view_from_proto, now, position_from_proto
from protos.correlation import log_transactions
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.allow_list import UNRESTRICTED, MediatorPolicy, allowed_view
from wrapper.backlog import Backlog
from wrapper.limits import WrapperLimits
from wrapper.localized_processor import LocalizedQuery, keys_of, localize, with_types
from wrapper.message_queue import OrderMessageQueue, WrapperMessageQueue
from wrapper.metrics import WrapperCounters
from wrapper.order_assignment import OrderAssignment
from wrapper.term_processor import TermProcessor
from wrapper.update_processor import DeltaIS, ReportedView, UpdateProcessor

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
RETRY_SECONDS = 0.5
MOST_LOCAL_VIEWS = 10_000


@dataclass
class Session:
    """One attached mediator: its local views, its unanswered queries, and its credit in rows.

    `defining`: more local views are on their way, and nothing is reported or answered before they are there.
    `behind`: the last snapshot showed more than was reported. `policy`: what it may see. `refused` is told
    what it was refused.
    """

    mediator: str
    queue: OrderMessageQueue
    policy: MediatorPolicy = UNRESTRICTED
    refused: Callable[[str, LockstepError], None] = lambda what, error: None
    order: OrderAssignment = field(init=False)
    views: dict[str, ReportedView] = field(default_factory=dict)
    queries: deque[Arrival] = field(default_factory=deque)
    credit: int = 0
    defining: bool = False
    behind: bool = False
    told: str = ""
    """What the mediator was last told of a source that does not answer; empty if it does."""
    received_bytes: int = 0
    """Counted by who reads the stream; what was handled of it, by the query processor."""
    handled_bytes: int = 0

    def __post_init__(self) -> None:
        self.order = OrderAssignment(self.queue)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that were read and not yet handled, or of queries not yet answered."""
        return self.received_bytes - self.handled_bytes

    @property
    def is_level(self) -> bool:
        """Whether progress may be told: a local view that was defined last may still be behind the others."""
        return all(reported.cursor >= self.order.reported for reported in self.views.values())

    @property
    def may_follow(self) -> bool:
        """Whether the source may be looked at: to answer, or because there is room for what it shows."""
        return not self.defining and bool(self.queries or self.credit > 0)

    @property
    def is_due(self) -> bool:
        """Whether there is something to do, also if nothing happens in the source."""
        return bool(self.queries) or (self.behind and self.may_follow)


@dataclass(frozen=True)
class Arrival:
    """A message and the session it came on."""

    session: Session
    request: pb.ExchangeRequest
    size: int = 0


class QueryProcessor:
    """Runs the wrapper's loop over one adapter until it is stopped.

    `on_reachable` is told whether the source answers, at first and when that changes.
    """

    def __init__(
        self,
        adapter: Adapter,
        on_reachable: Callable[[bool], None] = lambda _: None,
        limits: WrapperLimits | None = None,
    ) -> None:
        self.limits = limits or WrapperLimits()
        self._adapter = adapter
        self._on_reachable = on_reachable
        self._reachable: bool | None = None
        self.messages: WrapperMessageQueue[Arrival] = WrapperMessageQueue(self._arrived)
        self._engine = EmbeddedEngine(threads=1, memory_limit=self.limits.embedded_memory)
        self._updates = UpdateProcessor(self._engine)
        self._backlog = Backlog(adapter.config.name, self.limits.max_run_rows, self._engine)
        self._terms = TermProcessor(self._engine)
        self._session: Session | None = None
        self._catalog: Catalog | None = None
        self._stopped = threading.Event()
        self._last_sent = 0.0
        self.counters = WrapperCounters()

    @property
    def attached(self) -> bool:
        """Whether a mediator is attached."""
        return self._session is not None

    @property
    def reachable(self) -> bool:
        """Whether the source answered when it was asked last."""
        return bool(self._reachable)

    @property
    def source(self) -> str:
        """The name of the source this wrapper serves."""
        return self._adapter.config.name

    def _arrived(self) -> None:
        self._adapter.wake()

    def stop(self) -> None:
        self._stopped.set()
        self._adapter.wake()

    def run(self) -> None:
        """The loop: take messages, look at the source, report and answer, wait."""
        try:
            while not self._stopped.is_set():
                try:
                    self._turn()
                    self._set_reachable(True)
                except SourceUnavailableError as error:
                    self._source_unavailable(error)
                except LockstepError as error:
                    self._fail_session(error)
                except Exception as error:
                    log.exception("source %s: unexpected error", self._adapter.config.name)
                    self._fail_session(LockstepError(f"internal error in the wrapper: {error}"))
        finally:
            # The stream ends in good order: the mediator knows at once, and has all that was queued for it.
            if self._session is not None:
                self._session.queue.close()
            self._adapter.close()
            self._backlog.close()
            self._engine.close()

    def _source_unavailable(self, error: SourceUnavailableError) -> None:
        """Tell whoever asks that the source does not answer, and try again soon."""
        log.warning("source %s: %s", self._adapter.config.name, error)
        self._set_reachable(False)
        session = self._session
        if session is not None and not session.queue.closed and session.told != error.message:
            session.told = error.message
            session.order.send_error(error.reason, error.message)
        self._stopped.wait(RETRY_SECONDS)

    def _set_reachable(self, reachable: bool) -> None:
        session = self._session
        if session is not None and reachable and session.told and session.is_level:
            session.told = ""
            session.order.send_progress()
        if reachable != self._reachable:
            self._reachable = reachable
            self._on_reachable(reachable)

    def _turn(self) -> None:
        arrivals = self.messages.take_all()
        for number, arrival in enumerate(arrivals):
            try:
                self._handle(arrival)
            except SourceUnavailableError:
                # Nothing of this message was done, nor of those after it: keep them for when it is back.
                self.messages.put_back(arrivals[number:])
                raise
            if arrival.request.WhichOneof("message") != "query":
                arrival.session.handled_bytes += arrival.size
        session = self._session
        if session is not None and session.queue.closed:
            log.info("mediator %s has left", session.mediator)
            self._session = session = None
        if session is None or not session.views:
            self._watch_unattended()
        elif session.may_follow:
            self._follow(session)
        if session is not None:
            self._heartbeat(session)
        if not self.messages and not (session is not None and session.is_due):
            self._adapter.wait(HEARTBEAT_SECONDS)

    def _watch_unattended(self) -> None:
        """Let the adapter see the source go by; nothing is reported."""
        try:
            with self._adapter.snapshot():
                pass
        except SourceUnavailableError:
            raise
        except LockstepError as error:
            log.debug("source %s not watched: %s", self._adapter.config.name, error)

    def _heartbeat(self, session: Session) -> None:
        moment = time.monotonic()
        if moment - self._last_sent >= HEARTBEAT_SECONDS and session.views and session.is_level:
            session.order.send_progress(self.limits.with_use())
            self._last_sent = moment

    def _fail_session(self, error: LockstepError) -> None:
        log.error("source %s: %s", self._adapter.config.name, error)
        if self._session is not None:
            self._session.order.send_error(error.reason, error.message)
            self._session.queue.close()
            self._session = None
        self._stopped.wait(RETRY_SECONDS)

    # Messages from the mediator

    def _handle(self, arrival: Arrival) -> None:
        session, request = arrival.session, arrival.request
        kind = request.WhichOneof("message")
        if kind == "attach":
            if self._session is not None and self._session is not session:
                log.info("mediator %s replaces %s", session.mediator, self._session.mediator)
                self._session.queue.close()
            self._session = session
            return
        if session is not self._session:
            return
        try:
            match kind:
                case "define":
                    session.defining = request.define.more
                    self._define(session, request.define)
                case "drop":
                    session.views.pop(request.drop.local_view, None)
                case "query":
                    session.queries.append(arrival)
                case "acknowledge":
                    self._adapter.acknowledge(position_from_proto(request.acknowledge.position))
                case "credit":
                    session.credit += request.credit.rows
                case _:
                    raise RefusedError("an empty message on Exchange")
        except SourceUnavailableError:
            raise
        except LockstepError as error:
            name = request.define.local_view.name if kind == "define" else ""
            session.refused(str(kind), error)
            session.order.send_error(error.reason, error.message, local_view=name)

    def _define(self, session: Session, define: pb.DefineLocalView) -> None:
        catalog = self._catalog = self._adapter.catalog()
        view = allowed_view(local_view_from_proto(define.local_view), catalog, session.policy)
        if len(session.views) >= MOST_LOCAL_VIEWS and view.name not in session.views:
            raise LimitExceededError(f"a mediator may define {MOST_LOCAL_VIEWS} local views, and no more")
        self._adapter.prepare(view.relations)
        self._backlog.clear()
        session.views[view.name] = ReportedView.of(view, catalog, position_from_proto(define.after))
        session.order.send(pb.ExchangeResponse(defined=pb.LocalViewDefined(local_view=view.name)))
        self._last_sent = -HEARTBEAT_SECONDS

    # The source

    def _follow(self, session: Session) -> None:
        """Report what one snapshot shows; if all of it, answer every waiting query in that snapshot.

        A backlog is reported run by run. Between two runs the snapshot is left, so that the source, credit
        and acknowledgements get their turn; unless a query waits, for then all runs must go out before it.
        """
        observed_at = now()
        with self._adapter.snapshot() as snapshot:
            session.behind = self._report(session, snapshot, observed_at)
            while session.behind and session.queries and not self._is_over(session):
                session.behind = self._report(session, snapshot, observed_at)
            if session.behind:
                return
            if snapshot.position < session.order.reported:
                # Restored from a backup: who lost history was told, and order begins anew on a new stream.
                raise ResyncRequiredError(
                    f"the source went back from {session.order.reported} to {snapshot.position}"
                )
            while session.queries:
                started = time.monotonic()
                self._answer(session, session.queries[0].request.query, snapshot)
                # Only now: should the source have gone away, this query and all after it still wait.
                session.handled_bytes += session.queries.popleft().size
                self.counters.queries += 1
                self.counters.answer_seconds.add(time.monotonic() - started)

    def _is_over(self, session: Session) -> bool:
        return self._stopped.is_set() or session.queue.closed

    def _report(self, session: Session, snapshot: Snapshot, observed_at: datetime) -> bool:
        """Report the next run to each local view; whether the snapshot shows more.

        The furthest behind comes first, together with all that stand where one of its entries ends. Another
        one may stand inside of an entry: a source that cannot tell its transactions apart gives all that
        happened since a position as one, and since another position as another. It is asked for by itself.
        """
        waiting = dict(session.views)
        while waiting:
            after = min(reported.cursor for reported in waiting.values())
            changes = self._next_run(session, snapshot, waiting, after)
            if changes is None:
                if self._is_over(session):
                    return bool(session.views)
                waiting = {name: reported for name, reported in waiting.items() if name in session.views}
                continue
            end = changes.positions[-1] if changes.more else snapshot.position
            together = waiting
            if any(reported.cursor != after for reported in waiting.values()):
                ends = {after, end, *changes.positions}
                together = {name: reported for name, reported in waiting.items() if reported.cursor in ends}
            self._send_run(session, snapshot, together, changes, end, observed_at)
            if changes.more:
                return True
            waiting = {name: reported for name, reported in waiting.items() if name not in together}
        return False

    def _send_run(
        self,
        session: Session,
        snapshot: Snapshot,
        views: Mapping[str, ReportedView],
        changes: Changes,
        end: Position,
        observed_at: datetime,
    ) -> None:
        """Report a run that ends there to these local views, and how far all have come."""
        deltas: dict[str, DeltaIS] = {}
        for name, reported in views.items():
            try:
                deltas[name] = self._updates.delta_is(
                    reported, changes, snapshot, self._backlog.later_changes
                )
                reported.cursor = max(reported.cursor, end)
            except DataError as error:
                self._lose(session, [name], error)
        level = min((reported.cursor for reported in session.views.values()), default=end)
        session.credit -= session.order.send_update(changes, deltas, level, observed_at)
        self.counters.transactions += len(changes.positions)
        self.counters.rows += sum(delta.rows.num_rows for delta in deltas.values())
        log_transactions(log, "reported", self.source, changes.positions)
        if changes.positions:
            self.counters.run_sizes.add(len(changes.positions))
            self._last_sent = time.monotonic()

    def _next_run(
        self, session: Session, snapshot: Snapshot, views: Mapping[str, ReportedView], after: Position
    ) -> Changes | None:
        """What happened since the cursor of the furthest behind; if it cannot be read, these are lost.

        None if that is so, or if the session ended meanwhile.
        """

        def is_interrupted() -> bool:
            self._heartbeat(session)
            return self._is_over(session)

        relations = {relation for reported in views.values() for relation in reported.view.relations}
        joined = any(len(reported.view.occurrences) > 1 for reported in views.values())
        try:
            return self._backlog.next_run(
                snapshot, after, relations, joined=joined, is_interrupted=is_interrupted
            )
        except (ResyncRequiredError, DataError) as error:
            self._lose(session, [name for name, reported in views.items() if reported.cursor == after], error)
        return None

    @staticmethod
    def _lose(session: Session, names: Sequence[str], error: LockstepError) -> None:
        """These local views cannot be reported any more; the mediator is told why, and the others go on."""
        for name in names:
            del session.views[name]
            session.order.send_error(error.reason, error.message, local_view=name)

    def _answer(self, session: Session, query: pb.MaintenanceQuery, snapshot: Snapshot) -> None:
        reported = session.views.get(query.local_view)
        try:
            if query.terms:
                assert self._catalog is not None
                visible = session.policy.visible(self._catalog)
                rows = self._terms.evaluate(query, visible, snapshot, session.policy)
                batches = session.policy.bounded(
                    iter(rows.to_batches()), f"an answer for {query.local_view!r}"
                )
                session.order.send_result(query.query_id, snapshot.position, batches)
                return
            if reported is None:
                raise RefusedError(f"local view {query.local_view!r} is not defined on this stream")
            localized = self._localize(reported.view, keys_of(query, reported.view))
            batches = session.policy.bounded(
                localized.answer(snapshot), f"an answer for {query.local_view!r}"
            )
            session.order.send_result(query.query_id, snapshot.position, batches)
        except SourceUnavailableError:
            raise
        except LockstepError as error:
            session.refused("query", error)
            session.order.send_error(error.reason, error.message, query_id=query.query_id)

    def _localize(self, view: LocalView, keys: Keys | None) -> LocalizedQuery:
        assert self._catalog is not None
        return typed_query(view, keys, self._catalog)


def typed_query(view: LocalView, keys: Keys | None, catalog: Catalog) -> LocalizedQuery:
    """The LMQ of a local view with all its types taken from the catalog."""
    types: Mapping[ColumnRef, pa.DataType] = {
        ColumnRef(o.alias, c.name): c.type
        for o in view.occurrences
        for c in catalog.relation(o.relation).columns
    }
    return with_types(localize(view, keys), types)
