"""What happened in one run: the actions, what came of each, and every state of the view."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from algebra.engines.contract import Relation
from algebra.sweep import Answer, Query
from lab.errors import ScheduleError
from lab.serial import Vector
from lab.world import Contents, World
from mediator.maintenance.contract import AnyQuery


class Kind(StrEnum):
    """What may happen next somewhere in the world."""

    COMMIT = "commit"
    """A source executes its next transaction and sends the update."""
    ANSWER = "answer"
    """A source takes the next query and sends the answer, as of its current state."""
    RECEIVE = "receive"
    """The warehouse receives the next message of a source."""
    TAKE = "take"
    """The warehouse takes that many updates from its queue."""
    CUT = "cut"
    """The link of a source goes down; its messages are held."""
    RESTORE = "restore"
    """It comes back."""
    RESTART = "restart"
    """The algorithm is dropped and started anew from the last version."""


class Action(NamedTuple):
    """One atomic event; `target` is a source, or how many updates to take."""

    kind: Kind
    target: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.target}".rstrip()

    @classmethod
    def parse(cls, text: str) -> Action:
        """The action of a line such as `commit x`."""
        kind, _, target = text.strip().partition(" ")
        try:
            return cls(Kind(kind), target.strip())
        except ValueError:
            raise ScheduleError(f"unknown action {text.strip()!r}; there are: {', '.join(Kind)}") from None


@dataclass(frozen=True, slots=True)
class Committed:
    """A source has executed its transaction number `position`."""

    source: str
    position: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A query on its way. `life` counts the restarts of the algorithm before it was sent."""

    source: str
    query: AnyQuery
    life: int


@dataclass(frozen=True, slots=True)
class Replied:
    """An answer on its way."""

    asked: Asked
    answer: Answer


@dataclass(frozen=True, slots=True)
class Received:
    """A message has arrived at the warehouse. `ignored`: it answers an algorithm that is gone."""

    message: Committed | Replied
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class Compensated:
    """An answer came that shows rows that are still queued; they are subtracted without asking anyone."""

    node: int
    rows: Relation


@dataclass(frozen=True, slots=True)
class State:
    """A version of the view, with the vector it claims to reflect."""

    contents: Contents
    vector: Vector


@dataclass(frozen=True, slots=True)
class Failed:
    """The algorithm raised an error; nothing happens at the warehouse from now on."""

    problem: str


Event: TypeAlias = Committed | Asked | Replied | Received | Compensated | State | Failed


@dataclass
class History:
    """One run.

    `states[0]` is the view before anything happened. `events[0]` came of the start of the algorithm,
    `events[i]` of the i-th action.
    """

    world: World
    states: list[State]
    actions: list[Action] = field(default_factory=list)
    events: list[list[Event]] = field(default_factory=lambda: [[]])
    problem: str = ""

    def record(self, event: Event) -> None:
        self.events[-1].append(event)
        if isinstance(event, State):
            self.states.append(event)
        elif isinstance(event, Failed):
            self.problem = event.problem

    def counts(self) -> Counts:
        """What the run cost."""
        counts = Counts()
        for event in (event for events in self.events for event in events):
            match event:
                case Committed():
                    counts.updates += 1
                case Asked():
                    counts.queries += 1
                    counts.query_bytes += _query_bytes(event.query)
                case Replied():
                    counts.answers += 1
                    counts.answer_bytes += event.answer.rows.nbytes
                case Compensated():
                    counts.compensations += 1
        counts.versions = len(self.states) - 1
        return counts


@dataclass
class Counts:
    """Messages of a run. Bytes are those of the rows, as Arrow holds them."""

    updates: int = 0
    versions: int = 0
    queries: int = 0
    answers: int = 0
    query_bytes: int = 0
    answer_bytes: int = 0
    compensations: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


def _query_bytes(query: AnyQuery) -> int:
    if isinstance(query, Query):
        return int(query.keys.values.nbytes) if query.keys else 0
    return sum(int(rows.nbytes) for term in query.terms for rows in term.substituted.values())
