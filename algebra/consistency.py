"""Consistency levels of a view, and the transaction scenarios they are stated for.

Reference: Strobe paper, section 3.1 (scenarios) and section 4.2 (levels).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum


class Level(IntEnum):
    """What the sequence of a view's states promises; each level includes those below it."""

    NONE = 0
    """Nothing: the view may stay wrong."""
    CONVERGENT = 1
    """After the last update, and when all activity has ceased, the view is right."""
    WEAK = 2
    """Every state of the view is the view over some state of each source."""
    STRONG = 3
    """The states of the view follow one serial order of all source transactions; some may be passed over."""
    COMPLETE = 4
    """Every source transaction, in that order, has its own state of the view."""

    def __str__(self) -> str:
        return self.name.lower()


class Scenario(Enum):
    """What sources report as one unit."""

    SINGLE_UPDATE = "single updates"
    """Each transaction inserts or deletes one row."""
    SOURCE_LOCAL = "source-local transactions"
    """A transaction does anything, in one source."""
    GLOBAL = "global transactions"
    """A transaction spans several sources."""

    def __str__(self) -> str:
        return self.value


def by_scenario(single_update: Level, source_local: Level, global_: Level) -> Mapping[Scenario, Level]:
    """What an algorithm promises in each scenario."""
    return {
        Scenario.SINGLE_UPDATE: single_update,
        Scenario.SOURCE_LOCAL: source_local,
        Scenario.GLOBAL: global_,
    }
