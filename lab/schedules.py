"""Schedules: which of the enabled actions happens next.

A schedule is a list of actions. It is drawn at random with a bias, replayed, or completed: `finish` lets
everything that is still open happen in the calmest order, each update answered before the next one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lab.history import Action, History, Kind
from lab.simulator import Faults, Simulator
from lab.world import World

_CALM = (Kind.RESTORE, Kind.RECEIVE, Kind.ANSWER, Kind.TAKE, Kind.COMMIT)


@dataclass(frozen=True)
class Bias:
    """How likely each kind of action is, relative to the others.

    `burst`: how likely a source that has just acted in one way does so again, if it can.
    """

    name: str
    weights: Mapping[Kind, float]
    burst: float = 0.0


def _bias(
    name: str, commit: float, answer: float, receive: float, take: float = 1.0, burst: float = 0.0
) -> Bias:
    weights = {Kind.COMMIT: commit, Kind.ANSWER: answer, Kind.RECEIVE: receive, Kind.TAKE: take}
    faults = {Kind.CUT: 0.15, Kind.RESTORE: 0.4, Kind.RESTART: 0.15}
    return Bias(name, weights | faults, burst)


BIASES = (
    _bias("uniform", commit=1, answer=1, receive=1),
    _bias("calm", commit=0.02, answer=1, receive=1),
    _bias("eager receive", commit=0.5, answer=0.5, receive=5),
    _bias("lazy answers", commit=1, answer=0.15, receive=1),
    _bias("lazy receive", commit=1, answer=1, receive=0.15),
    _bias("commits first", commit=20, answer=1, receive=1, take=0.2),
    _bias("bursts", commit=1, answer=1, receive=1, burst=0.7),
)
"""From hardly any concurrency to as much as there can be."""


def concurrency_bias(commits: float) -> Bias:
    """Commits that many times as likely as anything else that may happen."""
    return _bias(f"commits {commits:g}", commit=commits, answer=1, receive=1)


def random_schedule(
    world: World, rnd: random.Random, bias: Bias = BIASES[0], faults: Faults | None = None
) -> History:
    """One run with a random schedule."""
    simulator = Simulator(world, faults)
    last: Action | None = None
    while actions := simulator.enabled():
        if last is None or last not in actions or rnd.random() >= bias.burst:
            last = rnd.choices(actions, [bias.weights[action.kind] for action in actions])[0]
        simulator.do(last)
    return simulator.history


def replay(world: World, schedule: Iterable[Action], *, strict: bool = True) -> History:
    """The run that a schedule determines, and whatever is then still open in the calmest order.

    An action that cannot happen is an error, or is passed over if not `strict`.
    """
    simulator = Simulator(world)
    for action in schedule:
        if strict or simulator.possible(action):
            simulator.do(action)
    return finish(simulator)


def finish(simulator: Simulator) -> History:
    """Let all that is still open happen, one update after the other."""
    while actions := simulator.enabled():
        simulator.do(min(actions, key=lambda action: _CALM.index(action.kind)))
    return simulator.history
