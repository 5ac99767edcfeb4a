"""By what algorithm a view is kept, and the consistency level that follows.

Problem. The owner of a view names an algorithm, or the level that is wanted, or neither. What the view gets
depends on the algorithm, on the shape of the view, and on what the capture of each source can tell.

Wrong ways. To promise what the algorithm's paper proves, whatever the sources can do; to accept a view and
give it less than was asked for.

Chosen way. The level is derived: the least of what the algorithm guarantees for source-local transactions
and of what each source allows. Every step of that has a reason in words. A view that asks for more, or for an
algorithm that cannot keep it, is refused in one line that says why and which algorithms can.

Reference: Strobe paper, sections 3.1, 4.2 and 5.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from algebra.consistency import Bound, Boundaries, Level, Scenario, source_bounds
from algebra.decompose import Decomposition
from algebra.errors import ConfigurationError
from algebra.schema import Catalog
from mediator.config import ViewSpecConfig
from mediator.maintenance import ALGORITHMS, algorithm
from mediator.maintenance.contract import Maintenance
from protos.lockstep.v1.types_pb2 import Capabilities

LEVELS = (Level.COMPLETE, Level.STRONG, Level.WEAK, Level.CONVERGENT)
"""What `consistency:` can ask for."""

_CHEAPER = "nested-sweep"
"""Keeps a view that need not be complete with fewer messages."""


@dataclass(frozen=True)
class Promise:
    """What a view is kept by, and the level that it has for that. `named`: its owner chose the algorithm."""

    algorithm: Maintenance
    named: bool
    bounds: tuple[Bound, ...]

    @property
    def level(self) -> Level:
        return min(bound.level for bound in self.bounds)

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(bound.reason for bound in self.bounds)

    @property
    def needs(self) -> tuple[str, ...]:
        """What the algorithm asks of a view."""
        return tuple(needs_of(self.algorithm))


def asked_level(spec: ViewSpecConfig) -> Level | None:
    """The level that a view asks for, if it does."""
    if not spec.consistency:
        return None
    for level in LEVELS:
        if spec.consistency == str(level):
            return level
    raise ConfigurationError(
        f"unknown consistency {spec.consistency!r}; there are: {', '.join(map(str, LEVELS))}"
    )


def choose(spec: ViewSpecConfig, decomposition: Decomposition) -> Maintenance:
    """The algorithm that a view names, else the one for the level that it asks for."""
    asked = asked_level(spec)
    if spec.maintenance:
        return algorithm(spec.maintenance)
    cheaper = ALGORITHMS.get(_CHEAPER)
    one_node_per_source = len(decomposition.sources) == len(decomposition.local_views)
    if cheaper is not None and asked is not None and asked < Level.COMPLETE and one_node_per_source:
        return cheaper
    return algorithm("")


def promise(
    spec: ViewSpecConfig,
    maintenance: Maintenance,
    sources: Iterable[str],
    capabilities: Mapping[str, Capabilities],
) -> Promise:
    """What the view has from its algorithm and its sources, and why; never raises."""
    local = maintenance.guarantee[Scenario.SOURCE_LOCAL]
    gives = f"{maintenance.name} gives {local or 'no'} consistency for {Scenario.SOURCE_LOCAL}"
    for scenario, level in maintenance.guarantee.items():
        if level != local:
            gives += f", {level or 'none'} for {scenario}"
    bounds = [bound for source in sources for bound in _allowed_by(source, capabilities.get(source))]
    return Promise(maintenance, bool(spec.maintenance), (Bound(local, gives), *bounds))


def _allowed_by(source: str, capabilities: Capabilities | None) -> Iterator[Bound]:
    """What the capture of one source allows."""
    if capabilities is None:
        yield Bound(Level.NONE, f"source {source} has not said yet what it can tell of its transactions")
        return
    yield from source_bounds(
        source,
        # A newer wrapper's word that this mediator does not know promises nothing.
        next((known for known in Boundaries if known.value == capabilities.boundaries), Boundaries.BATCHED),
        total_order=capabilities.total_order,
        before_images=capabilities.before_images,
    )


def admit(
    spec: ViewSpecConfig,
    maintenance: Maintenance,
    decomposition: Decomposition,
    catalogs: Mapping[str, Catalog],
    capabilities: Mapping[str, Capabilities],
) -> None:
    """Raise ConfigurationError unless the algorithm can keep the view, and as consistent as it asks for.

    `decomposition` joins relations in their source wherever that is possible. Sources without capabilities
    are not judged.
    """
    known = {source: capabilities[source] for source in decomposition.sources if source in capabilities}
    shape = _Shape.of(decomposition, catalogs, known)
    asked = asked_level(spec)
    able = {
        candidate.name: promise(spec, candidate, known, known).level
        for candidate in ALGORITHMS.values()
        if not candidate.only_by_force and not any(shape.obstacles(candidate))
    }
    enough = [name for name, level in able.items() if asked is None or level >= asked]
    for obstacle in (*shape.obstacles(maintenance), *_unforced(spec, maintenance)):
        raise ConfigurationError(
            f"view {spec.name!r} cannot be kept by {maintenance.name}: {obstacle}; "
            f"algorithms that can: {', '.join(enough or able)}"
        )
    for source, found in known.items():
        if not found.before_images:
            raise ConfigurationError(
                f"view {spec.name!r} cannot be kept: source {source} does not report the old rows of updates "
                "and deletes, and every algorithm needs them"
            )
    has = promise(spec, maintenance, known, known)
    if asked is not None and has.level < asked:
        why = " and ".join(bound.reason for bound in has.bounds if bound.level < asked)
        best = f"no algorithm gives more than {max(able.values())} here"
        raise ConfigurationError(
            f"view {spec.name!r} cannot be {asked}: {why}; "
            + (f"algorithms that can: {', '.join(enough)}" if enough else best)
        )


def needs_of(maintenance: Maintenance) -> Iterator[str]:
    """What an algorithm asks of a view, in words."""
    if maintenance.needs_keys:
        yield "a key of every relation"
    if maintenance.single_source:
        yield "all relations in one source"
    if maintenance.one_node_per_source:
        yield "one local view per source"
    if maintenance.needs_marks:
        yield "sources that report the marks of global transactions"
    if maintenance.only_by_force:
        yield "force, for it is wrong when updates are concurrent"


def _unforced(spec: ViewSpecConfig, maintenance: Maintenance) -> Iterator[str]:
    if maintenance.only_by_force and not spec.force:
        yield "it is wrong when updates are concurrent, and has to be forced (--force, or force: true)"


@dataclass(frozen=True)
class _Shape:
    """What of a view decides which algorithms can keep it.

    `keyless`: relations without a key. `local_views`: how many, by source. `unmarked`: sources that do not
    report the marks of global transactions.
    """

    keyless: tuple[str, ...]
    local_views: Mapping[str, int]
    unmarked: tuple[str, ...]

    @classmethod
    def of(
        cls,
        decomposition: Decomposition,
        catalogs: Mapping[str, Catalog],
        capabilities: Mapping[str, Capabilities],
    ) -> _Shape:
        relations = {
            f"{local.source}.{name}": catalogs[local.source].relation(name)
            for local in decomposition.local_views
            for name in local.relations
        }
        return cls(
            tuple(name for name, schema in relations.items() if not schema.key),
            Counter(local.source for local in decomposition.local_views),
            tuple(source for source, found in capabilities.items() if not found.global_transactions),
        )

    def obstacles(self, maintenance: Maintenance) -> Iterator[str]:
        """Why the algorithm cannot keep a view of this shape."""
        if maintenance.single_source and len(self.local_views) > 1:
            yield f"it needs all relations in one source, and they are in {_listed(self.local_views)}"
        if maintenance.needs_keys and self.keyless:
            have = "has" if len(self.keyless) == 1 else "have"
            yield f"it needs a key of every relation, and {_listed(self.keyless)} {have} none"
        if maintenance.needs_marks and self.unmarked:
            do = "does" if len(self.unmarked) == 1 else "do"
            who = _listed(self.unmarked)
            yield f"it needs the marks of global transactions, and {who} {do} not report them"
        split = {source: number for source, number in self.local_views.items() if number > 1}
        if maintenance.one_node_per_source and split:
            source, number = next(iter(split.items()))
            yield (
                f"it needs one local view per source, and {source} has {number}, for no equality joins "
                "its relations there"
            )


def _listed(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
