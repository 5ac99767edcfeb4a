"""A view of a soak computed from the sources' journals, by plain joins that share nothing with Lockstep's.

Joining all relations anew for each of many thousand versions takes long, so there are two ways. `advance`
gives what transactions change in the view: a row that comes or goes takes with it all paths through the row
of relations that lead over it, and two indexes per relation find these. `at` joins everything from nothing,
as a check on the first way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lab.soak.layout import Relation, View
from lab.soak.stores import Changes

Row = tuple[Any, ...]
Bag = Counter[Row]
Journal = Sequence[Changes]


class Recompute:
    """The view by the journals, from before the first transaction forward through those of each source."""

    def __init__(self, view: View, journals: Mapping[str, Journal]) -> None:
        self._journals = {source.name: journals[source.name] for source in view.sources}
        self._done = {source.name: 0 for source in view.sources}
        self._links = [_Link(relation) for _, relation in view.relations]
        self._place = {relation.name: at for at, (_, relation) in enumerate(view.relations)}
        self._relations = {source.name: source.relations for source in view.sources}
        for link in self._links:
            link.add(link.relation.ticket(0), 1)

    def at(self, vector: Mapping[str, int]) -> Bag:
        """The view when each source had made so many transactions, joined from nothing."""
        self.advance(vector)
        first, *others = self._links
        joined, last = first.rows, first.relation
        for link in others:
            joined, last = _join(joined, last, link.rows), link.relation
        return Counter(joined)

    def advance(self, vector: Mapping[str, int]) -> dict[Row, int]:
        """What changes in the view until each source has made so many transactions, as signed counts."""
        changed: Bag = Counter()
        for name, number in vector.items():
            for (at, row), count in self._until(name, number).items():
                if count:
                    self._take_along(changed, at, row, count)
                    self._links[at].add(row, count)
        return {row: count for row, count in changed.items() if count}

    def _until(self, name: str, number: int) -> Mapping[tuple[int, Row], int]:
        """What a source's transactions up to that one change, by the place of the relation and by row."""
        done = self._done[name]
        if number < done:
            raise ValueError(f"{name} went back from transaction {done} to {number}")
        if number > len(self._journals[name]):
            raise ValueError(f"{name} is at transaction {number}, and made {len(self._journals[name])}")
        net: Counter[tuple[int, Row]] = Counter()
        for changes in self._journals[name][done:number]:
            for table, sign, row in changes:
                net[self._place[table], row] += sign
        for relation in self._relations[name]:
            if relation.ticketed and number != done:
                net[self._place[relation.name], relation.ticket(done)] -= 1
                net[self._place[relation.name], relation.ticket(number)] += 1
        self._done[name] = number
        return net

    def _take_along(self, changed: Bag, at: int, row: Row, count: int) -> None:
        """Count every row of the view that this row of one relation is a part of."""
        until = [(row, count)]
        for link in reversed(self._links[:at]):
            until = [
                ((*left, *part), times * n)
                for part, times in until
                for left, n in link.by_right.get(part[0], {}).items()
            ]
        if not until:
            return
        onward = [(row, 1)]
        last = self._links[at]
        for link in self._links[at + 1 :]:
            onward = [
                ((*part, *right), times * n)
                for part, times in onward
                for right, n in link.by_left.get(part[last.right], {}).items()
            ]
            last = link
        for left, times in until:
            for right, n in onward:
                changed[*left, *right[len(row) :]] += times * n


class _Link:
    """One relation of the row, also by the values that join it; a null joins nothing."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.right = _right(relation)
        self.rows: Bag = Counter()
        self.by_left: dict[Any, dict[Row, int]] = {}
        self.by_right: dict[Any, dict[Row, int]] = {}

    def add(self, row: Row, count: int) -> None:
        total = self.rows[row] + count
        if total < 0:
            raise ValueError(f"the journal deletes a row of {self.relation.name} that is not there: {row}")
        for key, rows in ((row[0], self.by_left), (row[self.right], self.by_right)):
            if key is not None:
                _put(rows.setdefault(key, {}), row, total)
        _put(self.rows, row, total)


def _right(relation: Relation) -> int:
    """Where the `r` of a relation stands, from the end of a row."""
    return relation.columns.index("r") - len(relation.columns)


def _put(rows: dict[Row, int], row: Row, total: int) -> None:
    if total:
        rows[row] = total
    else:
        rows.pop(row, None)


def _join(left: Bag, last: Relation, right: Bag) -> Bag:
    """Rows joined by the `r` of the last relation on the left and the `l` of the right one."""
    at = _right(last)
    joined: Bag = Counter()
    by_key: dict[Any, list[tuple[Row, int]]] = {}
    for row, count in right.items():
        by_key.setdefault(row[0], []).append((row, count))
    for row, count in left.items():
        if row[at] is not None:
            for other, n in by_key.get(row[at], ()):
                joined[*row, *other] += count * n
    return joined
