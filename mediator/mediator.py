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
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial

from algebra.decompose import Decomposition
from algebra.engines.contract import Extent
from algebra.errors import (
    INTERNAL_ERROR,
    AlreadyExistsError,
    ConfigurationError,
    LockstepError,
    NotFoundError,
    SchemaChangedError,
    SourceUnavailableError,
    StorageError,
    ViewDefinitionError,
)
from algebra.position import Position
from algebra.schema import Catalog
from mediator.backoff import Backoff, Retries
from mediator.channel import SourceChannel
from mediator.config import MediatorConfig, ViewSpecConfig
from mediator.consistency import Promise, choose, promise
from mediator.engines import create_engine
from mediator.lanes import Lanes
from mediator.loader import Progress, loaded_extents
from mediator.maintainer import Maintainer
from mediator.recompute import Recomputer, Verification
from mediator.reported_views import SourceUpdate
from mediator.state import MediatorState
from mediator.storage_errors import disk_problem, storage_error, without_place
from mediator.views import MaintainedView, decomposed, spec_from_json, spec_to_json
from mediator.warehouse.client_query import QueryLimits
from mediator.warehouse.records import VersionRow
from mediator.warehouse.warehouse import Warehouse
from protos.convert import now
from protos.lockstep.v1.types_pb2 import Capabilities
from protos.metrics import Distribution
from protos.security.settings import PLAIN

log = logging.getLogger(__name__)

ATTACH_SECONDS = 10.0
UPKEEP_SECONDS = 15.0
RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0

OwnAct = Callable[[str, str, LockstepError | None], None]
"""Takes what was done, to which view, and why it failed if it did."""


