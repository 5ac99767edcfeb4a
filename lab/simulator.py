"""The simulated network: sources, FIFO links, a warehouse, and one action at a time.

Nothing happens by itself. Whoever runs the simulator chooses the next action among those that are enabled, so
a schedule, the list of actions, determines the whole run.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from lab.errors import ScheduleError
from lab.history import Action, Asked, Committed, History, Kind, Replied, State
from lab.warehouse import Warehouse
from lab.world import World


@dataclass
class Faults:
    """How many faults may still be offered as actions."""

    cuts: int = 0
    restarts: int = 0


class Simulator:
    """One run of a world."""

    def __init__(self, world: World, faults: Faults | None = None) -> None:
        self.world = world
        self.history = History(world, [State(world.view_at(world.origin), world.origin)])
        self._faults = Faults(faults.cuts, faults.restarts) if faults else Faults()
        self._last = dict(zip(world.sources, world.last, strict=True))
        self._committed = dict.fromkeys(world.sources, 0)
        self._to_source: dict[str, deque[Asked]] = {name: deque() for name in world.sources}
        self._to_warehouse: dict[str, deque[Committed | Replied]] = {name: deque() for name in world.sources}
        self._cut: set[str] = set()
        self._warehouse = Warehouse(world, self.history, self._send)

    def _send(self, asked: Asked) -> None:
        self._to_source[asked.source].append(asked)

    def enabled(self) -> list[Action]:
        """What may happen next, in a fixed order; nothing at the end of the run."""
        actions = [Action(Kind.RECEIVE, s) for s in self._to_warehouse if self._can_receive(s)]
        actions += [Action(Kind.ANSWER, s) for s in self._to_source if self._can_answer(s)]
        actions += [Action(Kind.TAKE, str(n)) for n in range(self._warehouse.takeable, 0, -1)]
        actions += [Action(Kind.COMMIT, s) for s in self._committed if self._can_commit(s)]
        actions += [Action(Kind.RESTORE, s) for s in self._to_source if s in self._cut]
        if actions and self._faults.cuts > 0:
            actions += [Action(Kind.CUT, s) for s in self._to_source if s not in self._cut]
        if actions and self._faults.restarts > 0:
            actions.append(Action(Kind.RESTART))
        return actions

    def _can_commit(self, source: str) -> bool:
        return self._committed[source] < self._last[source]

    def _can_answer(self, source: str) -> bool:
        return bool(self._to_source[source]) and source not in self._cut

    def _can_receive(self, source: str) -> bool:
        return bool(self._to_warehouse[source]) and source not in self._cut

    def possible(self, action: Action) -> bool:
        """Whether an action can happen now, faults included whatever their budget."""
        kind, target = action
        if kind is Kind.RESTART:
            return not target
        if kind is Kind.TAKE:
            return target.isdigit() and 0 < int(target) <= self._warehouse.takeable
        if target not in self._committed:
            return False
        match kind:
            case Kind.COMMIT:
                return self._can_commit(target)
            case Kind.ANSWER:
                return self._can_answer(target)
            case Kind.RECEIVE:
                return self._can_receive(target)
            case Kind.CUT:
                return target not in self._cut
            case _:
                return target in self._cut

    def do(self, action: Action) -> None:
        """Let an action happen; ScheduleError if it cannot."""
        if not self.possible(action):
            raise ScheduleError(f"'{action}' cannot happen now")
        self.history.actions.append(action)
        self.history.events.append([])
        kind, target = action
        match kind:
            case Kind.COMMIT:
                self._committed[target] += 1
                committed = Committed(target, self._committed[target])
                self.history.record(committed)
                self._to_warehouse[target].append(committed)
            case Kind.ANSWER:
                asked = self._to_source[target].popleft()
                replied = Replied(asked, self.world.answer(asked.query, self._committed[target]))
                self.history.record(replied)
                self._to_warehouse[target].append(replied)
            case Kind.RECEIVE:
                self._warehouse.receive(self._to_warehouse[target].popleft())
            case Kind.TAKE:
                self._warehouse.take(int(target))
            case Kind.CUT:
                self._cut.add(target)
                self._faults.cuts -= 1
            case Kind.RESTORE:
                self._cut.remove(target)
            case Kind.RESTART:
                self._faults.restarts -= 1
                self._warehouse.restart()
