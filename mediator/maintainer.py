"""Maintenance: takes what is delivered, sweeps, installs, acknowledges, again and again, in one thread.

Views advance together: a round takes every view up to the same delivered transaction and makes their
versions visible by one commit. A view that cannot go on now (its source is away, it is held, it is paused)
is left behind and does not hold up the others.

Reference: SWEEP paper, Figure 4, process UpdateView.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack

import pyarrow.parquet as pq

from algebra.engines.contract import Relation, ViewChange
from algebra.errors import LockstepError, SourceUnavailableError
from algebra.position import Position
from algebra.sweep import Answer, Query
from mediator.channel import SourceChannel
from mediator.state import MediatorState
from mediator.update_queue import DeliveredRun
from mediator.views import MaintainedView
from mediator.warehouse.records import VersionRow, ViewInstall

log = logging.getLogger(__name__)

ANSWER_SECONDS = 30.0
"""How long a disconnected source may leave a query unanswered before the sweep is put off."""


class Maintainer:
    """Keeps all views of a mediator."""

    def __init__(self, state: MediatorState) -> None:
        self._state = state

    def run(self) -> None:
        """Sweep and install until the mediator stops."""
        while not self._state.stopped.is_set():
            with self._state.changed:
                ready = self._ready()
                if not ready:
                    self._state.changed.wait(
                        0.25 if any(len(v.queue) for v in self._state.views.values()) else 1.0
                    )
                    ready = self._ready()
            if ready:
                self._round(ready)

    def _ready(self) -> list[MaintainedView]:
        """Views that have updates waiting, may install, and whose sources all answer."""
        return [
            view
            for view in self._state.views.values()
            if len(view.queue)
            and not view.problem
            and not view.installing.locked()
            and all(self._state.channels[source].connected for source in view.sources)
        ]

    def _round(self, ready: Sequence[MaintainedView]) -> None:
        """Sweep and install one batch for each view, up to the same delivered transaction."""
        with ExitStack() as held:
            views = [view for view in ready if _try_hold(view.installing, held)]
            batches = self._batches(views)
            installs: list[ViewInstall] = []
            done: list[tuple[MaintainedView, list[DeliveredRun]]] = []
            for view, batch in batches:
                try:
                    installs.append(self._sweep(view, batch))
                    done.append((view, batch))
                except SourceUnavailableError as error:
                    log.warning("view %s waits: %s", view.name, error)
                except LockstepError as error:
                    self._state.pause(view, error)
                except Exception as error:
                    log.exception("view %s: unexpected error", view.name)
                    self._state.pause(view, LockstepError(f"internal error: {error}"))
            if installs:
                self._install(installs, done)
        self._state.notify()

    def _batches(self, views: Sequence[MaintainedView]) -> list[tuple[MaintainedView, list[DeliveredRun]]]:
        with self._state.changed:
            limits = {view.name: view.batch_limit(self._state.config.max_batch) for view in views}
            horizons = [view.queue.horizon(limits[view.name]) for view in views]
            horizon = min((h for h in horizons if h is not None), default=0)
            batches = [(view, view.queue.prefix(horizon, limits[view.name])) for view in views]
        return [(view, batch) for view, batch in batches if batch]

    def _sweep(self, view: MaintainedView, batch: list[DeliveredRun]) -> ViewInstall:
        directory = self._state.warehouse.stage_directory(view.name)

        def pending(node: int, position: Position) -> Relation:
            with self._state.changed:
                found = view.queue.pending(node, view.local_views[node].source, position)
            view.counters.compensations += bool(found.num_rows)
            return found

        sweep = view.maintenance.view_change(view.plan, batch, self._state.engine, pending, directory)
        started = time.monotonic()
        asking = 0.0
        try:
            queries = next(sweep)
            while True:
                asked = time.monotonic()
                answers = self._ask(view, queries)
                asking += time.monotonic() - asked
                queries = sweep.send(answers)
        except StopIteration as stop:
            change: ViewChange = stop.value
        finally:
            sweep.close()
        log.debug(
            "view %s: swept %d transactions in %.3f s, %.3f s of it waiting for sources",
            view.name,
            sum(len(run) for run in batch),
            time.monotonic() - started,
            asking,
        )
        if not change.files:
            self._state.warehouse.discard(directory)
        return ViewInstall(view.name, _version_rows(view, batch), change.files, change.table)

    def _ask(self, view: MaintainedView, queries: tuple[Query, ...]) -> tuple[Answer, ...]:
        """Send queries side by side and wait for all answers."""
        asked: list[tuple[SourceChannel, Future[Answer]]] = []
        for query in queries:
            local = view.local_views[query.node]
            channel = self._state.channels[local.source]
            asked.append((channel, channel.ask(local, query.keys)))
        view.counters.queries += len(queries)
        try:
            return tuple(self._await(channel, future) for channel, future in asked)
        except BaseException:
            for channel, future in asked:
                channel.abandon([future])
            raise

    def _await(self, channel: SourceChannel, future: Future[Answer]) -> Answer:
        """An answer; a source that is connected may take its time, one that is away may not."""
        away_since: float | None = None
        while True:
            try:
                return future.result(timeout=0.5)
            except FutureTimeoutError:
                if self._state.stopped.is_set():
                    raise SourceUnavailableError("the mediator is stopping") from None
                if channel.connected:
                    away_since = None
                    continue
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > ANSWER_SECONDS:
                    raise SourceUnavailableError(
                        f"source {channel.source!r} has been away for {ANSWER_SECONDS:.0f} s"
                    ) from None

    def _install(
        self,
        installs: Sequence[ViewInstall],
        done: Sequence[tuple[MaintainedView, list[DeliveredRun]]],
    ) -> None:
        started = time.monotonic()
        changed_rows = [_rows_in(install) for install in installs]
        try:
            newest = self._state.warehouse.install(installs)
        except Exception as error:
            # Nothing of it is visible; the updates stay queued and are tried again.
            log.error("versions not installed: %s", error)
            self._state.stopped.wait(1.0)
            return
        with self._state.changed:
            for (view, batch), rows in zip(done, changed_rows, strict=True):
                record = newest[view.name]
                view.version = record.version
                view.vector = dict(record.vector)
                view.queue.installed(record.version)
                counters = view.counters
                counters.batches += 1
                counters.transactions += sum(len(run) for run in batch)
                counters.rows += rows
                counters.lags.extend((record.committed_at - run.observed_at).total_seconds() for run in batch)
        log.debug("installed %d views in %.3f s", len(installs), time.monotonic() - started)
        self._acknowledge()

    def _acknowledge(self) -> None:
        """Tell each source what is committed for all views, and give it room for more."""
        with self._state.changed:
            held = self._state.holds > 0 or bool(self._state.detached)
            committed: dict[str, Position] = {}
            for view in self._state.views.values():
                for source, position in view.vector.items():
                    known = committed.get(source)
                    committed[source] = position if known is None else min(known, position)
            waiting = sum(view.queue.rows for view in self._state.views.values())
            owed, self._state.owed = (
                (self._state.owed, {}) if waiting < self._state.config.umq_rows else ({}, self._state.owed)
            )
        for source, rows in owed.items():
            self._state.channels[source].grant(rows)
        if not held:
            for source, position in committed.items():
                self._state.channels[source].acknowledge(position)


def _try_hold(lock: threading.Lock, held: ExitStack) -> bool:
    if lock.acquire(blocking=False):
        held.callback(lock.release)
        return True
    return False


def _version_rows(view: MaintainedView, batch: Iterable[DeliveredRun]) -> list[VersionRow]:
    """One row per transaction of the batch, each with the vector it reflects."""
    vector: Mapping[str, Position] = view.vector
    rows: list[VersionRow] = []
    for run in batch:
        for i, position in enumerate(run.positions):
            vector = {**vector, run.source: position}
            rows.append(
                VersionRow(
                    run.first_version + i, run.source, position, vector, run.observed_at, run.batched[i]
                )
            )
    return rows


def _rows_in(install: ViewInstall) -> int:
    rows = sum(int(pq.read_metadata(path).num_rows) for path in install.files)
    return rows + (int(install.table.num_rows) if install.table is not None else 0)