class Mediator:
    """Keeps views. Every public method may be called from any thread."""

    def __init__(self, config: MediatorConfig) -> None:
        self.config = config
        self.started_at = now()
        limits = QueryLimits(
            config.query_seconds, config.query_memory, config.query_disk, config.query_processes
        )
        self.warehouse = Warehouse(config.warehouse, query_limits=limits)
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
                config.credit_rows,
                config.keepalive_seconds,
                connection=config.connections.get(source, PLAIN),
                assembled_rows=config.assembled_rows,
            )
            for source, address in config.sources.items()
        }
        self._state = MediatorState(config, self.warehouse, engine, self.channels)
        self.views = self._state.views
        self.changed = self._state.changed
        self._lanes = Lanes("attach", self._state.stopped)
        self._joining = threading.Lock()
        """Held for each join of what the mediator makes by itself: it may take the memory of whole views."""
        self._refused_configured: set[str] = set()
        """Configured views that cannot be made, or were dropped: they are not tried again."""
        self._retries = Retries(lambda: Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS))
        """Views that the disk did not take."""
        self._waiting: dict[str, str] = {}
        """Configured views whose sources do not answer yet, and what was logged about them."""
        self._deliveries = itertools.count(1)
        self._on_failure: Callable[[], None] = lambda: None
        self._on_own_act: OwnAct = lambda *_: None
        self._recomputer = Recomputer(self._state, self.explain)
        work = {
            "maintenance": Maintainer(self._state).run,
            "upkeep": self._keep,
            "attach": self._attach_views,
        }
        self._threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in work.items()]

    def start(self) -> None:
        self._find_detached()
        for channel in self.channels.values():
            channel.start()
        for thread in self._threads:
            thread.start()

    def on_failure(self, tell: Callable[[], None]) -> None:
        """Have someone told that the engine has ended: nothing but a new process helps."""
        self._on_failure = tell

    def on_own_act(self, tell: OwnAct) -> None:
        """Have someone told what the mediator does by itself, because its configuration says so."""
        self._on_own_act = tell

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
        """Rows of updates that wait in memory, over all views, as credit counts them."""
        return self._state.waiting_rows

    @property
    def detached(self) -> list[str]:
        """Stored views that could not be taken up yet."""
        return list(self._state.detached)

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
        """Take up stored views, and create configured ones, as soon as their sources answer.

        Each may wait for a source for as long as that does not answer, so only views of the same sources wait
        for each other.
        """
        while not self._state.stopped.is_set():
            try:
                self._find_detached()
            except Exception as error:
                log.error("stored views cannot be taken up, and will be tried again: %s", error)
            self._lanes.begin(self._due())
            if failure := self._state.engine.failure():
                log.critical("the mediator ends, start it again: %s; its views go on from there", failure)
                self._on_failure()
                break
            self._state.stopped.wait(0.5)
        self._lanes.join()

    def _due(self) -> dict[Hashable, list[Callable[[], None]]]:
        """What is to be taken up, made and read anew, by the kind of work and the sources it waits for."""
        due: dict[Hashable, list[Callable[[], None]]] = {}
        for name in list(self._state.detached):
            sources = frozenset(self._stored_sources(name))
            due.setdefault(("attach", sources), []).append(partial(self._try_attach, name))
        for spec in self.config.views:
            if not self._exists(spec.name):
                sources = frozenset(self._mentioned(spec))
                due.setdefault(("create", sources), []).append(partial(self._try_create, spec))
        if self.config.on_lost_history == "resync":
            for view in list(self.views.values()):
                if view.lost_history:
                    sources = frozenset(view.sources)
                    due.setdefault(("refresh", sources), []).append(partial(self._try_refresh, view))
        return due

    def _stored_sources(self, name: str) -> Collection[str]:
        """The sources of a stored view; none if it was dropped, which is noticed when it is taken up."""
        try:
            return self.warehouse.newest(name).vector
        except NotFoundError:
            return ()

    @contextmanager
    def _joined_in_turn(self) -> Iterator[Progress]:
        """For what the mediator makes by itself: sources are waited for side by side, joins come in turn."""
        with ExitStack() as stack:

            def progress(phase: str, *_: object) -> None:
                if phase == "join":
                    stack.enter_context(self._joining)

            yield progress

    def _try_attach(self, name: str) -> None:
        """Take up a stored view, or note why it cannot be."""
        try:
            self._attach(name)
        except NotFoundError:
            with self.changed:
                self._state.detached.pop(name, None)
        except Exception as error:
            problem = self._as_known(error)
            # Whoever may read the view is told, and need not know where the warehouse lies.
            stored = isinstance(problem, StorageError)
            told = without_place(problem.message) if stored else problem.message
            with self.changed:
                if self._state.detached.get(name, told) == told:
                    return  # told before, or it was dropped meanwhile
                self._state.detached[name] = told
            if problem is not error or stored:
                log.error("view %s cannot be taken up, and is tried again", name, exc_info=error)

    def _try_create(self, spec: ViewSpecConfig) -> None:
        """Create a configured view; what its sources or its disk do not allow yet will be tried again."""
        if self._exists(spec.name) or not self._retries.is_due(spec.name):
            return
        try:
            with self._joined_in_turn() as progress:
                self.create_view(spec, progress)
            log.info("view %s created", spec.name)
            self._retries.succeeded(spec.name)
            self._on_own_act("create", spec.name, None)
            return
        except Exception as error:
            if self.stopping:
                return  # the connections to the sources are closed: that says nothing about the view
            problem = self._as_known(error)
            if problem is not error and not isinstance(problem, StorageError):
                log.error("view %s: unexpected error", spec.name, exc_info=error)
        if isinstance(problem, StorageError):
            self._retries.failed(spec.name)  # each attempt reads the sources
        if isinstance(problem, SourceUnavailableError | StorageError):
            if self._waiting.get(spec.name) != problem.message:
                log.warning("view %s not created yet: %s", spec.name, problem)
            self._waiting[spec.name] = problem.message
            return
        log.error("view %s cannot be created: %s", spec.name, problem)
        self._state.detached.pop(spec.name, None)
        self._refused_configured.add(spec.name)
        self._on_own_act("create", spec.name, problem)

    def _as_known(self, error: Exception) -> LockstepError:
        """What made work on a view fail, as an error of ours."""
        if isinstance(error, LockstepError):
            return error
        found = storage_error(error, str(self.warehouse.root))
        return found or LockstepError(INTERNAL_ERROR)

    def _try_refresh(self, view: MaintainedView) -> None:
        """Refresh a view whose sources have lost the history that it needs."""
        if not view.lost_history or not self._retries.is_due(view.name):
            return
        if not self._state.keeps(view):
            return  # dropped while others were read
        try:
            with self._joined_in_turn() as progress:
                version, rows = self._recomputer.refresh(view, progress)
            log.info("view %s was read anew: %d rows changed, version %d", view.name, rows, version)
            self._retries.succeeded(view.name)
            self._on_own_act("refresh", view.name, None)
        except Exception as error:
            if self.stopping:
                return  # the connections to the sources are closed: that says nothing about the view
            match error:
                case SourceUnavailableError():
                    log.warning("view %s cannot be read anew yet: %s", view.name, error)
                case StorageError():
                    self._storage_failed(view.name, error)
                case LockstepError():
                    log.error("view %s cannot be read anew: %s", view.name, error)
                    view.lost_history = False
                    self._on_own_act("refresh", view.name, error)
                case _:
                    self._storage_failed(view.name, error)

    def _storage_failed(self, name: str, error: Exception) -> None:
        """A view could not be stored; it is tried again, not at once: each attempt reads the sources."""
        self._state.write_failed(error)
        self._retries.failed(name)

    def _exists(self, name: str) -> bool:
        with self.changed:  # it may be on its way from one to the other
            return name in {*self.views, *self._state.detached, *self._refused_configured}

    def _find_detached(self) -> None:
        """Stored views that nobody keeps: at the start, and those whose making or dropping broke half-way."""
        stored = [view.name for view in self.warehouse.views()]
        with self.changed:
            known = {*self.views, *self._state.detached, *self._state.changing}
            for name in stored:
                if name not in known:
                    self._state.detached[name] = "waiting for its sources"

    def _attach(self, name: str) -> None:
        """Take up a stored view, unless somebody else does or drops it."""
        if name not in self._state.detached:
            return
        stored = self.warehouse.view(name)
        spec = spec_from_json(stored.spec)
        newest = self.warehouse.newest(name)
        resume_from = self.warehouse.resume_from(name)
        view = MaintainedView(spec, self.explain(spec), newest.version, newest.vector, resume_from)
        if not view.plan.query.schema.equals(stored.schema):
            raise SchemaChangedError(f"the columns of view {name!r} are no longer what they were")
        with self.changed:
            if self._state.detached.pop(name, None) is None:
                return
            self._register(view)
        log.info("view %s resumed at version %d", view.name, view.version)

    def _register(self, view: MaintainedView) -> None:
        with self.changed:
            self.views[view.name] = view
            self._state.follow(view)
            self.changed.notify_all()

    def _catalogs(self, spec: ViewSpecConfig) -> dict[str, Catalog]:
        """The catalogs of all sources a view may name; only those it does name must answer."""
        found: dict[str, Catalog] = {}
        missing: dict[str, LockstepError] = {}
        for source in self._mentioned(spec):
            try:
                found[source] = self.channels[source].describe().catalog
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

    def _mentioned(self, spec: ViewSpecConfig) -> list[str]:
        """The sources that a view may name: what its text does not even mention need not be waited for."""
        return [name for name in self.channels if name in spec.sql] or list(self.channels)

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
            if spec.name in {*self.views, *self._state.changing, *self._state.detached}:
                raise AlreadyExistsError(f"view {spec.name!r} exists already")
            self._state.changing.add(spec.name)
        try:
            progress("plan", "", 0, None)
            decomposition = self.explain(spec)
            for source in decomposition.sources:
                self.channels[source].wait_connected(ATTACH_SECONDS)
            with (
                self._state.acknowledgements_held(decomposition.sources),
                loaded_extents(
                    decomposition.local_views, self.channels, progress, self.config.extent_rows
                ) as loaded,
            ):
                progress("join", "", 0, None)
                extents = [Extent(files=loaded.files[local.name]) for local in decomposition.local_views]
                directory = self.warehouse.stage_directory(spec.name)
                try:
                    change = self._state.engine.extent(decomposition.assembly, extents, directory)
                    if not change.files:
                        self.warehouse.discard(directory)
                    progress("store", "", 0, None)
                    version = VersionRow(0, "", Position(0), loaded.vector, now())
                    schema = decomposition.assembly.schema
                    state = change.table if change.table is not None else list(change.files)
                    self.warehouse.create_view(
                        spec.name, spec_to_json(spec), schema, state, version, decomposition.hidden
                    )
                except BaseException:
                    # It may be visible all the same: then it is taken up like any stored view. If not, what
                    # was written must not take the space that others need.
                    for tidy_up in (partial(self.warehouse.discard, directory), self.warehouse.recover):
                        with suppress(Exception):
                            tidy_up()
                    raise
                self._state.storage_works()
                view = MaintainedView(spec, decomposition, 0, loaded.vector)
                self._register(view)
            progress("done", "", 0, None)
            return view
        finally:
            with self.changed:
                self._state.changing.discard(spec.name)

    def drop_view(self, name: str) -> None:
        """End a view and remove its data."""
        self.warehouse.view(name)
        with self.changed:
            if name in self._state.changing:
                raise SourceUnavailableError(f"view {name!r} is being made or dropped right now")
            self._state.changing.add(name)
            view = self.views.pop(name, None)
            self._state.detached.pop(name, None)
            self._refused_configured.add(name)
            for local in view.local_views if view is not None else ():
                self.channels[local.source].drop(local.name)
        try:
            with view.installing if view is not None else nullcontext():
                self.warehouse.drop_view(name)
        finally:
            # If that failed, it is found as a stored view that nobody keeps, and taken up again.
            with self.changed:
                self._state.changing.discard(name)
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

    def away(self, name: str) -> tuple[Sequence[str], datetime | None]:
        """The sources of a stored view that do not answer, and since when the first of them does not."""
        kept = self.views.get(name)
        owing = kept.owing if kept is not None else {}
        away = dict(owing) | {
            source: since
            for source in self.warehouse.newest(name).vector
            if source in self.channels and (since := self.channels[source].away_since) is not None
        }
        return sorted(away), min(away.values(), default=None)

    # Updates arrive

    def _deliver(self, update: SourceUpdate) -> None:
        """Log an update into the UMQ of every view it touches, or of none: then it comes again.

        Called by channels, in order per source.
        """
        with self.changed:
            deliveries = [next(self._deliveries) for _ in update.positions]
            # All that may fail comes first.
            runs = [(view, view.run_of(update, deliveries)) for view in self.views.values()]
            for view, run in runs:
                if run is not None:
                    view.log_update(run)
            self.changed.notify_all()

    def _view_failed(self, local_view: str, subscription: int, error: LockstepError) -> None:
        """Pause the view whose local view that is; but what was defined anew since is heard of by itself."""
        with self.changed:
            for view in self.views.values():
                if local_view in view.node_of and view.subscription == subscription:
                    self._state.pause(view, error)

    # Upkeep, verify and refresh

    def _keep(self) -> None:
        """Look after the warehouse's files, beside everything else."""
        told = ""
        while not self._state.stopped.wait(UPKEEP_SECONDS):
            try:
                self.warehouse.maintain()
            except Exception as error:
                # What the disk says may name another file each time.
                problem = disk_problem(error) or str(error)
                if problem != told:
                    line = storage_error(error, str(self.warehouse.root)) or error
                    log.error("upkeep of the warehouse failed and will be tried again: %s", line)
                told = problem
                continue
            if told:
                log.info("upkeep of the warehouse works again, after: %s", told)
            told = ""

    def verify_view(self, name: str, progress: Progress) -> Verification:
        """Recompute a view at its current vector and compare; the view holds still meanwhile."""
        return self._recomputer.verify(self.view(name), progress)

    def refresh_view(self, name: str, progress: Progress) -> tuple[int, int]:
        """Read a view's sources again and install the difference as one version: (version, rows changed)."""
        if name not in self.views:
            self._attach(name)
        return self._recomputer.refresh(self.view(name), progress)


def _check_name(name: str) -> None:
    if not name or len(name) > 200 or any(ord(c) < 32 for c in name) or "/" in name:
        raise ConfigurationError(f"{name!r} is not a usable view name")
