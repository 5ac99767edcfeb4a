"""Consistency levels of a view, the transaction scenarios they are stated for, and what a source allows.

Reference: Strobe paper, section 3.1 (scenarios) and section 4.2 (levels).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


class Boundaries(Enum):
    """How well a capture tells one source transaction from the next.

    EXACT: every entry of a run of changes is one source transaction. BATCHED: an entry may hold several
    consecutive transactions, never a part of one (the Strobe paper's source-local transaction). WHERE_KNOWN:
    exact, except for stretches that the adapter marks as batched.
    """

    EXACT = "exact"
    WHERE_KNOWN = "exact where known"
    BATCHED = "batched"


@dataclass(frozen=True)
class Bound:
    """How much consistency something allows, and why."""

    level: Level
    reason: str


def source_bounds(
    source: str, boundaries: Boundaries, *, total_order: bool, before_images: bool
) -> tuple[Bound, ...]:
    """What the capture of one source allows, each bound with its reason; the least of them counts.

    >>> [str(b.level) for b in source_bounds("s", Boundaries.BATCHED, total_order=True, before_images=True)]
    ['strong']
    """
    bounds = []
    if not before_images:
        reason = f"source {source} does not report the old rows of updates and deletes"
        bounds.append(Bound(Level.NONE, reason))
    if not total_order:
        reason = f"source {source} does not report its transactions in commit order: convergent at most"
        bounds.append(Bound(Level.CONVERGENT, reason))
    match boundaries:
        case Boundaries.EXACT:
            bounds.append(Bound(Level.COMPLETE, f"source {source} tells every transaction from the next"))
        case Boundaries.WHERE_KNOWN:
            reason = "tells every transaction from the next, but for stretches marked as batched"
            bounds.append(Bound(Level.COMPLETE, f"source {source} {reason}"))
        case Boundaries.BATCHED:
            reason = f"source {source} may report several transactions as one version: strong at most"
            bounds.append(Bound(Level.STRONG, reason))
    return tuple(bounds)
