"""Serial orders of a scenario's transactions: which states of all sources together are states at all.

Sources share nothing, so any interleaving of their transactions is serial and equivalent to what really
happened. Only a global transaction ties sources together: all of its parts are one step.

Reference: Strobe paper, sections 3.1 and 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from lab.errors import ScenarioError

if TYPE_CHECKING:
    from lab.scenario import Scenario

Vector: TypeAlias = tuple[int, ...]
"""How many transactions each source has committed, in the order of the scenario's sources."""


class SerialOrder:
    """The steps that lead from one state of all sources to the next."""

    def __init__(self, scenario: Scenario) -> None:
        self._sources = scenario.sources
        self._parts: dict[str, dict[int, int]] = {}
        for index, source in enumerate(scenario.sources):
            for position, transaction in enumerate(source.transactions, 1):
                if whole := transaction.part_of:
                    parts = self._parts.setdefault(whole.id, {})
                    if index in parts:
                        raise ScenarioError(f"{whole.id} has two parts in {source.name}")
                    parts[index] = position

    @property
    def last(self) -> Vector:
        """The state after all transactions."""
        return tuple(len(source.transactions) for source in self._sources)

    def is_whole(self, vector: Vector) -> bool:
        """Whether every global transaction is in a state with all of its parts, or with none."""
        return all(
            len({vector[index] >= position for index, position in parts.items()}) == 1
            for parts in self._parts.values()
        )

    def next(self, vector: Vector) -> Iterator[Vector]:
        """The states one transaction further."""
        for index, (source, done) in enumerate(zip(self._sources, vector, strict=True)):
            if done == len(source.transactions):
                continue
            whole = source.transactions[done].part_of
            step: Mapping[int, int] = self._parts[whole.id] if whole else {index: done + 1}
            if min(step) == index and all(vector[i] + 1 == position for i, position in step.items()):
                yield tuple(step.get(i, position) for i, position in enumerate(vector))

    def check(self) -> None:
        """ScenarioError if a global transaction lacks a part, or if there is no serial order at all."""
        for source in self._sources:
            for transaction in source.transactions:
                if whole := transaction.part_of:
                    found = {self._sources[index].name for index in self._parts[whole.id]}
                    if found != whole.participants:
                        raise ScenarioError(
                            f"{whole.id} has parts in {', '.join(sorted(found))}, "
                            f"but says {', '.join(sorted(whole.participants))}"
                        )
        # One step never stands in the way of another, so any way to the end is as good as all.
        vector: Vector = (0,) * len(self._sources)
        while vector != self.last:
            following = next(self.next(vector), None)
            if following is None:
                raise ScenarioError("sources commit global transactions in contradicting orders")
            vector = following
