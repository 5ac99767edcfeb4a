"""The recompute oracle: every version of a view against a recompute from the sources' own journals.

A version must be the one before plus transactions of one source: exactly one, or consecutive ones where it is
marked as batched (or of any sources, where it is marked as a load). Its content must be the join of what the
journals say the sources were then. Versions have no gap, and the last one reflects every transaction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from lab.soak.kinds import KINDS
from lab.soak.layout import TICKET, Relation, Source, View
from lab.soak.stores import Changes

Row = tuple[Any, ...]
Bag = Counter[Row]
Journal = Sequence[Changes]


@dataclass(frozen=True)
class Change:
    """One version of a view: its number, the source that made it, and its change as signed counts."""

    version: int
    source: str
    batched: bool
    rows: Mapping[Row, int]


@dataclass
class Verdict:
    """What was compared, and every difference found, one line each."""

    versions: int = 0
    exact: int = 0
    batched: int = 0
    loads: int = 0
    samples: int = 0
    differences: list[str] = field(default_factory=list)


def read_journal(source: Source) -> Journal:
    """What each committed transaction of a source did, in order; its numbers have no gap."""
    with closing(KINDS[source.kind].open(source)) as store:
        journal = store.journal()
    numbers = [number for number, _ in journal]
    assert numbers == list(range(1, len(numbers) + 1)), f"the journal of {source.name} has gaps"
    return [changes for _, changes in journal]


class Recompute:
    """The view recomputed from journals, moving forward through each source's transactions."""

    def __init__(self, view: View, journals: Mapping[str, Journal]) -> None:
        self._view, self._journals = view, journals
        self._done = {source.name: 0 for source in view.sources}
        self._bags: dict[str, Bag] = {relation.name: Counter() for _, relation in view.relations}

    def at(self, vector: Mapping[str, int]) -> Bag:
        """The view when each source had made so many transactions."""
        for name, number in vector.items():
            if number < self._done[name]:
                raise ValueError(f"{name} went back from transaction {self._done[name]} to {number}")
            for changes in self._journals[name][self._done[name] : number]:
                for table, sign, row in changes:
                    self._bags[table][row] += sign
            self._done[name] = number
        joined: Bag | None = None
        before = self._view.relations[0][1]
        for source, relation in self._view.relations:
            rows = +self._bags[relation.name]
            rows[relation.ticket(vector[source.name])] += 1
            joined = rows if joined is None else _join(joined, before, rows)
            before = relation
        assert joined is not None, "a view has relations"
        return joined


def _join(left: Bag, last: Relation, right: Bag) -> Bag:
    """Rows joined by the `r` of the last relation on the left and the `l` of the right one."""
    by_key: dict[Any, list[tuple[Row, int]]] = defaultdict(list)
    for row, count in right.items():
        by_key[row[0]].append((row, count))
    at = last.columns.index("r") - len(last.columns)
    joined: Bag = Counter()
    for row, count in left.items():
        if row[at] is not None:
            for other, n in by_key.get(row[at], ()):
                joined[(*row, *other)] += count * n
    return joined


def vector_of(view: View, state: Bag) -> dict[str, int]:
    """How many transactions of each source a state reflects, by its ticket row."""
    tickets = [(row, count) for row, count in state.items() if row[0] == TICKET]
    if len(tickets) != 1 or tickets[0][1] != 1:
        raise ValueError(f"there are {len(tickets)} ticket rows instead of one")
    return {source: int(tickets[0][0][at]) for source, at in view.tickets.items()}


def check(
    view: View,
    journals: Mapping[str, Journal],
    first: Bag,
    changes: Iterable[Change],
    samples: Mapping[int, Bag],
) -> Verdict:
    """Compare every version, from version 0 on; `samples` are states that readers saw, by version."""
    verdict = Verdict()
    oracle = Recompute(view, journals)
    state = Counter(first)
    vector: dict[str, int] = {}
    version = 0
    try:
        vector = vector_of(view, state)
        _compare(verdict, view, 0, state, oracle.at(vector), samples)
        for change in changes:
            if change.version != version + 1:
                raise ValueError(f"version {change.version} follows version {version}")
            version = change.version
            for row, count in change.rows.items():
                state[row] += count
                if not state[row]:
                    del state[row]
            before, vector = vector, vector_of(view, state)
            _check_step(verdict, view, change, before, vector)
            _compare(verdict, view, version, state, oracle.at(vector), samples)
    except ValueError as problem:
        verdict.differences.append(f"view {view.name}, after version {version}: {problem}")
        return verdict
    goal = {source.name: len(journals[source.name]) for source in view.sources}
    if vector != goal:
        verdict.differences.append(f"view {view.name} ends at {vector}, its sources at {goal}")
    return verdict


def _check_step(
    verdict: Verdict, view: View, change: Change, before: Mapping[str, int], after: Mapping[str, int]
) -> None:
    moved = {source: after[source] - before[source] for source in after if after[source] != before[source]}
    if not change.source:
        verdict.loads += 1
        return
    if set(moved) != {change.source}:
        raise ValueError(f"version {change.version} of {change.source} moved {moved}")
    if change.batched:
        verdict.batched += 1
    elif moved[change.source] != 1:
        raise ValueError(f"version {change.version} is not marked as batched and has {moved}")
    else:
        verdict.exact += 1


def _compare(
    verdict: Verdict, view: View, version: int, state: Bag, expected: Bag, samples: Mapping[int, Bag]
) -> None:
    verdict.versions += 1
    if state != expected:
        verdict.differences.append(
            f"view {view.name}, version {version}: {(state - expected).total()} rows too much, "
            f"{(expected - state).total()} too little"
        )
    if version in samples:
        verdict.samples += 1
        if samples[version] != state:
            verdict.differences.append(f"view {view.name}, version {version}: a reader saw something else")
