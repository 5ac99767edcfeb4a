"""The mediator: channels, queues, maintenance and warehouse, put together.

The way of an update: a channel delivers it, `deliver` logs it into the UMQ of every view it touches, the
maintenance thread takes a prefix, sweeps, installs, acknowledges. Views advance together: a transaction that
touches several views becomes visible in all of them by one commit. A view that cannot be maintained now (its
source is away, it is held, it is paused) is left behind and does not hold up the others.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from algebra.decompose import Decomposition
from algebra.engines.contract import Extent
from algebra.errors import (
    AlreadyExistsError,
    ConfigurationError,
    LockstepError,
    SchemaChangedError,
    SourceUnavailableError,
    ViewDefinitionError,
)
from algebra.position import Position
from algebra.schema import Catalog
from mediator.channel import SourceChannel
from mediator.config import MediatorConfig, ViewSpecConfig
from mediator.consistency import Promise, choose, promise
from mediator.engines import create_engine
from mediator.loader import Progress, loaded_extents
from mediator.maintainer import Maintainer
from mediator.recompute import Recomputer, Verification
from mediator.reported_views import SourceUpdate
from mediator.state import MediatorState
from mediator.views import MaintainedView, decomposed, spec_from_json, spec_to_json
from mediator.warehouse.query import views_in
from mediator.warehouse.records import StoredView, VersionRow
from mediator.warehouse.warehouse import Warehouse
from protos.convert import now
from protos.lockstep.v1.types_pb2 import Capabilities
from protos.metrics import Distribution
from protos.security.settings import PLAIN

log = logging.getLogger(__name__)

ATTACH_SECONDS = 10.0
UPKEEP_SECONDS = 15.0


class Mediator:
    """Keeps views. Every public method may be called from any thread."""

    def __init__(self, config: MediatorConfig) -> None:
        self.config = config
        self.started_at = now()
        self.warehouse = Warehouse(config.warehouse)
        try:
            engine = create_engine(config)
        except BaseException:
            self.warehouse.close()
            raise
        # Channels come after the engine: it may fork to start Java, which gRPC's threads do not survive.
        identity = f"mediator at {config.listen}"
        self.channels = {
            source: SourceChannel(
                source,
                address,
                identity,
                self._deliver,
                self._view_failed,
                config.umq_rows,
                config.keepalive_seconds,
                connection=config.connections.get(source, PLAIN),
            )
            for source, address in config.sources.items()
        }
        self._state = MediatorState(config, self.warehouse, engine, self.channels)
        self.views = self._state.views
        self.changed = self._state.changed
        self._creating: set[str] = set()
        self._refused_configured: set[str] = set()
        """Configured views that cannot be made, or were dropped: they are not tried again."""
        self._waiting: dict[str, str] = {}
        """Configured views whose sources do not answer yet, and what was logged about them."""
        self._deliveries = itertools.count(1)
        self._on_failure: Callable[[], None] = lambda: None
        self._recomputer = Recomputer(self._state, self.explain)
        work = {
            "maintenance": Maintainer(self._state).run,
            "upkeep": self._keep,
            "attach": self._attach_views,
        }
        self._threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in work.items()]

    def start(self) -> None:
        for stored in self.warehouse.views():
            self._state.detached[stored.name] = "waiting for its sources"
        for channel in self.channels.values():
            channel.start()
        for thread in self._threads:
            thread.start()

    def on_failure(self, tell: Callable[[], None]) -> None:
        """Have someone told that the engine has ended: nothing but a new process helps."""
        self._on_failure = tell

    def on_storage(self, tell: Callable[[bool], None]) -> None:
        """Have someone told whether versions can be stored, when that changes."""
        self._state.on_storage = tell

    @property
    def storage_problem(self) -> tuple[str, datetime | None]:
        """Why versions cannot be stored now, and since when; empty if they can."""
        with self.changed:
            return self._state.problem, self._state.problem_since

    @property
    def waiting_rows(self) -> int:
        """Rows of updates that wait in memory, over all views; a transaction counts as one more."""
        return self._state.waiting_rows

    @property
    def stopping(self) -> bool:
        return self._state.stopped.is_set()

    def begin_stop(self) -> None:
        """Take no new work; whoever waits for a change is told to look again."""
        self._state.stopped.set()
        self._state.notify()

    def stop(self) -> None:
        """Let the current batch finish, then let go of everything."""
        self.begin_stop()
        for channel in self.channels.values():
            channel.begin_stop()
        for channel in self.channels.values():
            channel.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=30)
        self._state.engine.close()
        self.warehouse.close()

    # Views come and go

    def _attach_views(self) -> None:
        """Take up stored views, and create configured ones, as soon as their sources answer."""
        while not self._state.stopped.is_set():
            for name in list(self._state.detached):
                try:
                    self._attach(self.warehouse.view(name))
                except LockstepError as error:
                    self._state.detached[name] = error.message
            for spec in self.config.views:
                if self._exists(spec.name):
                    continue
                try:
                    self.create_view(spec, lambda *_: None)
                    log.info("view %s created", spec.name)
                except SourceUnavailableError as error:
                    if self._waiting.get(spec.name) != error.message:
                        log.warning("view %s not created yet: %s", spec.name, error)
                    self._waiting[spec.name] = error.message
                except LockstepError as error:
                    log.error("view %s cannot be created: %s", spec.name, error)
                    self._state.detached.pop(spec.name, None)
                    self._refused_configured.add(spec.name)
            if self.config.on_lost_history == "resync":
                self._resync_lost()
            if failure := self._state.engine.failure():
                log.critical("the mediator ends, start it again: %s; its views go on from there", failure)
                self._on_failure()
                return
            self._state.stopped.wait(0.5)

    def _resync_lost(self) -> None:
        """Refresh the views whose sources have lost the history that they need."""
        for view in list(self.views.values()):
            if not view.lost_history:
                continue
            try:
                version, rows = self._recomputer.refresh(view, lambda *_: None)
                log.warning(
                    "view %s lost history and was read anew: %d rows changed, version %d",
                    view.name,
                    rows,
                    version,
                )
            except SourceUnavailableError as error:
                log.warning("view %s cannot be read anew yet: %s", view.name, error)
            except LockstepError as error:
                log.error("view %s cannot be read anew: %s", view.name, error)
                view.lost_history = False
            except Exception as error:
                self._state.write_failed(error)

    def _exists(self, name: str) -> bool:
        return name in self.views or name in self._state.detached or name in self._refused_configured

    def _attach(self, stored: StoredView) -> None:
        spec = spec_from_json(stored.spec)
        newest = self.warehouse.newest(stored.name)
        resume_from = self.warehouse.resume_from(stored.name)
        view = MaintainedView(spec, self.explain(spec), newest.version, newest.vector, resume_from)
        if not view.plan.query.schema.equals(stored.schema):
            raise SchemaChangedError(f"the columns of view {stored.name!r} are no longer what they were")
        self._register(view)
        self._state.detached.pop(stored.name, None)
        log.info("view %s resumed at version %d", view.name, view.version)

    def _register(self, view: MaintainedView) -> None:
        with self.changed:
            self.views[view.name] = view
            self.changed.notify_all()
        self._state.follow(view)

    def _catalogs(self, spec: ViewSpecConfig) -> dict[str, Catalog]:
        """The catalogs of all sources a view may name; only those it does name must answer."""
        found: dict[str, Catalog] = {}
        missing: dict[str, LockstepError] = {}
        # A source that its text does not even mention need not be waited for.
        mentioned = {name: channel for name, channel in self.channels.items() if name in spec.sql}
        for source, channel in (mentioned or self.channels).items():
            try:
                found[source] = channel.describe().catalog
            except LockstepError as error:
                missing[source] = error
        if missing:
            try:
                decomposed(spec, found, self._capabilities)
            except ViewDefinitionError:
                for source, problem in missing.items():
                    if f"{source}." in spec.sql or f'"{source}"' in spec.sql:
                        raise problem from None
        return found

    def explain(self, spec: ViewSpecConfig) -> Decomposition:
        """A view in parts, as it would be kept; raises as `create_view` would."""
        return decomposed(spec, self._catalogs(spec), self._capabilities)

    def promise(self, spec: ViewSpecConfig, decomposition: Decomposition) -> Promise:
        """By what a view is kept, and the level that follows from what its sources can do now."""
        return promise(spec, choose(spec, decomposition), decomposition.sources, self._capabilities)

    @property
    def _capabilities(self) -> dict[str, Capabilities]:
        """What the capture of each source can do, as far as it has said so."""
        return {
            source: channel.capabilities
            for source, channel in self.channels.items()
            if channel.capabilities is not None
        }

    def create_view(self, spec: ViewSpecConfig, progress: Progress) -> MaintainedView:
        """Decompose, load and start to keep a view. If anything fails, nothing is left of it."""
        _check_name(spec.name)
        if spec.max_batch < 0:
            raise ConfigurationError(f"max_batch is {spec.max_batch}; 0 means the mediator's value")
        with self.changed:
            if spec.name in self.views or spec.name in self._creating or spec.name in self._state.detached:
                raise AlreadyExistsError(f"view {spec.name!r} exists already")
            self._creating.add(spec.name)
        try:
            progress("plan", "", 0, None)
            decomposition = self.explain(spec)
            for source in decomposition.sources:
                self.channels[source].wait_connected(ATTACH_SECONDS)
            with (
                self._state.acknowledgements_held(),
                loaded_extents(decomposition.local_views, self.channels, progress) as loaded,
            ):
                progress("join", "", 0, None)
                directory = self.warehouse.stage_directory(spec.name)
                extents = [Extent(files=loaded.files[local.name]) for local in decomposition.local_views]
                change = self._state.engine.extent(decomposition.assembly, extents, directory)
                progress("store", "", 0, None)
                version = VersionRow(0, "", Position(0), loaded.vector, now())
                schema = decomposition.assembly.schema
                state = change.table if change.table is not None else list(change.files)
                self.warehouse.create_view(
                    spec.name, spec_to_json(spec), schema, state, version, decomposition.hidden
                )
                view = MaintainedView(spec, decomposition, 0, loaded.vector)
                self._register(view)
            progress("done", "", 0, None)
            return view
        finally:
            with self.changed:
                self._creating.discard(spec.name)

    def drop_view(self, name: str) -> None:
        """End a view and remove its data."""
        self.warehouse.view(name)
        with self.changed:
            view = self.views.pop(name, None)
            self._state.detached.pop(name, None)
            self._refused_configured.add(name)
        if view is not None:
            for local in view.local_views:
                self.channels[local.source].drop(local.name)
            with view.installing:
                self.warehouse.drop_view(name)
        else:
            self.warehouse.drop_view(name)
        with self.changed:
            self.changed.notify_all()

    def view(self, name: str) -> MaintainedView:
        """The view of that name, if it is being kept."""
        with self.changed:
            found = self.views.get(name)
        if found is None:
            self.warehouse.view(name)
            raise SourceUnavailableError(f"view {name!r} is readable but not kept now: {self.problem(name)}")
        return found

    def problem(self, name: str) -> str:
        """Why a view is not kept now; empty if it is."""
        view = self.views.get(name)
        return view.problem if view is not None else self._state.detached.get(name, "")

    @property
    def commit_seconds(self) -> Distribution:
        """How long commits to the warehouse took."""
        return self._state.commit_seconds

    def views_of(self, sql: str) -> set[str]:
        """The views that a query reads; raises as the query would."""
        return set(views_in(sql, [stored.name for stored in self.warehouse.views()]).values())

    def away(self, name: str) -> tuple[Sequence[str], datetime | None]:
        """The sources of a stored view that are away, and since when the first of them is."""
        away = {
            source: since
            for source in self.warehouse.newest(name).vector
            if source in self.channels and (since := self.channels[source].away_since) is not None
        }
        return sorted(away), min(away.values(), default=None)

    def fixed_version(self, sql: str, version: int) -> dict[str, int]:
        """Which view a query with `as_of` reads at that version; it must read exactly one."""
        views = self.views_of(sql)
        if len(views) != 1:
            raise ViewDefinitionError(f"--as-of needs a query over one view, not {len(views)}")
        return {views.pop(): version}

    # Updates arrive

    def _deliver(self, update: SourceUpdate) -> None:
        """Log an update into the UMQ of every view it touches. Called by channels, in order per source."""
        with self.changed:
            deliveries = [next(self._deliveries) for _ in update.positions]
            for view in self.views.values():
                deltas = {
                    view.node_of[name]: delta
                    for name, delta in update.deltas.items()
                    if name in view.node_of and update.subscriptions[name] == view.subscription
                }
                if deltas and view.queue.log_update(
                    update.source,
                    update.positions,
                    update.batched,
                    deliveries,
                    update.observed_at,
                    deltas,
                    update.marks,
                ):
                    view.delivered()
            self.changed.notify_all()

    def _view_failed(self, local_view: str, error: LockstepError) -> None:
        with self.changed:
            failed = [view for view in self.views.values() if local_view in view.node_of]
        for view in failed:
            self._state.pause(view, error)

    # Upkeep, verify and refresh

    def _keep(self) -> None:
        """Look after the warehouse's files, beside everything else."""
        while not self._state.stopped.wait(UPKEEP_SECONDS):
            try:
                self.warehouse.maintain()
            except Exception as error:
                log.error("upkeep of the warehouse failed and will be tried again: %s", error)

    def verify_view(self, name: str, progress: Progress) -> Verification:
        """Recompute a view at its current vector and compare; the view holds still meanwhile."""
        return self._recomputer.verify(self.view(name), progress)

    def refresh_view(self, name: str, progress: Progress) -> tuple[int, int]:
        """Read a view's sources again and install the difference as one version: (version, rows changed)."""
        if name not in self.views:
            self._attach(self.warehouse.view(name))
        return self._recomputer.refresh(self.view(name), progress)


def _check_name(name: str) -> None:
    if not name or len(name) > 200 or any(ord(c) < 32 for c in name) or "/" in name:
        raise ConfigurationError(f"{name!r} is not a usable view name")
