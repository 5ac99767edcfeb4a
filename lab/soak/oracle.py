"""The recompute oracle: every version of a view against a recompute from the sources' own journals.

A version must be the one before plus transactions of one source: exactly one, or consecutive ones where it is
marked as batched (or of any sources, where it is marked as a load). Its content must be the join of what the
journals say the sources were then. Versions have no gap, and the last one reflects every transaction.

Two bags are equal if nothing is left when one is taken from the other. So what is kept is that rest: each
version's change is added to it, and the change that the journals say is taken away. Every hundredth version,
and all that readers saw, are also compared with a join from nothing, which is no more than the definition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from lab.soak.kinds import KINDS
from lab.soak.layout import TICKET, Source, View
from lab.soak.recompute import Bag, Journal, Recompute, Row

_JOINED_ANEW_EVERY = 100


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
    joined_anew: int = 0
    samples: int = 0
    differences: list[str] = field(default_factory=list)


def read_journal(source: Source) -> Journal:
    """What each committed transaction of a source did, in order; its numbers have no gap."""
    with closing(KINDS[source.kind].open(source)) as store:
        journal = store.journal()
    numbers = [number for number, _ in journal]
    assert numbers == list(range(1, len(numbers) + 1)), f"the journal of {source.name} has gaps"
    return [changes for _, changes in journal]


class _Compared:
    """A view as its versions make it, beside what the journals say."""

    def __init__(self, view: View, journals: Mapping[str, Journal], first: Bag) -> None:
        self._places = view.tickets
        self._oracle = Recompute(view, journals)
        self.state: Bag = Counter()
        self._tickets: Bag = Counter()
        self._rest: Bag = Counter()
        """What the state has too much (and, negative, too little)."""
        self._change(first)
        self.vector = self._vector()
        _add(self._rest, self._oracle.at(self.vector), -1)

    def step(self, change: Change) -> None:
        """Go on to the next version."""
        self._change(change.rows)
        self.vector = self._vector()
        _add(self._rest, self._oracle.advance(self.vector), -1)

    def difference(self) -> str:
        """What is wrong with the version, empty if nothing is."""
        return _told(self._rest)

    def difference_joined_anew(self) -> str:
        """The same by a join from nothing."""
        rest = Counter(self.state)
        _add(rest, self._oracle.at(self.vector), -1)
        return _told(rest)

    def _change(self, rows: Mapping[Row, int]) -> None:
        _add(self.state, rows, 1)
        _add(self._rest, rows, 1)
        _add(self._tickets, {row: count for row, count in rows.items() if row[0] == TICKET}, 1)

    def _vector(self) -> dict[str, int]:
        """How many transactions of each source the state reflects, by its ticket row."""
        if list(self._tickets.values()) != [1]:
            raise ValueError(f"there are {len(self._tickets)} ticket rows instead of one")
        (ticket,) = self._tickets
        return {source: int(ticket[at]) for source, at in self._places.items()}


def _add(bag: Bag, rows: Mapping[Row, int], sign: int) -> None:
    for row, count in rows.items():
        bag[row] += sign * count
        if not bag[row]:
            del bag[row]


def _told(rest: Bag) -> str:
    return f"{(+rest).total()} rows too much, {(-rest).total()} too little" if rest else ""


def check(
    view: View,
    journals: Mapping[str, Journal],
    first: Bag,
    changes: Iterable[Change],
    samples: Mapping[int, Bag],
) -> Verdict:
    """Compare every version, from version 0 on; `samples` are states that readers saw, by version."""
    verdict = Verdict()
    version = 0
    try:
        compared = _Compared(view, journals, first)
        _compare(verdict, view, 0, compared, samples)
        for change in changes:
            if change.version != version + 1:
                raise ValueError(f"version {change.version} follows version {version}")
            version = change.version
            before = compared.vector
            compared.step(change)
            _check_step(verdict, change, before, compared.vector)
            _compare(verdict, view, version, compared, samples)
    except ValueError as problem:
        verdict.differences.append(f"view {view.name}, after version {version}: {problem}")
        return verdict
    goal = {source.name: len(journals[source.name]) for source in view.sources}
    if compared.vector != goal:
        verdict.differences.append(f"view {view.name} ends at {compared.vector}, its sources at {goal}")
    return verdict


def _check_step(
    verdict: Verdict, change: Change, before: Mapping[str, int], after: Mapping[str, int]
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
    verdict: Verdict, view: View, version: int, compared: _Compared, samples: Mapping[int, Bag]
) -> None:
    verdict.versions += 1
    found = compared.difference()
    if version in samples or version % _JOINED_ANEW_EVERY == 0:
        verdict.joined_anew += 1
        found = found or compared.difference_joined_anew()
    if found:
        verdict.differences.append(f"view {view.name}, version {version}: {found}")
    if version in samples:
        verdict.samples += 1
        if samples[version] != compared.state:
            verdict.differences.append(f"view {view.name}, version {version}: a reader saw something else")
