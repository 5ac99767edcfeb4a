"""The oracle of the soak: right versions pass, and each way to be wrong is noticed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lab.soak import recompute
from lab.soak.layout import TICKET, View, sources_of, views_of
from lab.soak.oracle import Change, check
from lab.soak.recompute import Bag, Journal, Recompute, Row


@pytest.fixture
def view(tmp_path: Path) -> View:
    return views_of(sources_of(["sqlite-wal", "sqlite-wal"], tmp_path))[0]


def journals(view: View) -> dict[str, Journal]:
    first, second = view.sources
    return {
        first.name: [[("r0", 1, (1, 2, None)), ("r0b", 1, (2, 3))], [("r0", 1, (1, 2, None))]],
        second.name: [[("r1", 1, (3, 4, None))]],
    }


def states(view: View, order: list[str]) -> list[Bag]:
    """The view before and after each transaction, in that order of sources."""
    oracle = Recompute(view, journals(view))
    vector = {source.name: 0 for source in view.sources}
    found = [oracle.at(vector)]
    for name in order:
        vector = {**vector, name: vector[name] + 1}
        found.append(oracle.at(vector))
    return found


def changes(view: View, order: list[str]) -> list[Change]:
    made = states(view, order)
    deltas = []
    for number, (before, after) in enumerate(pairwise(made)):
        rows = {row: after[row] - before[row] for row in before.keys() | after.keys()}
        deltas.append(Change(number + 1, order[number], False, {r: n for r, n in rows.items() if n}))
    return deltas


def test_the_recompute_joins_in_a_row(view: View) -> None:
    first, second = (source.name for source in view.sources)
    last = states(view, [first, second, first])[-1]
    ticket = (TICKET, TICKET, 2, TICKET, TICKET, TICKET, TICKET, 1)
    assert last == Counter({(1, 2, None, 2, 3, 3, 4, None): 2, ticket: 1})


def test_the_oracle_accepts_what_is_right_and_nothing_else(view: View) -> None:
    first, second = (source.name for source in view.sources)
    order = [first, second, first]
    start, right = states(view, order)[0], changes(view, order)
    assert check(view, journals(view), start, right, {}).differences == []
    lost = check(view, journals(view), start, right[:-1], {})
    assert "ends at" in lost.differences[0]
    twice = [*right[:2], Change(3, first, False, {row: 2 * n for row, n in right[2].rows.items()})]
    assert check(view, journals(view), start, twice, {}).differences
    gap = [right[0], Change(3, second, False, right[1].rows)]
    assert "version 3 follows version 1" in check(view, journals(view), start, gap, {}).differences[0]
    folded = changes(view, order)[:1]
    both = {row: right[1].rows.get(row, 0) + right[2].rows.get(row, 0) for c in right[1:] for row in c.rows}
    folded.append(Change(2, first, False, {row: n for row, n in both.items() if n}))
    assert check(view, journals(view), start, folded, {}).differences
    wrong = [Change(1, first, False, {**right[0].rows, (9,) * 8: 1}), *right[1:]]
    assert "1 rows too much" in check(view, journals(view), start, wrong, {}).differences[0]
    seen = check(view, journals(view), start, right, {1: Counter()})
    assert "a reader saw something else" in seen.differences[0]


def random_history(seed: int, sources: int, transactions: int) -> tuple[View, dict[str, Journal], list[str]]:
    """Journals of sources that insert and delete at random, and an order of all their transactions."""
    chance = random.Random(seed)
    view = views_of(sources_of(["sqlite-wal"] * sources, Path()))[0]
    made: dict[str, Journal] = {}
    for source in view.sources:
        present: list[tuple[str, Row]] = []
        journal = []
        for _ in range(transactions):
            changes: list[tuple[str, int, Row]] = []
            for _ in range(chance.choice([0, 1, 1, 2, 5])):
                if len(present) > chance.randrange(16):
                    name, row = present.pop(chance.randrange(len(present)))
                    changes.append((name, -1, row))
                else:
                    relation = chance.choice(source.relations)
                    values = [chance.choice([None, 0, 1, 2, 3]) for _ in range(2)]
                    row = (*values, *[None] * relation.ticketed)
                    present.append((relation.name, row))
                    changes.append((relation.name, 1, row))
            journal.append(changes)
        made[source.name] = journal
    order = [name for name in made for _ in range(transactions)]
    chance.shuffle(order)
    return view, made, order


def versions(view: View, made: dict[str, Journal], order: list[str]) -> tuple[Bag, list[Change]]:
    """The first state and all versions, by a join from nothing for each of them."""
    oracle, vector = Recompute(view, made), {source.name: 0 for source in view.sources}
    first = last = oracle.at(vector)
    found = []
    for number, name in enumerate(order, 1):
        vector = {**vector, name: vector[name] + 1}
        state = oracle.at(vector)
        rows = {row: state[row] - last[row] for row in state.keys() | last.keys()}
        found.append(Change(number, name, False, {row: count for row, count in rows.items() if count}))
        last = state
    return first, found


@pytest.mark.parametrize("seed", range(5))
def test_what_transactions_change_is_what_two_joins_from_nothing_differ_by(seed: int) -> None:
    view, made, order = random_history(seed, sources=4, transactions=40)
    first, changes = versions(view, made, order)
    assert max(len(change.rows) for change in changes) > 5
    verdict = check(view, made, first, changes, {})
    assert verdict.differences == []
    assert verdict.versions == verdict.exact + 1 == 161
    assert verdict.joined_anew == 2


def test_one_row_that_one_version_lost_is_noticed_in_that_version() -> None:
    view, made, order = random_history(1, sources=4, transactions=40)
    first, changes = versions(view, made, order)
    at = next(n for n, change in enumerate(changes) if n > 50 and len(change.rows) > 4)
    lost = next(row for row in changes[at].rows if row[0] != TICKET)
    rows = {row: count for row, count in changes[at].rows.items() if row != lost}
    changes[at] = replace(changes[at], rows=rows)
    told = check(view, made, first, changes, {}).differences
    assert told[0].startswith(f"view everything, version {at + 1}: ")


def test_a_row_that_the_journals_lost_is_noticed() -> None:
    view, made, order = random_history(2, sources=4, transactions=40)
    first, changes = versions(view, made, order)
    name = view.sources[2].name
    at = next(n for n, done in enumerate(made[name]) if n > 5 and any(sign > 0 for _, sign, _ in done))
    short = [*made[name]]
    short[at] = [change for change in made[name][at] if change[1] < 0]
    assert check(view, {**made, name: short}, first, changes, {}).differences


def test_a_join_from_nothing_notices_where_the_fast_way_is_wrong_like_the_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither sees the rows that hold a 3; only a version that is joined anew can tell."""
    view, made, order = random_history(3, sources=3, transactions=40)
    first, changes = versions(view, made, order)
    honest = Recompute.advance

    def without_3(rows: dict[Row, int]) -> dict[Row, int]:
        return {row: count for row, count in rows.items() if 3 not in row or row[0] == TICKET}

    blind = [replace(change, rows=without_3(dict(change.rows))) for change in changes]
    assert check(view, made, first, blind, {}).differences
    monkeypatch.setattr(recompute.Recompute, "advance", lambda *given: without_3(honest(*given)))
    told = check(view, made, first, blind, {}).differences
    assert told
    assert all(line.startswith("view everything, version 100: ") for line in told)


def test_a_journal_that_deletes_what_is_not_there_is_refused() -> None:
    view, made, order = random_history(4, sources=2, transactions=3)
    first, _ = versions(view, made, order)
    name = view.sources[1].name
    wrong = {**made, name: [[("r1", -1, (9, 9, None))], *made[name][1:]]}
    (ticket,) = first
    change = Change(1, name, False, {ticket: -1, (*ticket[:-1], 1): 1})
    told = check(view, wrong, first, [change], {}).differences
    assert "the journal deletes a row of r1 that is not there" in told[0]
