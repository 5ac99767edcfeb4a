"""Table 1 of the SWEEP paper, measured: every algorithm, for more sources and for more concurrency.

A scenario is a chain of n relations with keys, each in a source of its own, and for the algorithms that need
it, all in one. Every algorithm gets the same transactions, and schedules drawn from the same seeds with the
same bias. How much concurrency a bias makes is measured, not assumed: it is how many updates arrive while a
query is unanswered.

Reference: SWEEP paper, Table 1; Strobe paper, section 6 and Figure 2.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from algebra import consistency
from algebra.consistency import Level
from lab.generate import chain
from lab.history import Action, Asked, Committed, History, Kind, Received, Replied, State
from lab.oracle import judge
from lab.schedules import concurrency_bias, random_schedule
from lab.simulator import Simulator
from lab.world import World
from mediator.maintenance import ALGORITHMS

SOURCES = (2, 3, 4, 5, 6)
COMMITS = (0.01, 0.2, 1.0, 5.0)
"""How much likelier a commit is than any other action: from one update at a time to all of them at once."""
MIDDLE_SOURCES, MIDDLE_COMMITS = 4, 1.0
"""Where one of the two is varied, the other is held here."""


@dataclass
class Cell:
    """One algorithm at one number of sources and one bias: sums over all its schedules."""

    levels: Counter[Level] = field(default_factory=Counter)
    updates: int = 0
    queries: int = 0
    compensating: int = 0
    size: int = 0
    """Bytes of queries and answers, as Arrow holds the rows."""
    concurrent: int = 0
    """Updates that arrived while a query was unanswered, summed over queries."""
    waited: int = 0
    """The most updates that waited at once to be reflected, summed over schedules."""

    @property
    def schedules(self) -> int:
        return self.levels.total()

    @property
    def queries_per_update(self) -> float:
        return self.queries / self.updates if self.updates else 0.0

    @property
    def concurrency(self) -> float:
        """Updates that arrive while a query is unanswered, on average."""
        return self.concurrent / self.queries if self.queries else 0.0

    def add(self, history: History) -> None:
        """Take in one run."""
        self.levels[judge(history).level] += 1
        counts = history.counts()
        self.updates += counts.updates
        self.queries += counts.queries
        self.size += counts.query_bytes + counts.answer_bytes
        open_: dict[int, int] = {}
        received = reflected = most = 0
        for event in (event for events in history.events for event in events):
            match event:
                case Asked(query=query):
                    open_[id(event)] = 0
                    self.compensating += query.compensates
                case Received(message=Committed()):
                    received += 1
                    most = max(most, received - reflected)
                    open_ = {query: seen + 1 for query, seen in open_.items()}
                case Received(message=Replied(asked=asked)):
                    self.concurrent += open_.pop(id(asked), 0)
                case State(vector=vector):
                    reflected = sum(vector)
        self.waited += most

    def plus(self, other: Cell) -> Cell:
        sums = (a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        return Cell(*sums)


Key = tuple[str, int, float]
"""(algorithm, sources, commits)"""


@dataclass(frozen=True)
class Plan:
    """What to run; the same plan always gives the same runs."""

    algorithms: Sequence[str] = tuple(ALGORITHMS)
    sources: Sequence[int] = SOURCES
    commits: Sequence[float] = COMMITS
    schedules: int = 20
    transactions: int = 8
    seed: int = 0
    kind: consistency.Scenario = consistency.Scenario.SINGLE_UPDATE

    @property
    def runs(self) -> int:
        return len(self.algorithms) * len(self.sources) * len(self.commits) * self.schedules


def measure(plan: Plan) -> Iterator[tuple[Key, History]]:
    """Every run of a plan."""
    for sources in plan.sources:
        for number in range(plan.schedules):
            seed = f"{plan.seed}/{sources}/{number}"
            for name in plan.algorithms:
                world = World(chain(random.Random(seed), name, sources, plan.transactions, plan.kind))
                for commits in plan.commits:
                    rnd = random.Random(f"{seed}/{commits}")
                    yield (name, sources, commits), random_schedule(world, rnd, concurrency_bias(commits))


class Table:
    """What a plan's runs gave, cell by cell."""

    def __init__(self) -> None:
        self.cells: dict[Key, Cell] = {}

    def add(self, key: Key, history: History) -> None:
        self.cells.setdefault(key, Cell()).add(history)

    def of(self, algorithm: str) -> Cell:
        """All cells of an algorithm together."""
        total = Cell()
        for (name, _, _), cell in self.cells.items():
            if name == algorithm:
                total = total.plus(cell)
        return total

    def by_sources(self, algorithm: str) -> Mapping[int, Cell]:
        """At the middle bias, for each number of sources."""
        return {n: c for (name, n, w), c in self.cells.items() if (name, w) == (algorithm, MIDDLE_COMMITS)}

    def by_commits(self, algorithm: str) -> Mapping[float, Cell]:
        """At the middle number of sources, for each bias."""
        return {w: c for (name, n, w), c in self.cells.items() if (name, n) == (algorithm, MIDDLE_SOURCES)}


def never_quiet(name: str, seed: int, sources: int = 3, transactions: int = 80) -> tuple[int, int]:
    """(versions that appeared, updates) while the sources never paused.

    Before each answer up to three updates arrive, until another query is unanswered too. An algorithm that
    needs quiescence shows nothing until the last update; one that does not keeps up.
    """
    rnd = random.Random(seed)
    world = World(chain(rnd, name, sources, transactions, consistency.Scenario.SINGLE_UPDATE))
    simulator = Simulator(world)
    while _enabled(simulator, Kind.COMMIT):
        for _ in range(3):
            if len(_enabled(simulator, Kind.ANSWER)) > 1:
                break
            if commits := _enabled(simulator, Kind.COMMIT):
                simulator.do(rnd.choice(commits))
            _receive_all(simulator)
        if answers := _enabled(simulator, Kind.ANSWER):
            simulator.do(answers[0])
            _receive_all(simulator)
    return len(simulator.history.states) - 1, sum(world.last)


def _enabled(simulator: Simulator, kind: Kind) -> list[Action]:
    return [action for action in simulator.enabled() if action.kind is kind]


def _receive_all(simulator: Simulator) -> None:
    while arrived := _enabled(simulator, Kind.RECEIVE):
        simulator.do(arrived[0])
