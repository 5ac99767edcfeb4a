"""Counterexamples: runs that do not reach what they should, as small as they can be made."""

from __future__ import annotations

from algebra.consistency import Level
from lab.history import History
from lab.oracle import judge
from lab.shrink import shrink


def required(promised: Level) -> Level:
    """The level below which a run is a counterexample; an algorithm that promises nothing has those too."""
    return max(promised, Level.CONVERGENT)


def counterexample(history: History, promised: Level | None = None) -> History:
    """A smallest run that fails as this one does; it is promised what the scenario's algorithm promises."""
    level = required(history.world.scenario.promise if promised is None else promised)
    return shrink(history, lambda found: judge(found).level < level)
