"""Checks of a declared view: is it kept as consistent as promised, whatever the schedule?

The view, its algorithm and the schemas of its sources are the user's own; the rows, the transactions and the
network are made up. Nothing is written to a source, and no row of it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from algebra import consistency
from algebra.consistency import Level
from algebra.errors import ConfigurationError
from algebra.schema import Catalog
from algebra.view import DIALECT
from cli import build
from cli.config import Configuration
from lab.experiment import runs
from lab.history import History
from lab.own_view import OwnView
from lab.scenario import Scenario
from mediator.channel import SourceChannel
from mediator.config import ViewSpecConfig
from mediator.consistency import Promise, asked_level, choose, promise
from mediator.views import decomposed
from mediator.wrapper_connection import SourceDescription
from protos.lockstep.v1.types_pb2 import Capabilities
from wrapper.service import capabilities_to_proto


@dataclass(frozen=True)
class Check:
    """A declared view, and what it is to reach under transactions of one kind."""

    view: OwnView
    kind: consistency.Scenario
    kept: Promise

    @property
    def declared(self) -> Level | None:
        """The level that the view's owner asks for."""
        return asked_level(self.view.spec)

    @property
    def promised(self) -> Level:
        """The least of what the algorithm guarantees for such transactions and what the sources allow."""
        return min(self.kept.algorithm.guarantee[self.kind], self._allowed)

    @property
    def _allowed(self) -> Level:
        _, *by_sources = self.kept.bounds
        return min((bound.level for bound in by_sources), default=Level.COMPLETE)

    @property
    def required(self) -> Level:
        """What is promised or declared; at least, the view has to converge."""
        return self._at_least(self.promised)

    def required_of(self, scenario: Scenario) -> Level:
        """What every run of a scenario has to reach; transactions may be simpler than their kind allows."""
        return self._at_least(min(scenario.promise, self._allowed))

    def _at_least(self, promised: Level) -> Level:
        return max(promised, self.declared or Level.NONE, Level.CONVERGENT)

    def histories(self, *, schedules: int, transactions: int, seed: int, faults: bool) -> Iterator[History]:
        """Random schedules of random scenarios of the view; the same seed gives the same runs."""
        return runs(lambda rnd: self.view.world(rnd, transactions, self.kind), schedules, seed, faults)


def check(configuration: Configuration, name: str, kind: consistency.Scenario) -> Check:
    """The check of a view, as the mediator would keep it; refused in the same words as the mediator would."""
    spec = _spec(configuration, name)
    catalogs = {source: Catalog(source) for source in configuration.sources}
    capabilities: dict[str, Capabilities] = {}
    for source in _sources_named(spec.sql, catalogs):
        described = describe(configuration, source)
        catalogs[source], capabilities[source] = described.catalog, described.capabilities
    decomposition = decomposed(spec, catalogs, capabilities)
    maintenance = choose(spec, decomposition)
    if kind is consistency.Scenario.GLOBAL and len(decomposition.sources) < 2:
        raise ConfigurationError(f"view {name!r} has one source only, and {kind} span several")
    kept = promise(spec, maintenance, decomposition.sources, capabilities)
    return Check(OwnView(spec, maintenance, catalogs), kind, kept)


def _spec(configuration: Configuration, name: str) -> ViewSpecConfig:
    if name not in configuration.views:
        known = ", ".join(configuration.views) or "none"
        raise ConfigurationError(f"{configuration.path}: there is no view {name!r}; views: {known}")
    return build.view_spec(name, configuration.views[name])


def _sources_named(sql: str, catalogs: Mapping[str, Catalog]) -> list[str]:
    """The configured sources that a view names; none if its SQL cannot be read, which is reported later."""
    try:
        statements = sqlglot.parse(sql, dialect=DIALECT)
    except SqlglotError:
        return []
    tables = (table for s in statements if s is not None for table in s.find_all(exp.Table))
    return [name for name in dict.fromkeys(t.parts[0].name for t in tables) if name in catalogs]


def describe(configuration: Configuration, source: str) -> SourceDescription:
    """What a source shows and can do: by its adapter, or by its wrapper if that is configured elsewhere."""
    if configuration.sources[source].adapter is not None:
        with closing(build.adapter(configuration, source)) as adapter:
            return SourceDescription(adapter.catalog(), capabilities_to_proto(adapter))
    address = configuration.address(source)
    channel = SourceChannel(source, address, "lab", lambda _: None, lambda *_: None, credit_rows=0)
    try:
        return channel.describe()
    finally:
        channel.stop()
