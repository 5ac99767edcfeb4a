"""Maintenance: drives every view's process, commits what they install, acknowledges; all in one thread.

Views whose algorithms take batches advance together: a round takes every such view up to the same delivered
transaction and makes their versions visible by one commit. A view that cannot go on now (its source is away,
it is held, it is paused) is left behind and does not hold up the others; one whose source does not answer in
time leaves its round, and installs by itself what it took with it. The other algorithms settle their views
each by itself.

What such a view misses must not pile up here: paused, or holding more than its share of `umq_rows`, it is
parked. Its updates are forgotten and left in the sources' logs, from where they come again when it can go on.

Reference: SWEEP paper, Figure 4, process UpdateView.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from algebra.assembly import VERSION
from algebra.errors import (
    INTERNAL_ERROR,
    LimitExceededError,
    LockstepError,
    SourceUnavailableError,
    StorageError,
)
from algebra.position import Position
from mediator.acknowledgements import Acknowledgements
from mediator.maintenance.contract import Install, Next, Settle, Take, Update
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
"""Views that cannot go on are parked when they hold more than one source's credit divided by this."""
RETRY_SECONDS = 1.0

_Action = Callable[[], None]


class Maintainer:
    """Keeps all views of a mediator."""

    def __init__(self, state: MediatorState) -> None:
        self._state = state
        self._processes: dict[str, MaintenanceProcess] = {}
        self._round: dict[str, MaintenanceProcess] = {}
        """Processes that took a batch of the present round. Their views' `installing` is held."""
        self._late: dict[str, MaintenanceProcess] = {}
        """Those that took one of an earlier round, and still wait for answers. It is held for them, too."""
        self._acknowledgements = Acknowledgements(state)

    def run(self) -> None:
        """Carry out what is due until the mediator stops."""
        while not self._state.stopped.is_set():
            try:
                self._acknowledgements.look()
                for action in self._wait_due():
                    action()
            except Exception as error:
                # Whatever it was: processes begin anew, from what is stored and what is queued.
                log.error("maintenance failed unexpectedly, and begins anew", exc_info=error)
                self._state.write_failed(error)
                self._end_all()
                self._state.stopped.wait(RETRY_SECONDS)
        self._end_all()

    def _wait_due(self) -> list[_Action]:
        """What is due now, or in a while."""
        with self._state.changed:
            due = self._due()
            if stuck := [p.view for p in self._processes.values() if self._is_stuck(p)]:
                self._let_all_come(stuck)
            if not due:
                self._state.give_room()
                busy = any(p.is_asking for p in self._processes.values())
                self._state.changed.wait(0.25 if busy else 1.0)
                due = self._due()
                if self._state.problem and not due and not self._is_to_store():
                    due = [self._try_storage]
        return due

    def _is_to_store(self) -> bool:
        """Whether something will soon be stored, which tells whether that can be done."""
        return any(process.is_asking and not process.is_late for process in self._processes.values())

    def _try_storage(self) -> None:
        """Look whether versions could be stored again."""
        try:
            self._state.warehouse.try_writing()
        except Exception as error:
            self._state.write_failed(error)
        else:
            self._state.storage_works()

    def _is_stuck(self, process: MaintenanceProcess) -> bool:
        """Whether nothing but what is still to come helps a process with what waits for it."""
        waits = isinstance(process.waits_for, Next) and not process.is_asking and not process.is_ready
        return waits and bool(len(process.view.queue)) and self._may_go_on(process.view)

    def _end_all(self) -> None:
        for process in list(self._processes.values()):
            with suppress(Exception):  # recovery removes what it staged
                self._end(process)

    def _let_all_come(self, stuck: Sequence[MaintainedView]) -> None:
        """What waits can be used only with what is still to come, such as a part of a global transaction.

        That may never come, and what comes meanwhile must not fill the memory.
        """
        most = self._state.config.umq_rows + self._state.config.assembled_rows
        if self._state.waiting_rows > most:
            problem = LimitExceededError(
                f"more than {most:,} rows wait for what has not come, such as another part of a global "
                "transaction; if that is to be waited for, raise umq_rows"
            )
            self._state.pause(max(stuck, key=lambda view: view.queue.cost), problem)
            return
        for channel in self._state.channels.values():
            channel.give_back()

    # What is due; with the lock held

    def _due(self) -> list[_Action]:
        due: list[_Action] = []
        # Views that settle by themselves may always be busy: rounds do not wait for what they have to do.
        by_themselves: list[_Action] = []
        for name, process in self._processes.items():
            view = process.view
            if self._state.views.get(name) is not view or view.problem or process.is_outdated:
                due.append(partial(self._end, process))
            elif process.failed is not None:
                due.append(partial(self._fail, process, process.failed))
            elif process.is_ready:
                own = due if view.maintenance.takes_batches else by_themselves
                own.append(partial(self._guarded, process, process.go_on))
            elif isinstance(process.waits_for, Settle):
                if not view.installing.locked():
                    by_themselves.append(partial(self._settle, process))
            elif process.is_overdue:
                due.append(partial(self._guarded, process, process.give_up))
        for view in self._state.views.values():
            if self._may_start(view):
                due.append(partial(self._start, view))
            elif self._is_to_park(view):
                due.append(partial(self._park, view))
            elif view.parked and not (view.problem or view.installing.locked() or self._state.away(view)):
                due.append(partial(self._state.follow, view))
        return [*by_themselves, *(due or self._round_due())]

    def _is_to_park(self, view: MaintainedView) -> bool:
        """Whether a view cannot go on, and should not collect what it misses in memory."""
        if view.parked or view.installing.locked():
            return False
        if view.problem:
            return True
        most = self._state.config.credit_rows // PARKED_SHARE
        return bool(view.queue.cost and self._state.away(view)) and self._state.stuck_rows > most

    def _may_start(self, view: MaintainedView) -> bool:
        return view.name not in self._processes and self._may_go_on(view)

    def _may_go_on(self, view: MaintainedView) -> bool:
        """Whether a view may install, and its sources all answer."""
        return view.is_followed and not view.installing.locked() and not self._state.away(view)

    def _round_due(self) -> list[_Action]:
        """The next thing to do for views that advance together: commit the round, or begin one."""
        for process in self._late.values():
            if isinstance(process.waits_for, Install):
                return [partial(self._install_together, [process])]
        if self._round:
            processes = list(self._round.values())
            if late := [process for process in processes if process.is_late]:
                return [partial(self._leave_behind, late)]
            if all(isinstance(process.waits_for, Install) for process in processes):
                return [partial(self._install_together, processes)]
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
        if not view.installing.locked():
            self._state.catch_up(view)
        try:
            process = MaintenanceProcess(self._state, view)
        except LockstepError as error:
            self._state.pause(view, error)
            return
        self._processes[view.name] = process
        self._guarded(process, process.start)

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
            case duckdb.OutOfMemoryException() | LimitExceededError() if process.taken > 1:
                view.batch_cap = process.taken // 2
                log.warning(
                    "view %s: a batch of %d transactions needs too much (%s), %d are tried next",
                    view.name,
                    process.taken,
                    error,
                    view.batch_cap,
                )
            case LockstepError():
                self._state.pause(view, error)
            case _:
                log.error("view %s: unexpected error", view.name, exc_info=error)
                self._state.pause(view, LockstepError(INTERNAL_ERROR))

    def _end(self, process: MaintenanceProcess) -> None:
        name = process.view.name
        if self._processes.get(name) is process:
            del self._processes[name]
        self._release(process)
        process.close()
        self._state.notify()

    def _release(self, process: MaintenanceProcess) -> None:
        """It installs nothing any more of what it took."""
        for taken in (self._round, self._late):
            if taken.get(process.view.name) is process:
                del taken[process.view.name]
                process.view.owing = {}
                process.view.installing.release()

    # Rounds: one version per transaction, several views by one commit

    def _begin_round(self, ready: Sequence[MaintenanceProcess]) -> None:
        held = [process for process in ready if _hold(process)]
        self._round.update({p.view.name: p for p in held})
        with self._state.changed:
            limits = {p.view.name: p.view.batch_limit(self._state.config.max_batch) for p in held}
            horizons = [p.view.queue.horizon(limits[p.view.name]) for p in held]
            horizon = min((h for h in horizons if h is not None), default=0)
            batches = [(p, p.view.queue.prefix(horizon, limits[p.view.name])) for p in held]
        for process, batch in batches:
            if not batch:
                self._release(process)
                continue
            process.began_at, process.asking_seconds = time.monotonic(), 0.0
            self._guarded(process, partial(process.take, batch))

    def _leave_behind(self, late: Sequence[MaintenanceProcess]) -> None:
        for process in late:
            name = process.view.name
            self._late[name] = self._round.pop(name)
            owing = process.owing
            process.view.owing = dict.fromkeys(owing, now() - timedelta(seconds=process.waited_seconds))
            log.warning("view %s is late: no answer from %s; other views go on", name, ", ".join(owing))

    def _install_together(self, processes: Sequence[MaintenanceProcess]) -> None:
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
            self._release(process)
            self._guarded(process, process.installed)
        self._state.notify()

    # Settling: one version for any number of transactions

    def _settle(self, process: MaintenanceProcess) -> None:
        view, step = process.view, process.waits_for
        assert isinstance(step, Settle)
        if not _hold(process):
            return
        try:
            row = _settled_row(view, step.reflects)
            tag = pa.repeat(pa.scalar(row.version, pa.int64()), step.change.num_rows)
            install = ViewInstall(view.name, [row], table=step.change.append_column(VERSION, tag))
            done = self._install([process], [install], [list(step.reflects)])
        finally:
            view.installing.release()
        if done:
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
                view.queue.forget(view.vector)
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
        if log.isEnabledFor(logging.DEBUG):
            for process, updates in zip(processes, taken, strict=True):
                _log_shown(process.view, updates)
        self._state.give_room()
        self._acknowledgements.tell()
        return True


def _hold(process: MaintenanceProcess) -> bool:
    """Take the view's `installing`, unless somebody has it, or the process has the wrong past.

    Looked at in this order: once it is held, nobody drops or refreshes the view.
    """
    installing = process.view.installing
    if not installing.acquire(blocking=False):
        return False
    if process.is_outdated:
        installing.release()
        return False
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


def _log_shown(view: MaintainedView, updates: Sequence[Update | DeliveredRun]) -> None:
    for source, shown in _shown(updates, view.version).items():
        versions = list(shown.values())
        first, last = versions[0], versions[-1]
        what = f"version {last}" if first == last else f"versions {first} to {last}"
        what = f"view {view.name} shows, at {what}"
        log_transactions(log, what, source, list(shown), view=view.name, versions=versions)


def _shown(updates: Sequence[Update | DeliveredRun], newest: int) -> dict[str, dict[Position, int]]:
    """By source, the position of each transaction of these updates, with the version that shows it first."""
    found: dict[str, dict[Position, int]] = {}
    for update in updates:
        if isinstance(update, DeliveredRun):
            own = {position: update.first_version + i for i, position in enumerate(update.positions)}
        else:
            own = {update.position: newest}
        found.setdefault(update.source, {}).update(own)
    return found
