"""Experiments: many random schedules of many random scenarios, and what they reached and cost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from algebra import consistency
from algebra.consistency import Level
from lab.counterexample import required
from lab.generate import generate
from lab.history import Counts, History
from lab.oracle import check_vectors, judge
from lab.schedules import BIASES, random_schedule
from lab.simulator import Faults
from lab.world import World

_PER_SCENARIO = 3 * len(BIASES)
"""Schedules of each scenario: each bias a few times."""


@dataclass(frozen=True)
class Experiment:
    """What to run. The same experiment always gives the same runs."""

    algorithm: str
    sources: int = 3
    transactions: int = 5
    schedules: int = 500
    seed: int = 0
    kind: consistency.Scenario = consistency.Scenario.SOURCE_LOCAL
    faults: bool = False


@dataclass
class Result:
    """What came of an experiment.

    `broken` counts runs below the promise. `failure` is a counterexample, of the lowest level that occurred.
    `untrue` counts runs in which a version claims a vector that does not give its contents.
    """

    levels: Counter[Level] = field(default_factory=Counter)
    counts: Counts = field(default_factory=Counts)
    broken: int = 0
    untrue: int = 0
    failure: History | None = None
    _lowest: Level | None = None

    @property
    def schedules(self) -> int:
        return self.levels.total()

    @property
    def reached(self) -> Level:
        """The level of every run."""
        return min(self.levels, default=Level.COMPLETE)

    def add(self, history: History) -> None:
        level = judge(history).level
        self.levels[level] += 1
        self.counts = self.counts.plus(history.counts())
        self.untrue += bool(check_vectors(history))
        scenario = history.world.scenario
        self.broken += level < scenario.promise
        if level < required(scenario) and (self._lowest is None or level < self._lowest):
            self.failure, self._lowest = history, level


def histories(experiment: Experiment) -> Iterator[History]:
    """The runs of an experiment."""
    world: World | None = None
    for number in range(experiment.schedules):
        rnd = random.Random(f"{experiment.seed}/{number}")
        if world is None or number % _PER_SCENARIO == 0:
            scenario = generate(
                rnd,
                experiment.algorithm,
                sources=experiment.sources,
                transactions=experiment.transactions,
                kind=experiment.kind,
            )
            world = World(scenario)
        faults = Faults(cuts=rnd.randint(0, 2), restarts=rnd.randint(0, 2)) if experiment.faults else None
        yield random_schedule(world, rnd, BIASES[number % len(BIASES)], faults)


def run(experiment: Experiment) -> Result:
    """All runs of an experiment."""
    result = Result()
    for history in histories(experiment):
        result.add(history)
    return result
