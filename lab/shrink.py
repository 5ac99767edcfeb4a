"""Shrinking: the smallest scenario and the calmest schedule that still fail.

What is left out of a schedule happens anyway, in the calmest order, after what is left in. So the actions
that remain are those whose moment matters. Everything is tried in a fixed order: the same failure shrinks to
the same counterexample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from algebra.errors import LockstepError
from algebra.global_transaction import GlobalTransaction
from lab.explore import explore
from lab.history import Action, History, Kind
from lab.scenario import Change, Scenario, Source, Transaction
from lab.schedules import replay
from lab.world import World

_T = TypeVar("_T")

_SEARCHED = 60
"""How many schedules are searched when the given one does not fail on a smaller scenario."""
_FEW_TRANSACTIONS = 4


def shrink(history: History, fails: Callable[[History], bool]) -> History:
    """A smallest run that fails, found from one that does."""
    shrinker = _Shrinker(fails)
    best, schedule = history, list(history.actions)
    while True:
        smaller = shrinker.scenario(best.world.scenario, schedule)
        if smaller is None:
            break
        best, schedule = smaller, list(smaller.actions)
    return shrinker.schedule(best)


class _Shrinker:
    def __init__(self, fails: Callable[[History], bool]) -> None:
        self._fails = fails

    def scenario(self, scenario: Scenario, schedule: Sequence[Action]) -> History | None:
        """A failing run of a scenario that lacks something; None if nothing can be spared."""
        for smaller, dropped in _smaller(scenario):
            try:
                world = World(smaller)
            except LockstepError:
                continue
            for found in self._runs(world, schedule, dropped):
                if self._fails(found):
                    return found
        return None

    @staticmethod
    def _runs(world: World, schedule: Sequence[Action], dropped: Sequence[Action]) -> Iterator[History]:
        if dropped:
            yield replay(world, _without(schedule, dropped), strict=False)
        yield replay(world, schedule, strict=False)
        if dropped and world.scenario.transactions <= _FEW_TRANSACTIONS:
            yield from islice(explore(world), _SEARCHED)

    def schedule(self, history: History) -> History:
        """The same scenario with as few actions out of the calm order as possible: delta debugging."""
        world, best = history.world, history
        kept = list(history.actions)
        size = len(kept)
        while size:
            start = 0
            while start < len(kept):
                candidate = kept[:start] + kept[start + size :]
                found = replay(world, candidate, strict=False)
                if self._fails(found):
                    best, kept = found, candidate
                else:
                    start += size
            size //= 2
        return best


def _without(schedule: Sequence[Action], dropped: Sequence[Action]) -> list[Action]:
    """The schedule without the last of each such action."""
    kept = list(reversed(schedule))
    for action in dropped:
        if action in kept:
            kept.remove(action)
    return kept[::-1]


def _smaller(scenario: Scenario) -> Iterator[tuple[Scenario, Sequence[Action]]]:
    """Scenarios that lack one transaction, one change or one row, and the commits that are gone with it."""
    for index, source in enumerate(scenario.sources):
        for i in reversed(range(len(source.transactions))):
            if whole := source.transactions[i].part_of:
                yield _without_global(scenario, whole)
            else:
                rest = source.transactions[:i] + source.transactions[i + 1 :]
                smaller = _changed(scenario, index, replace(source, transactions=rest))
                yield smaller, (Action(Kind.COMMIT, source.name),)
    for index, source in enumerate(scenario.sources):
        for i, transaction in enumerate(source.transactions):
            for changes in (*_net(transaction), *_less(transaction.changes)):
                shorter = replace(transaction, changes=changes)
                transactions = (*source.transactions[:i], shorter, *source.transactions[i + 1 :])
                yield _changed(scenario, index, replace(source, transactions=transactions)), ()
    for index, source in enumerate(scenario.sources):
        for rows in _less(source.rows):
            yield _changed(scenario, index, replace(source, rows=rows)), ()


def _net(transaction: Transaction) -> Iterator[tuple[Change, ...]]:
    """What a transaction does in the end, deletions first, if it does not do that already."""
    counts = sorted(transaction.net().items(), key=lambda item: item[1] > 0)
    if len(counts) < len(transaction.changes):
        yield tuple(Change(relation, row, count) for (relation, row), count in counts)


def _less(items: tuple[_T, ...]) -> Iterator[tuple[_T, ...]]:
    for i in reversed(range(len(items))):
        yield items[:i] + items[i + 1 :]


def _without_global(scenario: Scenario, whole: GlobalTransaction) -> tuple[Scenario, Sequence[Action]]:
    sources = tuple(
        replace(source, transactions=tuple(t for t in source.transactions if t.part_of != whole))
        for source in scenario.sources
    )
    commits = tuple(Action(Kind.COMMIT, name) for name in sorted(whole.participants))
    return replace(scenario, sources=sources), commits


def _changed(scenario: Scenario, index: int, source: Source) -> Scenario:
    sources = (*scenario.sources[:index], source, *scenario.sources[index + 1 :])
    return replace(scenario, sources=sources)
