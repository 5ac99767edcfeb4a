"""Maintenance: drives every view's process, commits what they install, acknowledges; all in one thread.

Views whose algorithms take batches advance together: a round takes every such view up to the same delivered
transaction and makes their versions visible by one commit. A view that cannot go on now (its source is away,
it is held, it is paused) is left behind and does not hold up the others. The other algorithms settle their
views each by itself.

What such a view misses must not pile up here: paused, or holding more than its share of `umq_rows`, it is
parked. Its updates are forgotten and left in the sources' logs, from where they come again when it can go on.

Reference: SWEEP paper, Figure 4, process UpdateView.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from algebra.assembly import VERSION
from algebra.errors import LockstepError, SourceUnavailableError, StorageError
from algebra.position import Position
from mediator.acknowledgements import Acknowledgements
from mediator.maintenance.contract import Install, Settle, Take, Update
from mediator.process import MaintenanceProcess
from mediator.state import MediatorState
from mediator.storage_errors import storage_error
from mediator.update_queue import DeliveredRun
from mediator.views import MaintainedView
from mediator.warehouse.records import VersionRow, ViewInstall
from protos.convert import now
from protos.correlation import log_transactions

log = logging.getLogger(__name__)

PARKED_SHARE = 4
"""A view that cannot go on is parked when it holds more than `umq_rows` divided by this."""
RETRY_SECONDS = 1.0

_Action = Callable[[], None]


class Maintainer:
    """Keeps all views of a mediator."""

    def __init__(self, state: MediatorState) -> None:
        self._state = state
        self._processes: dict[str, MaintenanceProcess] = {}
        self._round: dict[str, MaintenanceProcess] = {}
        """Processes that took a batch of the present round. Their views' `installing` is held."""
        self._acknowledgements = Acknowledgements(state)

    def run(self) -> None:
        """Carry out what is due until the mediator stops."""
        while not self._state.stopped.is_set():
            self._acknowledgements.look()
            with self._state.changed:
                due = self._due()
                if not due:
                    self._state.give_room()
                    busy = any(p.is_asking for p in self._processes.values())
                    self._state.changed.wait(0.25 if busy else 1.0)
                    due = self._due()
            for action in due:
                action()
        for process in list(self._processes.values()):
            self._end(process)

    # What is due; with the lock held

    def _due(self) -> list[_Action]:
        due: list[_Action] = []
        for name, process in self._processes.items():
            view = process.view
            if self._state.views.get(name) is not view or view.problem or process.is_outdated:
                due.append(partial(self._end, process))
            elif process.failed is not None:
                due.append(partial(self._fail, process, process.failed))
            elif process.is_ready:
                due.append(partial(self._guarded, process, process.go_on))
            elif isinstance(process.waits_for, Settle):
                if not view.installing.locked():
                    due.append(partial(self._settle, process))
            elif process.is_overdue:
                due.append(partial(self._guarded, process, process.give_up))
        for view in self._state.views.values():
            if self._may_start(view):
                due.append(partial(self._start, view))
            elif self._is_to_park(view):
                due.append(partial(self._park, view))
            elif view.parked and not view.problem and not self._state.away(view):
                due.append(partial(self._state.follow, view))
        return due or self._round_due()

    def _is_to_park(self, view: MaintainedView) -> bool:
        """Whether a view cannot go on, and should not collect what it misses in memory."""
        if view.parked or view.installing.locked():
            return False
        if view.problem:
            return True
        return bool(self._state.away(view)) and (
            view.queue.cost > self._state.config.umq_rows // PARKED_SHARE
        )

    def _may_start(self, view: MaintainedView) -> bool:
        return view.name not in self._processes and self._may_go_on(view)

    def _may_go_on(self, view: MaintainedView) -> bool:
        """Whether a view may install, and its sources all answer."""
        return view.is_followed and not view.installing.locked() and not self._state.away(view)

    def _round_due(self) -> list[_Action]:
        """The next thing to do for views that advance together: commit the round, or begin one."""
        if self._round:
            if all(isinstance(p.waits_for, Install) for p in self._round.values()):
                return [self._install_round]
            return []
        ready = [
            process
            for process in self._processes.values()
            if isinstance(process.waits_for, Take)
            and len(process.view.queue)
            and self._may_go_on(process.view)
        ]
        return [partial(self._begin_round, ready)] if ready else []

    # Processes begin, go on, and end

    def _park(self, view: MaintainedView) -> None:
        process = self._processes.get(view.name)
        if process is not None:
            self._end(process)
        self._state.park(view)
        if not view.problem:
            away = ", ".join(self._state.away(view))
            log.warning("view %s is parked until %s answers: its sources keep its updates", view.name, away)

    def _start(self, view: MaintainedView) -> None:
        self._catch_up(view)
        try:
            process = MaintenanceProcess(self._state, view)
        except LockstepError as error:
            self._state.pause(view, error)
            return
        self._processes[view.name] = process
        self._guarded(process, process.start)

    def _catch_up(self, view: MaintainedView) -> None:
        """Take note of versions that are visible although their install failed: it broke after its commit."""
        try:
            newest = self._state.warehouse.newest(view.name)
        except LockstepError:
            return  # dropped meanwhile
        with self._state.changed:
            if newest.version > view.version and not view.installing.locked():
                view.version, view.vector = newest.version, dict(newest.vector)
                view.queue.forget(view.vector)

    def _guarded(self, process: MaintenanceProcess, work: _Action) -> None:
        """Run a part of a process; if it fails, the process ends and nothing of it remains."""
        try:
            work()
        except Exception as error:
            self._fail(process, error)

    def _fail(self, process: MaintenanceProcess, error: BaseException | None) -> None:
        self._end(process)
        view = process.view
        error = storage_error(error, str(self._state.warehouse.root)) or error
        match error:
            case StorageError():
                # What was computed is gone, every update is still queued.
                self._state.storage_failed(error.message)
                self._state.stopped.wait(RETRY_SECONDS)
            case SourceUnavailableError():
                log.warning("view %s waits: %s", view.name, error)
            case duckdb.OutOfMemoryException() if process.taken > 1:
                view.batch_cap = process.taken // 2
                log.warning(
                    "view %s: a batch of %d transactions needs more than embedded_memory, %d are tried next",
                    view.name,
                    process.taken,
                    view.batch_cap,
                )
            case LockstepError():
                self._state.pause(view, error)
            case _:
                log.error("view %s: unexpected error", view.name, exc_info=error)
                self._state.pause(view, LockstepError(f"internal error: {error}"))

    def _end(self, process: MaintenanceProcess) -> None:
        name = process.view.name
        if self._processes.get(name) is process:
            del self._processes[name]
        if self._round.get(name) is process:
            del self._round[name]
            process.view.installing.release()
        process.close()
        self._state.notify()

    # Rounds: one version per transaction, several views by one commit

    def _begin_round(self, ready: Sequence[MaintenanceProcess]) -> None:
        held = [p for p in ready if not p.is_outdated and p.view.installing.acquire(blocking=False)]
        with self._state.changed:
            limits = {p.view.name: p.view.batch_limit(self._state.config.max_batch) for p in held}
            horizons = [p.view.queue.horizon(limits[p.view.name]) for p in held]
            horizon = min((h for h in horizons if h is not None), default=0)
            batches = [(p, p.view.queue.prefix(horizon, limits[p.view.name])) for p in held]
        for process, batch in batches:
            if not batch:
                process.view.installing.release()
                continue
            self._round[process.view.name] = process
            process.began_at, process.asking_seconds = time.monotonic(), 0.0
            self._guarded(process, partial(process.take, batch))

    def _install_round(self) -> None:
        processes = list(self._round.values())
        installs: list[ViewInstall] = []
        taken: list[list[Update | DeliveredRun]] = []
        for process in processes:
            step = process.waits_for
            assert isinstance(step, Install)
            log.debug(
                "view %s: swept %d transactions in %.3f s, %.3f s of it waiting for sources",
                process.view.name,
                sum(len(run) for run in step.batch),
                time.monotonic() - process.began_at,
                process.asking_seconds,
            )
            if not step.change.files:
                process.discard_staged()
            versions = _version_rows(process.view, step.batch)
            installs.append(ViewInstall(process.view.name, versions, step.change.files, step.change.table))
            taken.append(list(step.batch))
        if not self._install(processes, installs, taken):
            return
        for process in processes:
            with self._state.changed:
                process.view.queue.installed(process.view.version)
            del self._round[process.view.name]
            process.view.installing.release()
            self._guarded(process, process.installed)
        self._state.notify()

    # Settling: one version for any number of transactions

    def _settle(self, process: MaintenanceProcess) -> None:
        view, step = process.view, process.waits_for
        assert isinstance(step, Settle)
        if not view.installing.acquire(blocking=False):
            return
        try:
            if process.is_outdated:
                return
            row = _settled_row(view, step.reflects)
            tag = pa.repeat(pa.scalar(row.version, pa.int64()), step.change.num_rows)
            install = ViewInstall(view.name, [row], table=step.change.append_column(VERSION, tag))
            done = self._install([process], [install], [list(step.reflects)])
        finally:
            view.installing.release()
        if done:
            with self._state.changed:
                view.queue.forget(view.vector)
            self._guarded(process, process.installed)
        self._state.notify()

    def _install(
        self,
        processes: Sequence[MaintenanceProcess],
        installs: Sequence[ViewInstall],
        taken: Sequence[Sequence[Update | DeliveredRun]],
    ) -> bool:
        """Commit; if that fails, nothing is visible, the updates stay queued and are tried again."""
        started = time.monotonic()
        changed_rows = [_rows_in(install) for install in installs]
        try:
            newest = self._state.warehouse.install(installs)
        except Exception as error:
            self._state.write_failed(error)
            with suppress(Exception):  # else the next attempt begins with it
                self._state.warehouse.recover()
            for process in processes:
                self._end(process)
            self._state.stopped.wait(RETRY_SECONDS)
            return False
        self._state.storage_works()
        with self._state.changed:
            for process, updates, rows in zip(processes, taken, changed_rows, strict=True):
                view = process.view
                record = newest[view.name]
                view.version, view.vector = record.version, dict(record.vector)
                counters = view.counters
                counters.batches += 1
                size = sum(len(u) if isinstance(u, DeliveredRun) else 1 for u in updates)
                counters.transactions += size
                counters.batch_sizes.add(size)
                view.batch_cap *= 2  # it fitted: back to larger ones, step by step
                if view.batch_cap >= self._state.config.max_batch:
                    view.batch_cap = 0
                counters.rows += rows
                counters.lags.extend((record.committed_at - u.observed_at).total_seconds() for u in updates)
        self._state.commit_seconds.add(time.monotonic() - started)
        log.debug("installed %d views in %.3f s", len(installs), time.monotonic() - started)
        for process, updates in zip(processes, taken, strict=True):
            view = process.view
            for source, positions in _positions(updates).items():
                what = f"view {view.name} shows, at version {view.version}"
                log_transactions(log, what, source, positions, view=view.name, version=view.version)
        self._state.give_room()
        self._acknowledgements.tell()
        return True


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


def _settled_row(view: MaintainedView, reflects: Sequence[Update]) -> VersionRow:
    """One row for all of them, named after the last; marked as batched if they are several."""
    vector = dict(view.vector)
    for update in reflects:
        vector[update.source] = max(vector[update.source], update.position)
    if not reflects:
        return VersionRow(view.version + 1, "", Position(0), vector, now())
    last = reflects[-1]
    batched = len(reflects) > 1 or last.batched
    return VersionRow(view.version + 1, last.source, last.position, vector, last.observed_at, batched)


def _rows_in(install: ViewInstall) -> int:
    rows = sum(int(pq.read_metadata(path).num_rows) for path in install.files)
    return rows + (int(install.table.num_rows) if install.table is not None else 0)


def _positions(updates: Sequence[Update | DeliveredRun]) -> dict[str, list[Position]]:
    """The positions of all transactions of these updates, by source."""
    found: dict[str, list[Position]] = {}
    for update in updates:
        own = update.positions if isinstance(update, DeliveredRun) else [update.position]
        found.setdefault(update.source, []).extend(own)
    return found
