"""Exploration: every schedule of a small scenario, each once up to what makes no difference.

Two actions that touch nothing in common may happen in either order with the same result: what one source does
is independent of what another does; but two messages do not arrive at the warehouse independently. So most
interleavings are the same run told differently. Sleep sets leave those out: when the runs that begin
with a are done, a is put to sleep in the runs that begin with b, until something happens that depends on it.

A process cannot be copied, so a branch is reached by running its schedule again from the start.

Reference: P. Godefroid, Partial-Order Methods for the Verification of Concurrent Systems, chapter 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lab.history import Action, History, Kind
from lab.simulator import Faults, Simulator
from lab.world import World

_AT_SOURCE = frozenset({Kind.COMMIT, Kind.ANSWER})
_AT_WAREHOUSE = frozenset({Kind.RECEIVE, Kind.TAKE, Kind.RESTART})
_ON_LINK = frozenset({Kind.CUT, Kind.RESTORE})


def independent(a: Action, b: Action) -> bool:
    """Whether two actions that are both enabled lead to the same state in either order.

    Links are queues: what is put in at one end does not change what is taken out at the other.
    """
    if a.kind in _AT_WAREHOUSE and b.kind in _AT_WAREHOUSE:
        return False
    if a.kind in _ON_LINK or b.kind in _ON_LINK:
        return a.target != b.target
    return not (a.target == b.target and a.kind in _AT_SOURCE and b.kind in _AT_SOURCE)


@dataclass
class _Branching:
    """A point of the current schedule: what was tried there, what remains, what sleeps."""

    remaining: list[Action]
    sleeping: set[Action]
    tried: list[Action] = field(default_factory=list)

    def descend(self) -> tuple[Action, set[Action]]:
        """The next action to try, and what sleeps after it."""
        action = self.remaining.pop(0)
        asleep = {other for other in (*self.sleeping, *self.tried) if independent(other, action)}
        self.tried.append(action)
        return action, asleep


def explore(world: World, faults: Faults | None = None) -> Iterator[History]:
    """All runs of a world that differ in what anyone could notice."""
    path: list[_Branching] = []
    while True:
        simulator = Simulator(world, faults)
        sleeping: set[Action] = set()
        for point in path[:-1]:
            simulator.do(point.tried[-1])
        if path:
            action, sleeping = path[-1].descend()
            simulator.do(action)
        while actions := simulator.enabled():
            awake = [action for action in actions if action not in sleeping]
            if not awake:
                break
            path.append(_Branching(awake, sleeping))
            action, sleeping = path[-1].descend()
            simulator.do(action)
        else:
            yield simulator.history
        while path and not path[-1].remaining:
            path.pop()
        if not path:
            return
