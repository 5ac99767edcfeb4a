"""Counterexamples: runs that do not reach what they should, as small as they can be made."""

from __future__ import annotations

from algebra.consistency import Level
from lab.history import History
from lab.oracle import judge
from lab.scenario import Scenario
from lab.shrink import shrink


def required(scenario: Scenario) -> Level:
    """The level below which a run is a counterexample; an algorithm that promises nothing has those too."""
    return max(scenario.promise, Level.CONVERGENT)


def counterexample(history: History) -> History:
    """A smallest run that fails as this one does."""
    level = required(history.world.scenario)
    return shrink(history, lambda found: judge(found).level < level)
