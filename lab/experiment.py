"""Experiments: many random schedules of many random scenarios, and what they reached and cost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from algebra import consistency
from algebra.consistency import Level
from lab.counterexample import counterexample, required
from lab.generate import generate
from lab.history import Counts, History
from lab.oracle import check_vectors, judge
from lab.scenario import Scenario
from lab.schedules import BIASES, random_schedule
from lab.simulator import Faults
from lab.world import World

_PER_SCENARIO = 3 * len(BIASES)
"""Schedules of each scenario: each bias a few times."""


def promise_of(scenario: Scenario) -> Level:
    return scenario.promise


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

    `promise` tells what runs of a scenario are to reach, and `broken` counts those below it. `failure` is a
    counterexample, of the lowest level that occurred. `untrue` counts runs in which a version claims a vector
    that does not give its contents, `changing` those in which the view does not stay as it was.
    """

    promise: Callable[[Scenario], Level] = promise_of
    levels: Counter[Level] = field(default_factory=Counter)
    counts: Counts = field(default_factory=Counts)
    broken: int = 0
    untrue: int = 0
    changing: int = 0
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
        self.changing += any(state.contents != history.states[0].contents for state in history.states)
        promised = self.promise(history.world.scenario)
        self.broken += level < promised
        if level < required(promised) and (self._lowest is None or level < self._lowest):
            self.failure, self._lowest = history, level

    def counterexample(self) -> History | None:
        """A smallest run that fails, if one does."""
        if self.failure is None:
            return None
        return counterexample(self.failure, self.promise(self.failure.world.scenario))


def histories(experiment: Experiment) -> Iterator[History]:
    """The runs of an experiment."""

    def make(rnd: random.Random) -> World:
        return World(
            generate(
                rnd,
                experiment.algorithm,
                sources=experiment.sources,
                transactions=experiment.transactions,
                kind=experiment.kind,
            )
        )

    return runs(make, experiment.schedules, experiment.seed, experiment.faults)


def runs(
    make: Callable[[random.Random], World], schedules: int, seed: int, with_faults: bool
) -> Iterator[History]:
    """Random schedules of worlds that are made at random, several of each."""
    world: World | None = None
    for number in range(schedules):
        rnd = random.Random(f"{seed}/{number}")
        if world is None or number % _PER_SCENARIO == 0:
            world = make(rnd)
        faults = Faults(cuts=rnd.randint(0, 2), restarts=rnd.randint(0, 2)) if with_faults else None
        yield random_schedule(world, rnd, BIASES[number % len(BIASES)], faults)


def run(experiment: Experiment) -> Result:
    """All runs of an experiment."""
    result = Result()
    for history in histories(experiment):
        result.add(history)
    return result
