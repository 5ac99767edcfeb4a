"""Verify and refresh: a view computed anew from its sources, without stopping them.

The view holds still meanwhile; its sources go on. What they did after the view's vector is in its UMQ by the
time they have reported their position, and is rolled back from the extents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from algebra.assembly import VERSION
from algebra.decompose import Decomposition
from algebra.delta import consolidate
from algebra.engines.contract import Extent, Relation
from algebra.errors import (
    ConfigurationError,
    DataError,
    NotFoundError,
    SchemaChangedError,
    SourceUnavailableError,
)
from algebra.position import Position
from algebra.schema import COUNT
from mediator.config import ViewSpecConfig
from mediator.loader import Progress, loaded_extents
from mediator.state import MediatorState
from mediator.views import MaintainedView
from mediator.warehouse.records import VersionRow, ViewInstall
from protos.convert import now

ATTACH_SECONDS = 10.0
CATCH_UP_SECONDS = 120.0


@dataclass(frozen=True)
class Verification:
    """A view's version compared with its recompute.

    `differences` has the view's columns that readers are shown, and `_count`. `hidden_differences` counts
    the rows beyond those that differ in hidden columns alone.
    """

    version: int
    vector: Mapping[str, Position]
    rows: int
    differences: Relation
    hidden_differences: int = 0


class Recomputer:
    """Computes views of a mediator anew. `explain` decomposes a view as its sources are now."""

    def __init__(self, state: MediatorState, explain: Callable[[ViewSpecConfig], Decomposition]) -> None:
        self._state = state
        self._explain = explain

    def verify(self, view: MaintainedView, progress: Progress) -> Verification:
        """Recompute a view at its current vector and compare."""
        name = view.name
        self._wait_followed(view)
        with self._held(view):
            self._check_followed(view)
            with self._recomputed(view, progress, at_vector=True) as (recomputed, _):
                self._check_followed(view)
                stored = self._state.warehouse.read(name, view.version).read_all()
                differences = self._state.engine.minus(stored, recomputed)
            record = self._state.warehouse.version_record(name, view.version)
            shown = differences.drop_columns(list(view.decomposition.hidden))
            if view.decomposition.hidden:
                shown = consolidate(shown)
            hidden = _size(differences) - _size(shown)
            return Verification(view.version, dict(view.vector), record.rows, shown, hidden)

    def refresh(self, view: MaintainedView, progress: Progress) -> tuple[int, int]:
        """Read a view's sources again and install the difference as one version: (version, rows changed)."""
        name = view.name
        with self._held(view), self._state.acknowledgements_held(view.sources):
            self._state.catch_up(view)
            paused = not view.is_followed
            if paused:
                fresh = self._explain(view.spec)
                if not fresh.assembly.schema.equals(view.plan.query.schema):
                    raise SchemaChangedError(
                        f"the columns of view {name!r} have changed; drop it and create it again"
                    )
                if fresh != view.decomposition:
                    with self._state.changed:
                        view.redefine(fresh)
            with self._recomputed(view, progress, at_vector=False) as (recomputed, vector):
                stored = self._state.warehouse.read(name, view.version).read_all()
                change = self._state.engine.minus(recomputed, stored)
            version = view.version + 1
            row = VersionRow(version, "", Position(0), vector, now())
            install = ViewInstall(name, [row], table=_tagged(change, version))
            if any(vector[source] < position for source, position in view.noted.items()):
                self._state.warehouse.forget_reached(name)
            try:
                newest = self._state.warehouse.install([install])[name]
            except Exception:
                # It may be visible all the same; recovery finds out, and the next attempt catches up with it.
                with suppress(Exception):
                    self._state.warehouse.recover()
                raise
            self._state.storage_works()
            with self._state.changed:
                view.reloaded(newest.version, newest.vector)
                view.queue.rebase(version, vector)
                view.epoch += 1
                # It may have been paused meanwhile; what it lacked then is in what was read.
                again = paused or not view.is_followed
                view.problem, view.lost_history = "", False
            if again:
                self._state.follow(view)
        progress("done", "", 0, None)
        with self._state.changed:
            self._state.changed.notify_all()
        return version, newest.changed_rows

    def _wait_followed(self, view: MaintainedView) -> None:
        """Return when the view's updates are queued: verifying needs what happened after its vector."""
        with self._state.changed:
            if not self._state.changed.wait_for(lambda: view.problem or not view.parked, ATTACH_SECONDS):
                raise SourceUnavailableError(f"view {view.name!r} waits for a source; verify it later")
        self._check_followed(view)

    @staticmethod
    def _check_followed(view: MaintainedView) -> None:
        if view.parked and not view.problem:
            raise SourceUnavailableError(f"view {view.name!r} waits for a source; verify it later")
        if view.problem:
            raise ConfigurationError(
                f"view {view.name!r} is paused: {view.problem}; refresh it first (lockstep view refresh)"
            )

    @contextmanager
    def _held(self, view: MaintainedView) -> Iterator[None]:
        with view.installing:
            if not self._state.keeps(view):
                # Nothing may be read or installed under its name: that may be another view's by now.
                raise NotFoundError(f"view {view.name!r} was dropped meanwhile")
            yield
        with self._state.changed:
            self._state.changed.notify_all()

    @contextmanager
    def _recomputed(
        self, view: MaintainedView, progress: Progress, *, at_vector: bool
    ) -> Iterator[tuple[Relation, Mapping[str, Position]]]:
        """The view from its sources: as of its vector, or as of the reading itself.

        Sources go on meanwhile. What they did after the vector is in the UMQ by the time their position has
        been reported, and is rolled back from the extents.
        """
        for source in view.sources:
            self._state.channels[source].wait_connected(ATTACH_SECONDS)
        most = self._state.config.extent_rows
        with loaded_extents(view.local_views, self._state.channels, progress, most) as loaded:
            extents = []
            for node, local in enumerate(view.local_views):
                channel, position = self._state.channels[local.source], loaded.vector[local.source]
                minus = None
                if view.is_followed:
                    channel.wait_delivered(local.name, position, CATCH_UP_SECONDS)
                if at_vector:
                    with self._state.changed:
                        minus = view.queue.pending_until(node, local.source, position)
                extents.append(Extent(files=loaded.files[local.name], minus=minus))
            progress("join", "", 0, None)
            change = self._state.engine.extent(view.plan.query, extents, None)
            if change.table is None:
                raise DataError("the engine returned no table")
            yield change.table, loaded.vector


def _size(change: Relation) -> int:
    """How many rows a change adds and removes."""
    return int(pc.sum(pc.abs(change[COUNT])).as_py() or 0)


def _tagged(change: Relation, version: int) -> Relation:
    return change.append_column(VERSION, pa.repeat(pa.scalar(version, pa.int64()), change.num_rows))
