"""Every algorithm for real: wrappers, mediator and databases as separate processes, writers side by side.

A scenario of the lab is acted out on SQLite and DuckDB, with a view for each algorithm over the same sources.
What each view went through is judged by the lab's oracle, which looks at the states alone.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from algebra import consistency
from algebra.consistency import Level
from algebra.global_transaction import GlobalTransaction
from integration_tests.client import Client
from integration_tests.processes import LockstepProcess
from integration_tests.stores import Database, connect
from lab.generate import generate
from lab.history import State
from lab.oracle import judge_states
from lab.scenario import Change, Scenario, Source
from lab.world import World, contents
from mediator.maintenance import ALGORITHMS
from mediator.maintenance.contract import Maintenance

PATIENCE = 240.0
SINGLE = {name for name, maintenance in ALGORITHMS.items() if maintenance.single_source}
SEVERAL = set(ALGORITHMS) - SINGLE


def scenario(seed: int, algorithm: str, kind: consistency.Scenario, sources: int) -> Scenario:
    """A scenario with keys in every relation, and one local view per source."""
    rnd = random.Random(seed)
    while True:
        made = generate(rnd, algorithm, sources=sources, transactions=18, kind=kind)
        nodes = made.decomposition.local_views
        keyed = all(relation.key for source in made.sources for relation in source.relations)
        busy = all(source.transactions for source in made.sources)
        if keyed and busy and (made.maintenance.single_source or len(nodes) == len(made.sources)):
            return made


class Actor:
    """One source's application: its tables, and its transactions when it is told to begin."""

    def __init__(self, source: Source, kind: str, path: Path, seed: int) -> None:
        self._source, self._kind, self._path = source, kind, str(path)
        self._random = random.Random(seed)
        with ExitStack() as stack:
            database = self._connected(stack)
            for relation in source.relations:
                columns = ", ".join(f'"{c.name}" BIGINT NOT NULL' for c in relation.columns)
                key = ", ".join(f'"{name}"' for name in relation.key)
                database.execute(f'CREATE TABLE "{relation.name}" ({columns}, PRIMARY KEY ({key}))')
            for change in source.rows:
                self._apply(database, change)

    def _connected(self, stack: ExitStack) -> Database:
        database = connect(self._kind, self._path)
        stack.callback(database.close)
        return database

    def _apply(self, database: Database, change: Change) -> None:
        if change.count > 0:
            marks = ", ".join("?" * len(change.row))
            database.execute(f'INSERT INTO "{change.relation}" VALUES ({marks})', change.row)
        else:
            database.execute(f'DELETE FROM "{change.relation}" WHERE k = ?', change.row[:1])

    def _mark(self, database: Database, whole: GlobalTransaction) -> None:
        row = (whole.id, ",".join(sorted(whole.participants)))
        database.execute("INSERT INTO _lockstep_global (id, participants) VALUES (?, ?)", row)

    def act(self) -> None:
        """All transactions, at an application's pace."""
        pause = threading.Event()
        for transaction in self._source.transactions:
            with ExitStack() as stack:
                database = self._connected(stack)
                database.execute("BEGIN IMMEDIATE" if self._kind == "sqlite" else "BEGIN")
                for change in transaction.changes:
                    self._apply(database, change)
                if transaction.part_of is not None:
                    self._mark(database, transaction.part_of)
                database.execute("COMMIT")
            pause.wait(self._random.choice((0, 0, 0.02, 0.1)))


