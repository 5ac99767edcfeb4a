"""Which faults come when, and which of them together, drawn from a seed alone.

Faults come in moments. Most moments have one fault, some have several that strike at once: half of these are
about the same source, so that a wrapper goes down with its database, its writer or its network, and the other
half about any, so that two wrappers do, or one and the mediator.

Moments come in spells, with calms as long between them. A view over all sources goes on only while all of
them are there; if faults that overlap came evenly, there would hardly ever be such a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lab.soak.layout import Source

KILLS: Mapping[str, float] = {
    "kill wrapper": 4,
    "kill writer": 3,
    "kill mediator": 1.5,
    "kill source": 3,
    "kill jvm": 1.5,
}
EVERYTHING: Mapping[str, float] = {
    **KILLS,
    "cut": 3,
    "half-open": 1.5,
    "slow network": 1.5,
    "pause wrapper": 2,
    "pause mediator": 1,
    "pause writer": 1,
    "pause source": 1,
    "lock source": 2,
    "bad input": 4,
}
"""Kinds of fault and how often each comes, relative to the others.

`source` is the server that a source is on; one that is made of files has no process but its writer. What a
deployment does not have, a server or a Java process, is left alone.
"""
_AT_ONCE: Mapping[int, float] = {1: 0.6, 2: 0.25, 3: 0.1, 4: 0.05}
"""How many faults a moment has, and how often."""
_SAME_SOURCE = 0.5
_SPELL_SECONDS = 10.0


@dataclass(frozen=True)
class Plan:
    """How faults come: `rate` of them in a second on average, of these kinds, by weight.

    No more than `most_down` processes are down at once: a small machine would do nothing but start them.
    """

    seed: int
    rate: float
    kinds: Mapping[str, float]
    most_down: int = 4


@dataclass(frozen=True)
class Fault:
    """One fault. `strength`, from 0 to 1, is how long it lasts; `seed` is for what it draws itself."""

    kind: str
    source: Source
    strength: float
    seed: int


@dataclass(frozen=True)
class Moment:
    """Faults that strike at once, so many seconds after those before."""

    pause: float
    faults: tuple[Fault, ...]


def moments(plan: Plan, targets: Mapping[str, Sequence[Source]]) -> Iterator[Moment]:
    """Without end. `targets`: the sources that a kind of fault can be about; without any, it never comes."""
    chance = random.Random(plan.seed)
    kinds = {kind: weight for kind, weight in plan.kinds.items() if targets[kind]}
    mean = sum(number * share for number, share in _AT_ONCE.items())
    spell = 0.0
    while True:
        pause = chance.expovariate(2 * plan.rate / mean)
        spell += pause
        if spell > _SPELL_SECONDS:
            pause += _SPELL_SECONDS
            spell -= _SPELL_SECONDS
        (number,) = chance.choices(list(_AT_ONCE), list(_AT_ONCE.values()))
        faults: list[Fault] = []
        for kind in chance.choices(list(kinds), list(kinds.values()), k=number):
            source = chance.choice(targets[kind])
            if faults and faults[0].source in targets[kind] and chance.random() < _SAME_SOURCE:
                source = faults[0].source
            faults.append(Fault(kind, source, chance.random(), chance.getrandbits(32)))
        yield Moment(pause, tuple(faults))
