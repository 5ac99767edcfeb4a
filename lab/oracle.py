"""The oracle: which level of consistency a run has really reached, by the definitions and nothing else.

The levels are properties of the sequence of warehouse states ws_0 .. ws_f. The oracle looks at the contents
of these states alone, never at the vectors that the algorithm claims for them: those are checked by
`check_vectors`, and serve here only as a first guess.

Different states of the sources can give the same view, so a warehouse state may have several witnesses, and
the right one shows only later. So for strong consistency and completeness all of them are carried along: F_i
holds every state of the sources that ws_i can stand for, given the states before. A level holds if F never
runs empty.

Where the definitions leave room: an install that leaves the contents of the view as they were need not be a
new state; readers cannot see it. Hence m(ws_i) ≤ m(ws_k) here where the paper writes <. For states of
different contents that is the same.

Reference: Strobe paper, section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from algebra.consistency import Level
from lab.history import History, State
from lab.scenario_text import format_bag
from lab.serial import Vector
from lab.world import World


@dataclass(frozen=True)
class Verdict:
    """The level that a run has reached, and why it has not reached the next one (empty if complete)."""

    level: Level
    explanation: str = ""


def judge(history: History) -> Verdict:
    """The highest level whose definition a finished run satisfies."""
    if history.problem:
        return Verdict(Level.NONE, f"the algorithm failed: {history.problem}")
    return judge_states(history.world, history.states)


def judge_states(world: World, states: Sequence[State]) -> Verdict:
    """As `judge`, for a sequence of states wherever it comes from."""
    final = world.view_at(world.last)
    if states[-1].contents != final:
        return Verdict(
            Level.NONE,
            f"the last state is {format_bag(states[-1].contents)}, the view is {format_bag(final)}",
        )
    if _claims_are_complete(world, states):
        return Verdict(Level.COMPLETE)
    for i, state in enumerate(states):
        if not world.witnesses(state.contents):
            return Verdict(Level.CONVERGENT, f"{_named(states, i)} is the view over no states of the sources")
    broken = _first_without_witness(world, states)
    if broken is not None:
        return Verdict(
            Level.WEAK, f"{_named(states, broken)} does not follow the states before it in any serial order"
        )
    return _completeness(world, states)


def _named(states: Sequence[State], index: int) -> str:
    return f"state {index} {format_bag(states[index].contents)}"


def _claims_are_complete(world: World, states: Sequence[State]) -> bool:
    """Whether the claimed vectors are a witness of completeness: one transaction per state, all of them."""
    return (
        states[0].vector == world.origin
        and states[-1].vector == world.last
        and all(b.vector in world.order.next(a.vector) for a, b in pairwise(states))
        and all(world.view_at(state.vector) == state.contents for state in states)
    )


def _first_without_witness(world: World, states: Sequence[State]) -> int | None:
    """Strong consistency: the first state that no state of the sources after the earlier ones explains."""
    reachable: Iterable[Vector] = [world.origin]
    for i, state in enumerate(states):
        # Whatever follows a vector follows each smaller one, so the smallest ones tell all.
        reachable = _minimal(
            vector
            for vector in world.witnesses(state.contents)
            if world.order.is_whole(vector) and any(_precedes(earlier, vector) for earlier in reachable)
        )
        if not reachable:
            return i
    return None


def _minimal(vectors: Iterable[Vector]) -> list[Vector]:
    found = list(vectors)
    return [v for v in found if not any(_precedes(other, v) and other != v for other in found)]


def _precedes(earlier: Vector, later: Vector) -> bool:
    return all(a <= b for a, b in zip(earlier, later, strict=True))


def _completeness(world: World, states: Sequence[State]) -> Verdict:
    """Whether every state of one serial order has its own state of the view."""
    reachable = {world.origin} if world.view_at(world.origin) == states[0].contents else set()
    for i, state in enumerate(states[1:], 1):
        following = reachable | {after for vector in reachable for after in world.order.next(vector)}
        reachable = {vector for vector in following if world.view_at(vector) == state.contents}
        if not reachable:
            return Verdict(Level.STRONG, f"before {_named(states, i)} a state of the sources is left out")
    if world.last not in reachable:
        return Verdict(Level.STRONG, "a state of the sources is left out at the end")
    return Verdict(Level.COMPLETE)


def check_vectors(history: History) -> list[str]:
    """What is wrong with the vectors that the versions claim; nothing if each tells the truth."""
    problems = []
    for i, state in enumerate(history.states):
        view = history.world.view_at(state.vector)
        if view != state.contents:
            claim = format_vector(history.world, state.vector)
            problems.append(
                f"{_named(history.states, i)} claims {claim}, where the view is {format_bag(view)}"
            )
    return problems


def format_vector(world: World, vector: Vector) -> str:
    """A vector as `x@1 y@0`."""
    return " ".join(f"{name}@{position}" for name, position in zip(world.sources, vector, strict=True))
