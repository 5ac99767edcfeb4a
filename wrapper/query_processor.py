"""Query processor: the wrapper's one thread that touches the source.

It takes messages from the WMQ and follows the source, each time inside one snapshot: first the changes that
the snapshot shows are reported, as many as a run has and credit allows (steps 1 to 3 of the design's walk),
then every waiting maintenance query is answered in the same snapshot, as of what was reported: whatever the
snapshot shows beyond is taken back. So an answer never shows a change that was not reported before it, and
never forces out more than the mediator has room for.

While no mediator is attached, or none has room, it keeps looking at the source all the same, because some
captures (SQLite's write-ahead log) tell transactions apart only while someone watches.

Reference: wrapper paper, section 4.1 and Figure 7, process QueryProcessor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial

import pyarrow as pa

from adapters.spi import Adapter, Changes, Snapshot
from algebra.engines.embedded import EmbeddedEngine
from algebra.errors import (
    INTERNAL_ERROR,
    DataError,
    LimitExceededError,
    LockstepError,
    RefusedError,
    ResyncRequiredError,
    SourceUnavailableError,
)
from algebra.expressions import ColumnRef
from algebra.local_view import Keys, LocalView
from algebra.position import ORIGIN, Position
from algebra.schema import Catalog
from protos.convert import local_view_from_proto, now, position_from_proto
from protos.correlation import log_transactions
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.allow_list import allowed_view
from wrapper.backlog import Backlog
from wrapper.limits import WrapperLimits
from wrapper.localized_processor import LocalizedQuery, keys_of, localize, with_types
from wrapper.message_queue import WrapperMessageQueue
from wrapper.metrics import WrapperCounters
from wrapper.past_state import LaterChanges, PastState, nothing_later
from wrapper.reported_view import ReportedView
from wrapper.session import Arrival, Session
from wrapper.term_processor import evaluate_terms
from wrapper.update_processor import DeltaIS, UpdateProcessor

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
OVERDUE_SECONDS = 30.0
"""A source that has let the wrapper wait so long, without an error, is not called reachable any more."""
RETRY_SECONDS = 0.5
MOST_LOCAL_VIEWS = 10_000


class QueryProcessor:
    """Runs the wrapper's loop over one adapter until it is stopped.

    `on_reachable` is told whether the source answers, at first and when that changes.
    """

    def __init__(
        self,
        adapter: Adapter,
        on_reachable: Callable[[bool], None] = lambda _: None,
        limits: WrapperLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._seen_at = clock()
        """When it was last seen at work: at the start of a turn, or in the middle of a long one."""
        self.limits = limits or WrapperLimits()
        self._adapter = adapter
        self._on_reachable = on_reachable
        self._reachable: bool | None = None
        self.messages: WrapperMessageQueue[Arrival] = WrapperMessageQueue(self._arrived)
        self._engine = EmbeddedEngine(threads=1, memory_limit=self.limits.embedded_memory)
        self._updates = UpdateProcessor(self._engine)
        self._backlog = Backlog(adapter.config.name, self.limits.max_run_rows, self._engine)
        self._aside = Backlog(adapter.config.name, self.limits.max_run_rows, self._engine)
        """For answers to a local view that stands where the other one cannot be told apart."""
        self._session: Session | None = None
        self._catalog: Catalog | None = None
        self._stopped = threading.Event()
        self._last_sent = 0.0
        self._reached = ORIGIN
        """Where the source was when it was last looked at."""
        self.counters = WrapperCounters()

    @property
    def attached(self) -> bool:
        """Whether a mediator is attached."""
        return self._session is not None

    @property
    def reachable(self) -> bool:
        """Whether the source answered when it was asked last, and is not overdue with an answer."""
        return bool(self._reachable) and not self.is_overdue

    @property
    def is_overdue(self) -> bool:
        """Whether the source lets it wait: a connection may be silent, and no error says so."""
        return self._clock() - self._seen_at > OVERDUE_SECONDS

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
                except Exception:
                    log.exception("source %s: unexpected error", self._adapter.config.name)
                    self._fail_session(LockstepError(INTERNAL_ERROR))
        finally:
            # The stream ends in good order: the mediator knows at once, and has all that was queued for it.
            if self._session is not None:
                self._session.queue.close()
            self._adapter.close()
            self._backlog.close()
            self._aside.close()
            self._engine.close()

    def _source_unavailable(self, error: SourceUnavailableError) -> None:
        """Tell whoever asks that the source does not answer, and try again soon."""
        log.warning("source %s: %s", self._adapter.config.name, error)
        self._set_reachable(False)
        session = self._session
        if session is not None and not session.queue.closed and session.told != error.message:
            session.told = error.message
            session.tell(error, self.source)
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
        self._seen_at = self._clock()
        arrivals = self.messages.take_all()
        for number, arrival in enumerate(arrivals):
            try:
                self._handle(arrival)
            except SourceUnavailableError:
                # Nothing of this message was done, nor of those after it: keep them for when it is back.
                self.messages.put_back(arrivals[number:])
                raise
            except Exception:
                # This message cost its session; those after it may be of another one that attaches.
                self.messages.put_back(arrivals[number + 1 :])
                raise
            if arrival.request.WhichOneof("message") != "query":
                arrival.session.handled_bytes += arrival.size
        session = self._session
        if session is not None and session.queue.closed:
            log.info("mediator %s has left", session.mediator)
            self._session = session = None
        if session is not None and session.views and session.may_follow:
            self._follow(session)
        else:
            self._watch()
        if session is not None:
            self._heartbeat(session)
        if not self.messages and not (session is not None and session.is_due):
            self._adapter.wait(HEARTBEAT_SECONDS)

    def _watch(self) -> None:
        """Let the adapter see the source go by; nothing is reported."""
        try:
            with self._adapter.snapshot():
                pass
        except SourceUnavailableError:
            raise
        except LockstepError as error:
            log.debug("source %s not watched: %s", self._adapter.config.name, error)

    def _heartbeat(self, session: Session) -> None:
        moment = self._clock()
        if moment - self._last_sent >= HEARTBEAT_SECONDS and session.views:
            memory = self.limits.with_use()
            if session.is_level:
                session.order.send_progress(memory)
            else:
                session.order.send_sign_of_life(memory)
            self._last_sent = moment

    def _fail_session(self, error: LockstepError) -> None:
        log.error("source %s: %s", self._adapter.config.name, error)
        if self._session is not None:
            self._session.tell(error, self.source)
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
                    self._acknowledge(session, position_from_proto(request.acknowledge.position))
                case "credit":
                    session.credit += request.credit.rows
                case _:
                    raise RefusedError("an empty message on Exchange")
        except SourceUnavailableError:
            raise
        except LockstepError as error:
            name = request.define.local_view.name if kind == "define" else ""
            session.refused(str(kind), error)
            self._log_trouble(session, f"{kind} {name}".strip(), error)
            session.tell(error, self.source, local_view=name, subscription=request.define.subscription)

    def _acknowledge(self, session: Session, position: Position) -> None:
        """Tell the adapter, unless the source has not come that far: it would wait, and trim nothing."""
        if position > self._reached:
            with self._adapter.snapshot() as snapshot:
                self._reached = snapshot.position
        if position > self._reached:
            log.warning(
                "source %s: mediator %s acknowledges what has not happened", self.source, session.mediator
            )
            return
        self._adapter.acknowledge(position)

    def _define(self, session: Session, define: pb.DefineLocalView) -> None:
        catalog = self._catalog = self._adapter.catalog()
        view = allowed_view(local_view_from_proto(define.local_view), catalog, session.policy)
        if len(session.views) >= MOST_LOCAL_VIEWS and view.name not in session.views:
            raise LimitExceededError(f"a mediator may define {MOST_LOCAL_VIEWS} local views, and no more")
        self._adapter.prepare(view.relations)
        self._forget_backlog()
        session.views[view.name] = ReportedView.of(
            view, catalog, position_from_proto(define.after), define.subscription
        )
        session.order.begin(view.name, define.subscription)
        self._last_sent = -HEARTBEAT_SECONDS

    # The source

    def _follow(self, session: Session) -> None:
        """Report what one snapshot shows, up to a run; answer every waiting query as of what was reported.

        A backlog is reported run by run. Between two runs the snapshot is left, so that the source, credit
        and acknowledgements get their turn.
        """
        observed_at = now()
        with self._adapter.snapshot() as snapshot:
            self._reached = snapshot.position
            session.behind = session.credit <= 0 or self._report(session, snapshot, observed_at)
            if self._is_over(session):
                return
            if snapshot.position < session.order.reported:
                # Restored from a backup: who lost history was told, and order begins anew on a new stream.
                raise ResyncRequiredError(
                    f"the source went back from {session.order.reported} to {snapshot.position}"
                )
            if not session.behind:
                self._forget_backlog()
            while session.queries and not self._is_over(session):
                started = time.monotonic()
                self._answer(session, session.queries[0].request.query, snapshot)
                # Only now: should the source have gone away, this query and all after it still wait.
                session.handled_bytes += session.queries.popleft().size
                self.counters.queries += 1
                self.counters.answer_seconds.add(time.monotonic() - started)

    def _forget_backlog(self) -> None:
        self._backlog.clear()
        self._aside.clear()

    def _is_over(self, session: Session) -> bool:
        return self._stopped.is_set() or session.queue.closed

    def _report(self, session: Session, snapshot: Snapshot, observed_at: datetime) -> bool:
        """Report the next run to each local view; whether the snapshot shows more.

        The furthest behind comes first, together with all that stand where one of its entries ends. Another
        one may stand inside of an entry: a source that cannot tell its transactions apart gives all that
        happened since a position as one, and since another position as another. Or it stands in another
        history, which only the source can say. It is asked for by itself.
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
            if any(reported.cursor.place != after.place for reported in waiting.values()):
                ends = {position.place for position in (after, end, *changes.positions)}
                together = {n: reported for n, reported in waiting.items() if reported.cursor.place in ends}
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
        at_end = PastState(self._engine, snapshot, self._later_than(session, self._backlog, end))
        for name, reported in views.items():
            try:
                deltas[name] = self._updates.delta_is(reported, changes, at_end)
            except DataError as error:
                self._lose(session, [name], error)
        # Only now: should the source have gone away on the way, all of them still have it to come.
        for name in deltas:
            views[name].cursor = max(end, views[name].cursor)
        level = min((reported.cursor for reported in session.views.values()), default=end)
        session.credit -= session.order.send_update(changes, deltas, level, observed_at)
        self.counters.transactions += len(changes.positions)
        self.counters.rows += sum(delta.rows.num_rows for delta in deltas.values())
        log_transactions(log, "reported", self.source, changes.positions)
        if changes.positions:
            self.counters.run_sizes.add(len(changes.positions))

    def _next_run(
        self, session: Session, snapshot: Snapshot, views: Mapping[str, ReportedView], after: Position
    ) -> Changes | None:
        """What happened since the cursor of the furthest behind; if it cannot be read, these are lost.

        None if that is so, or if the session ended meanwhile.
        """

        joined = any(len(reported.view.occurrences) > 1 for reported in views.values())
        try:
            return self._backlog.next_run(
                snapshot,
                after,
                session.relations,
                ahead=joined or bool(session.queries),
                is_interrupted=partial(self._is_interrupted, session),
            )
        except (ResyncRequiredError, DataError) as error:
            there = [name for name, reported in views.items() if reported.cursor.place == after.place]
            self._lose(session, there, error)
        return None

    def _is_interrupted(self, session: Session) -> bool:
        """Whether the session ended; asked now and then in long work, and a sign of life meanwhile."""
        self._seen_at = self._clock()
        self._heartbeat(session)
        return self._is_over(session)

    def _lose(self, session: Session, names: Sequence[str], error: LockstepError) -> None:
        """These local views cannot be reported any more; the mediator is told why, and the others go on."""
        self._log_trouble(session, f"reporting of {', '.join(names)}", error)
        for name in names:
            lost = session.views.pop(name)
            session.tell(error, self.source, local_view=name, subscription=lost.subscription)

    def _log_trouble(self, session: Session, what: str, error: LockstepError) -> None:
        """Write down an error in full, for the mediator may be told less; refusals are in the audit log."""
        if not isinstance(error, RefusedError):
            log.error("source %s: mediator %s: %s failed: %s", self.source, session.mediator, what, error)

    def _answer(self, session: Session, query: pb.MaintenanceQuery, snapshot: Snapshot) -> None:
        try:
            reported = session.views.get(query.local_view)
            if reported is None:
                raise RefusedError(f"local view {query.local_view!r} is not defined on this stream")
            later = self._later(session, reported, snapshot)
            if self._is_over(session):
                return
            rows = self._rows(session, query, reported, snapshot, later)
            batches = session.policy.bounded(rows, f"an answer for {query.local_view!r}")
            session.order.send_result(query.query_id, query.local_view, reported.cursor, batches)
        except SourceUnavailableError:
            raise
        except LockstepError as error:
            session.refused("query", error)
            self._log_trouble(session, f"query of {query.local_view}", error)
            session.tell(error, self.source, query_id=query.query_id)

    def _later(self, session: Session, reported: ReportedView, snapshot: Snapshot) -> LaterChanges | None:
        """What the snapshot shows beyond the local view's cursor; None if it shows just that.

        If that cannot be read, the local view is lost. Unless all was reported in this snapshot, it has to be
        read even if there is nothing: that is how a position of another history is known.
        """
        cursor = reported.cursor
        if cursor == snapshot.position and not session.behind:
            return None
        backlog = self._backlog if self._backlog.parts_at(cursor) else self._aside
        try:
            backlog.read_ahead(snapshot, cursor, session.relations, partial(self._is_interrupted, session))
        except (ResyncRequiredError, DataError) as error:
            self._lose(session, [reported.view.name], error)
            raise
        return None if cursor == snapshot.position else self._later_than(session, backlog, cursor)

    def _later_than(self, session: Session, backlog: Backlog, position: Position) -> LaterChanges:
        """What a backlog knows beyond a position; to look through it is long work."""

        def later(relation: str, columns: Sequence[str], keys: Keys | None) -> Iterator[pa.Table]:
            for rows in backlog.later_changes(position, relation, columns, keys):
                self._is_interrupted(session)
                yield rows

        return later

    def _rows(
        self,
        session: Session,
        query: pb.MaintenanceQuery,
        reported: ReportedView,
        snapshot: Snapshot,
        later: LaterChanges | None,
    ) -> Iterator[pa.RecordBatch]:
        """The answer's rows, as of the local view's cursor."""
        assert self._catalog is not None
        state = PastState(self._engine, snapshot, later or nothing_later)
        if query.terms:
            visible = session.policy.visible(self._catalog)
            rows = evaluate_terms(query, visible, session.relations, state, session.policy)
            return iter(rows.to_batches())
        keys = keys_of(query, reported.view)
        if later is None:
            return typed_query(reported.view, keys, self._catalog).answer(snapshot)
        return state.rows(reported, keys)


def typed_query(view: LocalView, keys: Keys | None, catalog: Catalog) -> LocalizedQuery:
    """The LMQ of a local view with all its types taken from the catalog."""
    types: Mapping[ColumnRef, pa.DataType] = {
        ColumnRef(o.alias, c.name): c.type
        for o in view.occurrences
        for c in catalog.relation(o.relation).columns
    }
    return with_types(localize(view, keys), types)
