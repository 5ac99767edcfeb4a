"""What the parts of a mediator share: its views, channels, engine and warehouse, and the lock over them."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from algebra.engines.contract import Engine
from algebra.errors import INTERNAL_ERROR, LockstepError, ResyncRequiredError
from mediator.channel import SourceChannel
from mediator.config import MediatorConfig
from mediator.storage_errors import storage_error
from mediator.views import MaintainedView
from mediator.warehouse.warehouse import Warehouse
from protos.convert import now
from protos.metrics import SECONDS, Distribution

log = logging.getLogger(__name__)

_SUBSCRIPTIONS = itertools.count(1)


@dataclass
class MediatorState:
    """One mediator's state. `changed` guards `views`, their queues, and `holds`.

    It is notified when updates are delivered, versions installed, views come or go.
    """

    config: MediatorConfig
    warehouse: Warehouse
    engine: Engine
    channels: Mapping[str, SourceChannel] = field(default_factory=dict)
    views: dict[str, MaintainedView] = field(default_factory=dict)
    detached: dict[str, str] = field(default_factory=dict)
    """Stored views that are not kept yet, and why."""
    changing: set[str] = field(default_factory=set)
    """Views that are being made or dropped."""
    problem: str = ""
    """Why versions cannot be stored now, as callers who manage are told; empty if they can."""
    problem_since: datetime | None = None
    on_storage: Callable[[bool], None] = lambda _: None
    """Told whether versions can be stored, when that changes."""
    _logged_problem: str = ""
    holds: Counter[str] = field(default_factory=Counter)
    """By source, how many loads still need history that it would trim if it were acknowledged."""
    commit_seconds: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    """How long commits took; the maintenance thread adds."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    stopped: threading.Event = field(default_factory=threading.Event)

    def notify(self) -> None:
        """Have everyone who waits for a change look again."""
        with self.changed:
            self.changed.notify_all()

    def keeps(self, view: MaintainedView) -> bool:
        """Whether this very view is kept: it was not dropped, also if one of its name was made since.

        Who holds the view's `installing` or the lock may rely on it until the release.
        """
        return self.views.get(view.name) is view

    def follow(self, view: MaintainedView) -> None:
        """Have the changes of a view's local views reported, after its version; its queue is emptied."""
        # With the lock held to the end: all channels must have the same, newest subscription.
        with self.changed:
            if not self.keeps(view):
                return  # channels know local views by name, and the name may be another view's
            view.follow()
            view.subscription = next(_SUBSCRIPTIONS)
            after = view.resume_from
            for source in view.sources:
                local_views = [local for local in view.local_views if local.source == source]
                self.channels[source].define(local_views, after[source], view.subscription)

    def park(self, view: MaintainedView) -> None:
        """Leave a view's updates in its sources' logs, and forget those that wait; `follow` takes it up.

        Nothing is lost: its vector is not acknowledged beyond, so the sources keep what comes after it.
        """
        with self.changed:
            if not self.keeps(view):
                return
            view.park()
            view.subscription = next(_SUBSCRIPTIONS)
            for local in view.local_views:
                self.channels[local.source].drop(local.name)
            self.changed.notify_all()

    def catch_up(self, view: MaintainedView) -> None:
        """Take note of a version that is visible although its install failed: it broke after its commit.

        For who holds the view's `installing`, or knows that nobody does.
        """
        try:
            newest = self.warehouse.newest(view.name)
            resume_from = self.warehouse.resume_from(view.name)
        except LockstepError:
            return  # dropped meanwhile
        with self.changed:
            if newest.version <= view.version:
                return
            if newest.source:
                view.version, view.vector = newest.version, dict(newest.vector)
            else:
                # Read anew, or a version within a transaction: after that, what was noted holds still.
                view.reloaded(newest.version, newest.vector, resume_from)
            view.queue.rebase(newest.version, view.vector)
            view.epoch += 1

    def away(self, view: MaintainedView) -> list[str]:
        """The sources of a view that do not answer now."""
        return [source for source in view.sources if not self.channels[source].connected]

    @property
    def stuck_rows(self) -> int:
        """Of these, what waits for sources that are away. Needs the lock."""
        return sum(view.queue.cost for view in self.views.values() if view.is_followed and self.away(view))

    @property
    def waiting_rows(self) -> int:
        """Rows of updates that wait in memory, over all views."""
        with self.changed:
            return sum(view.queue.cost for view in self.views.values())

    def give_room(self) -> None:
        """Give each source credit again for what it has sent and what no longer waits of it.

        So what waits and what may still be sent stay within `umq_rows` together, and what waits of one source
        takes nothing of the share of another.
        """
        room = Counter({source: channel.owed for source, channel in self.channels.items()})
        with self.changed:
            for run in (run for view in self.views.values() for run in view.queue.runs):
                room[run.source] -= run.cost
        for source, rows in room.items():
            self.channels[source].give_back(rows)

    def write_failed(self, error: Exception) -> None:
        """A write to the warehouse failed, by the disk's fault or another."""
        found = storage_error(error, str(self.warehouse.root)) or error
        if isinstance(found, LockstepError):
            self.storage_failed(str(found), found.message)
        else:
            self.storage_failed(f"{type(error).__name__}: {error}", INTERNAL_ERROR)

    def storage_failed(self, problem: str, told: str = "") -> None:
        """Versions cannot be stored: nothing is lost, and they are tried again until they can.

        `told` is what callers hear of it, where the log has more.
        """
        with self.changed:
            if not self.problem:
                self.problem_since = now()
                self.on_storage(False)
            if self._logged_problem != problem:
                log.error("versions cannot be stored and will be tried again: %s", problem)
            self.problem, self._logged_problem = told or problem, problem

    def storage_works(self) -> None:
        """Versions can be stored (again)."""
        with self.changed:
            if self.problem:
                log.info("versions can be stored again, after: %s", self._logged_problem)
                self.on_storage(True)
            self.problem, self._logged_problem, self.problem_since = "", "", None

    def pause(self, view: MaintainedView, error: LockstepError) -> None:
        """Stop keeping a view until it is refreshed; what it holds stays readable."""
        with self.changed:
            view.problem = error.message
            view.lost_history = isinstance(error, ResyncRequiredError)
            self.changed.notify_all()
        if view.lost_history and self.config.on_lost_history == "resync":
            log.warning("view %s is read anew: %s", view.name, error)
        else:
            log.error("view %s is paused: %s (lockstep view refresh %s)", view.name, error, view.name)

    @contextmanager
    def acknowledgements_held(self, sources: Iterable[str]) -> Iterator[None]:
        """Keep these sources from trimming what a load still needs."""
        held = Counter(sources)
        with self.changed:
            self.holds += held
        try:
            yield
        finally:
            with self.changed:
                self.holds -= held
