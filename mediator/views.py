"""A maintained view: its definition in parts, its queue, and how its maintenance is doing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from functools import partial
from typing import Any

from algebra.decompose import Decomposition, decompose
from algebra.errors import ConfigurationError, OrderingViolationError
from algebra.local_view import LocalView
from algebra.plan import SweepPlan
from algebra.position import Position
from algebra.schema import Catalog
from mediator.config import ViewSpecConfig
from mediator.consistency import admit, choose
from mediator.maintenance.contract import Maintenance
from mediator.reported_views import SourceUpdate
from mediator.update_queue import DeliveredRun, UpdateMessageQueue
from protos.convert import now
from protos.lockstep.v1.types_pb2 import Capabilities
from protos.metrics import SIZES, Distribution

RECENT_LAGS = 1000


@dataclass
class ViewCounters:
    """What maintenance has done for a view since the mediator started."""

    batches: int = 0
    transactions: int = 0
    queries: int = 0
    compensations: int = 0
    rows: int = 0
    batch_sizes: Distribution = field(default_factory=lambda: Distribution(SIZES))
    lags: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_LAGS))

    def lag(self, percentile: float) -> float:
        """A percentile of the recent lags, in seconds; 0 without any."""
        ordered = sorted(self.lags)
        return ordered[min(int(len(ordered) * percentile), len(ordered) - 1)] if ordered else 0.0


class MaintainedView:
    """A view that is being kept. The mediator's lock guards `queue`, `version`, `vector` and `problem`.

    Whoever computes or installs a change holds `installing`; verify and refresh hold it too, and so keep
    the version where it is.
    """

    def __init__(
        self,
        spec: ViewSpecConfig,
        decomposition: Decomposition,
        version: int,
        vector: Mapping[str, Position],
        resume_from: Mapping[str, Position] | None = None,
    ) -> None:
        self.spec = spec
        self.version = version
        self.vector = dict(vector)
        self.noted = dict(resume_from or vector)
        """Up to where it has missed nothing, by source, as the warehouse remembers; see `resume_from`."""
        self.problem = ""
        self.lost_history = False
        """It is paused because a source's history is lost: reading the sources anew mends it."""
        self.subscription = 0
        """The number under which its local views are defined; an update with another one is not its own."""
        self.batch_cap = 0
        """Transactions that a batch may take, after one was too large for the engine; 0: no such cap."""
        self.parked = False
        """Its local views are not defined: what its sources do is left in their logs."""
        self.parked_since: datetime | None = None
        """Since when it may lack something because it is parked; None if it is not."""
        self.owing: Mapping[str, datetime] = {}
        """The sources that it is late for: connected, but they do not answer; and since when."""
        self.counters = ViewCounters()
        self.installing = threading.Lock()
        self.epoch = 0
        """Counts how often the view was computed anew: a process of an older epoch has the wrong past."""
        self.on_update: Callable[[DeliveredRun], None] | None = None
        """Told of each run that is queued, with the mediator's lock held; must not fail."""
        self.redefine(decomposition)

    def redefine(self, decomposition: Decomposition) -> None:
        """Take a decomposition, with an empty queue: at first, and when the sources' schemas have changed."""
        self.decomposition = decomposition
        self.maintenance: Maintenance = choose(self.spec, decomposition)
        self.plan = SweepPlan.of(decomposition.assembly)
        self.queue = UpdateMessageQueue(
            self.plan.width, [node.schema for node in self.plan.query.nodes], self.version
        )
        self.epoch += 1
        self.node_of = {local.name: i for i, local in enumerate(decomposition.local_views)}

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def local_views(self) -> tuple[LocalView, ...]:
        return self.decomposition.local_views

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(local.source for local in self.local_views))

    @property
    def resume_from(self) -> dict[str, Position]:
        """From where each source's changes are still needed; what came before may have been trimmed."""
        return {source: max(position, self.noted[source]) for source, position in self.vector.items()}

    def reloaded(
        self,
        version: int,
        vector: Mapping[str, Position],
        resume_from: Mapping[str, Position] | None = None,
    ) -> None:
        """It was read anew: its sources may have another history, so what was noted before says nothing.

        Unless the warehouse still says so: then it is in `resume_from`.
        """
        self.version, self.vector, self.noted = version, dict(vector), dict(resume_from or vector)

    @property
    def is_followed(self) -> bool:
        """Whether what its sources do is queued for it."""
        return not self.problem and not self.parked

    def park(self) -> None:
        """Forget what waits; its sources keep it."""
        waiting = [run.observed_at for run in self.queue.runs]
        self.parked, self.parked_since = True, min([*waiting, self.parked_since or now()])
        self.queue.clear(self.version)
        self.epoch += 1

    def follow(self) -> None:
        """Have its updates queued (again), from its version on."""
        self.queue.clear(self.version)
        self.parked, self.parked_since = False, None

    def run_of(self, update: SourceUpdate, deliveries: Sequence[int]) -> DeliveredRun | None:
        """What an update is to this view, for `log_update`; None if it does not touch it.

        What the view shows already is left out: it may come again, asked for before a commit was noticed.
        """
        deltas = {
            self.node_of[name]: delta
            for name, delta in update.deltas.items()
            if name in self.node_of and update.subscriptions[name] == self.subscription
        }
        if not deltas:
            return None
        run = self.queue.next_run(
            update.source,
            update.positions,
            update.batched,
            deliveries,
            update.observed_at,
            deltas,
            update.marks,
            after=self.vector[update.source],
        )
        last = self.queue.last_position(update.source)
        if run is not None and last is not None and run.positions[0] <= last:
            raise OrderingViolationError(
                f"source {update.source!r} went back from {last} to {run.positions[0]} for view {self.name!r}"
            )
        return run

    def log_update(self, run: DeliveredRun) -> None:
        """Queue a run, and tell the view's process of it. Cannot fail."""
        self.queue.log_update(run)
        if self.on_update is not None:
            self.on_update(run)

    def batch_limit(self, default: int) -> int:
        """How many transactions one batch of this view may take."""
        limit = self.spec.max_batch or default
        limit = min(limit, self.maintenance.max_batch or limit)
        return min(limit, self.batch_cap or limit)


def decomposed(
    spec: ViewSpecConfig, catalogs: Mapping[str, Catalog], capabilities: Mapping[str, Capabilities]
) -> Decomposition:
    """The view in the parts that its algorithm works on; raises if it cannot be kept as declared."""
    in_parts = partial(decompose, spec.name, spec.sql, catalogs, allow_cross_join=spec.allow_cross_join)
    decomposition = in_parts()
    maintenance = choose(spec, decomposition)
    admit(spec, maintenance, decomposition, catalogs, capabilities)
    if maintenance.needs_keys or maintenance.single_source:
        return in_parts(keys=maintenance.needs_keys, per_relation=maintenance.single_source)
    return decomposition


def spec_to_json(spec: ViewSpecConfig) -> dict[str, Any]:
    """The declaration as the warehouse keeps it."""
    return asdict(spec)


def spec_from_json(data: Mapping[str, Any]) -> ViewSpecConfig:
    """The declaration that the warehouse keeps."""
    if unknown := set(data) - {known.name for known in fields(ViewSpecConfig)}:
        names = ", ".join(sorted(unknown))
        raise ConfigurationError(f"this version of Lockstep does not know settings of the view: {names}")
    return ViewSpecConfig(**data)
