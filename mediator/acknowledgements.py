"""Acknowledgements: what sources are told that nobody will ask for again, so that they may trim it.

A source may forget what every view over it has committed. Now and then it is also looked how far views have
missed nothing beyond their vectors: a view on quiet relations must not hold back the log of busy ones. That
is written into the warehouse first, because a view is taken up from there after a crash.

Reference: docs/adr/0021-a-quiet-view-holds-back-nobody.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from algebra.errors import LockstepError
from algebra.position import Position
from mediator.state import MediatorState
from mediator.views import MaintainedView
from mediator.warehouse.reached import Reach

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""How often it is looked how far views have missed nothing."""


class Acknowledgements:
    """Tells each source what no view needs any more. Used by the maintenance thread alone."""

    def __init__(self, state: MediatorState, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._looked_at = clock()

    def tell(self) -> None:
        """Tell each source what is committed for all views, unless a load needs what came before."""
        with self._state.changed:
            held = set(self._state.holds)
            needed = self._needed({view.name: view.resume_from for view in self._state.views.values()})
        for source, position in needed.items():
            if source not in held:
                self._state.channels[source].acknowledge(position)

    def look(self) -> None:
        """Now and then: note how far views have missed nothing, and tell the sources that may trim more."""
        if self._clock() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = self._clock()
        # The lock is held while it is written: no view may be read anew meanwhile from another history.
        with self._state.changed:
            noted = not self._state.holds and self._note()
        if noted:
            self.tell()

    def _note(self) -> bool:
        """Write down how far views have missed nothing, if that lets any source trim more."""
        views = list(self._state.views.values())
        reached = {view.name: self._reached(view) for view in views}
        before = self._needed({view.name: view.resume_from for view in views})
        after = self._needed(reached)
        if all(position <= before[source] for source, position in after.items()):
            return False
        reaches = {
            view.name: {
                source: Reach(view.vector[source], position)
                for source, position in reached[view.name].items()
                if position > view.vector[source]
            }
            for view in views
        }
        try:
            self._state.warehouse.note_reached(reaches)
        except Exception as error:
            self._state.write_failed(error)
            return False
        self._state.storage_works()
        for view in views:
            view.noted.update({source: reach.end for source, reach in reaches[view.name].items()})
        return True

    def _reached(self, view: MaintainedView) -> dict[str, Position]:
        """Up to where a view has missed nothing, by source; with the lock held."""
        reached = view.resume_from
        if not view.is_followed:
            return reached
        waiting = {run.source for run in view.queue.runs}
        for source in set(view.sources) - waiting:
            channel = self._state.channels[source]
            local_views = [local.name for local in view.local_views if local.source == source]
            delivered = [channel.delivered(name, view.subscription) for name in local_views]
            known = [position for position in delivered if position is not None]
            if len(known) == len(delivered):
                reached[source] = max(reached[source], min(known))
        return reached

    def _needed(self, positions: Mapping[str, Mapping[str, Position]]) -> dict[str, Position]:
        """The lowest position of each source, over these views and the stored ones that are not kept now.

        A view that is being dropped is among them: if that fails, it is taken up again. So is one that nobody
        has found yet, after its making or dropping broke half-way.
        """
        needed: dict[str, Position] = {}
        not_kept = {stored.name for stored in self._state.warehouse.views()} - set(positions)
        for positions_of_view in [*positions.values(), *map(self._stored, not_kept)]:
            for source, position in positions_of_view.items():
                needed[source] = min(needed.get(source, position), position)
        return {source: position for source, position in needed.items() if source in self._state.channels}

    def _stored(self, view: str) -> Mapping[str, Position]:
        try:
            return self._state.warehouse.resume_from(view)
        except LockstepError:
            return {}  # dropped right now