class Stage:
    """A scenario's sources with their wrappers, and a mediator."""

    def __init__(self, stack: ExitStack, directory: Path, played: Scenario) -> None:
        self.scenario = played
        kinds = ["sqlite", "sqlite", "duckdb"]
        self.actors = []
        lines = ["mediator: {listen: '127.0.0.1:0', warehouse: ./warehouse, engine: duckdb}", "sources:"]
        for i, source in enumerate(played.sources):
            kind = kinds[i % len(kinds)]
            path = directory / f"{source.name}.{kind}"
            self.actors.append(Actor(source, kind, path, seed=i))
            lines.append(
                f"  {source.name}: {{adapter: {kind}, url: '{kind}:///{path}', listen: '127.0.0.1:0'}}"
            )
        file = directory / "lockstep.yaml"
        file.write_text("\n".join(lines))
        wrappers = {s.name: LockstepProcess("wrapper", str(file), "--source", s.name) for s in played.sources}
        addresses: list[str] = []
        for name, wrapper in wrappers.items():
            stack.callback(wrapper.stop)
            addresses += ["--source-address", f"{name}={wrapper.wait_ready()}"]
        self.mediator = LockstepProcess("mediator", str(file), *addresses)
        stack.callback(self.mediator.stop)
        self.client = Client(self.mediator.wait_ready())
        stack.callback(self.client.close)
        self.processes = {"mediator": self.mediator, **wrappers}

    def play(self, algorithms: Sequence[str]) -> dict[str, Level]:
        """Keep a view with each algorithm while all sources act; the level that each one reached."""
        for name in algorithms:
            self.client.create_view(name, self.scenario.view, maintenance=name, force=True)
        with ThreadPoolExecutor(len(self.actors)) as pool:
            for done in [pool.submit(actor.act) for actor in self.actors]:
                done.result()
        total = sum(len(source.transactions) for source in self.scenario.sources)
        until(lambda: all(view.transactions == total for view in self.client.status().views), self)
        for name, process in self.processes.items():
            assert "Traceback" not in process.output, f"{name}:\n{process.output}"
        world = World(replace(self.scenario, algorithm="sweep"))
        levels = {}
        for name in algorithms:
            states = [State(contents(bag), world.origin) for bag in self._states(name)]
            levels[name] = judge_states(world, states).level
        return levels

    def _states(self, view: str) -> Iterator[Counter[tuple[Any, ...]]]:
        """Every version of a view: the first and the last as they are read, the others by their changes."""
        newest, bag = self.client.view(view).version, self.client.bag(view, as_of=0)
        yield +bag
        if newest:
            for version, change in self.client.watch(view, 0):
                bag.update(change)
                yield +bag  # readers are not shown what an anomaly has deleted too often
                if version.version == newest:
                    break
        assert +bag == self.client.bag(view)


def until(reached: Callable[[], bool], stage: Stage) -> None:
    pause, deadline = threading.Event(), time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, f"{stage.client.status().views}\n{stage.mediator.output}"
        pause.wait(0.1)


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Callable[[Scenario], Stage]]:
    with ExitStack() as stack:
        yield lambda played: Stage(stack, tmp_path, played)


def promises(kind: consistency.Scenario, names: set[str]) -> dict[str, Level]:
    def promise(maintenance: Maintenance) -> Level:
        return maintenance.guarantee[kind]

    return {name: promise(ALGORITHMS[name]) for name in sorted(names)}


@pytest.mark.parametrize("seed", range(2))
def test_every_algorithm_keeps_its_promise_over_several_sources(
    staged: Callable[[Scenario], Stage], seed: int
) -> None:
    kind = consistency.Scenario.SOURCE_LOCAL
    promised = promises(kind, SEVERAL)
    reached = staged(scenario(seed, "strobe", kind, 3)).play(list(promised))
    assert {name: level for name, level in reached.items() if level < promised[name]} == {}


def test_the_algorithms_for_one_source_keep_their_promise(staged: Callable[[Scenario], Stage]) -> None:
    kind = consistency.Scenario.SOURCE_LOCAL
    promised = promises(kind, SINGLE)
    reached = staged(scenario(5, "eca-key", kind, 3)).play(list(promised))
    assert {name: level for name, level in reached.items() if level < promised[name]} == {}


def test_global_transactions_are_shown_whole_by_those_that_promise_it(
    staged: Callable[[Scenario], Stage],
) -> None:
    kind = consistency.Scenario.GLOBAL
    promised = promises(kind, SEVERAL)
    reached = staged(scenario(3, "g-strobe", kind, 3)).play(list(promised))
    assert {name: level for name, level in reached.items() if level < promised[name]} == {}
