from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from algebra.errors import LockstepError
from cli.demo import journal, oracle, writer
from cli.demo.journal import Entry
from cli.demo.layout import SHOP, SOURCES, TICKET
from cli.demo.model import Change, Tables, statement
from cli.demo.oracle import Report, VersionChange
from cli.demo.workload import Workload, initial
from cli.tests.conftest import Run

Journals = dict[str, list[Entry]]


@pytest.fixture(scope="module")
def journals() -> Journals:
    """Forty transactions of each source, never run anywhere."""
    made: Journals = {}
    for name, source in SOURCES.items():
        random = Random(f"{name} 7")
        tables = Tables(source)
        entries = [Entry(0, 100.0, tuple(initial(source, random)))]
        tables.apply(entries[0].changes)
        workload = Workload(tables, random)
        for number in range(1, 41):
            entries.append(Entry(number, 100.0 + number, tuple(workload.transaction(number))))
            tables.apply(entries[-1].changes)
        made[name] = entries
    return made


def true_versions(journals: Journals, steps: list[tuple[str, int]]) -> Iterator[VersionChange]:
    """What a right view streams if sources advance by these steps; several at once are batched."""
    tables = {name: Tables(source) for name, source in SOURCES.items()}
    done = dict.fromkeys(SOURCES, 0)
    for name in SOURCES:
        tables[name].apply(journals[name][0].changes)
    state = oracle.recompute(tables)
    for version, (name, step) in enumerate(steps, start=1):
        for _ in range(step):
            done[name] += 1
            tables[name].apply(journals[name][done[name]].changes)
        after = oracle.recompute(tables)
        rows = [(row, after[row] - state[row]) for row in {**state, **after} if after[row] != state[row]]
        yield VersionChange(version, name, step > 1, 200.0, rows)
        state = after


def start_state(journals: Journals) -> oracle.Bag:
    tables = {name: Tables(source) for name, source in SOURCES.items()}
    for name in SOURCES:
        tables[name].apply(journals[name][0].changes)
    return oracle.recompute(tables)


def steps() -> list[tuple[str, int]]:
    """All 120 transactions, some of them in batches, in a mixed order."""
    random, left, made = Random(3), dict.fromkeys(SOURCES, 40), list[tuple[str, int]]()
    while any(left.values()):
        name = random.choice([name for name, amount in left.items() if amount])
        step = min(random.choice((1, 1, 1, 3)), left[name])
        left[name] -= step
        made.append((name, step))
    return made


def verdict(journals: Journals, changes: list[VersionChange]) -> Report:
    *_, last = oracle.check(start_state(journals), changes, journals)
    return last


def test_a_right_view_has_no_problems(journals: Journals) -> None:
    made = steps()
    report = verdict(journals, list(true_versions(journals, made)))
    assert report.problems == []
    assert report.versions == len(made) + 1
    assert report.transactions == 120
    assert report.exact == sum(step == 1 for _, step in made)
    assert report.batched == len(made) - report.exact
    assert len(report.lags) == 120


def test_a_wrong_row_is_found_in_its_version(journals: Journals) -> None:
    changes = list(true_versions(journals, steps()))
    row = next(row for row in start_state(journals) if row[0] != TICKET)
    changes[9] = dataclasses.replace(changes[9], rows=[*changes[9].rows, (row, 1)])
    changes[10] = dataclasses.replace(changes[10], rows=[*changes[10].rows, (row, -1)])
    problems = verdict(journals, changes).problems
    assert [problem.partition(" has too much")[0] for problem in problems] == ["version 10"]


def test_a_version_of_two_transactions_that_claims_to_be_one_is_found(journals: Journals) -> None:
    made = steps()
    changes = list(true_versions(journals, made))
    at = next(at for at, (_, step) in enumerate(made) if step > 1)
    changes[at] = dataclasses.replace(changes[at], batched=False)
    assert any("of one transaction" in problem for problem in verdict(journals, changes).problems)


def test_a_version_of_another_source_is_found(journals: Journals) -> None:
    changes = list(true_versions(journals, [("shop", 1), ("crm", 1)]))
    changes[0] = dataclasses.replace(changes[0], source="crm")
    assert any("but the version is of crm" in problem for problem in verdict(journals, changes).problems)


def test_lost_transactions_and_versions_are_found(journals: Journals) -> None:
    changes = list(true_versions(journals, steps()))
    assert any("the last version shows" in problem for problem in verdict(journals, changes[:-1]).problems)
    assert any(
        "follows version 4" in problem for problem in verdict(journals, changes[:4] + changes[5:]).problems
    )


def test_a_lost_ticket_is_found(journals: Journals) -> None:
    state = start_state(journals)
    row = next(row for row in state if row[0] == TICKET)
    change = VersionChange(1, "shop", False, 200.0, [(row, -1)])
    assert any("no single ticket row" in problem for problem in verdict(journals, [change]).problems)


def test_every_transaction_shows_in_the_view(journals: Journals) -> None:
    assert all(
        change.rows for change in true_versions(journals, [("shop", 1), ("crm", 1), ("supply", 1)] * 40)
    )


def test_the_view_has_duplicates_and_both_signs(journals: Journals) -> None:
    changes = list(true_versions(journals, steps()))
    state = start_state(journals)
    most = 1
    for change in changes:
        oracle.add(state, change.rows)
        most = max(most, *state.values())
    assert most > 1
    assert {count > 0 for change in changes for _, count in change.rows} == {True, False}


def test_statements() -> None:
    before, after = (1, 2, "open", 3), (1, 2, "paid", 4)
    assert statement(SHOP, Change("orders", None, after)) == ("INSERT INTO orders VALUES (?, ?, ?, ?)", after)
    assert statement(SHOP, Change("orders", before, None)) == ("DELETE FROM orders WHERE id = ?", (1,))
    assert statement(SHOP, Change("orders", before, after)) == (
        "UPDATE orders SET status = ?, revision = ? WHERE id = ?",
        ("paid", 4, 1),
    )


def test_changes_must_fit() -> None:
    with pytest.raises(LockstepError, match="does not fit"):
        Tables(SHOP).apply([Change("orders", (1, 2, "open", 3), None)])


@pytest.mark.parametrize("name", ["shop", "supply"])
def test_a_writer_writes_what_it_records(tmp_path: Path, name: str) -> None:
    source = SOURCES[name]
    writer.create(source, tmp_path, seed=5)
    counter = journal.Counter(source.journal(tmp_path))
    assert counter.transactions() == 0
    assert writer.write(source, tmp_path, 5, writer.Limits(0, 12)) == 12
    assert counter.transactions() == 12

    tables, entries = Tables(source), list(journal.read(source.journal(tmp_path)))
    for entry in entries:
        tables.apply(entry.changes)
    assert [entry.number for entry in entries] == list(range(13))
    with writer.database(source, tmp_path).session() as connection:
        for table in source.tables:
            rows = Counter(tuple(row) for row in connection.execute(f"SELECT * FROM {table.name}").fetchall())
            assert rows == Counter(tables[table.name].values())
        connection.close()
    assert tables[source.ticket_table][TICKET][-1] == 12


def test_the_demo_wants_an_empty_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    result = run("demo", "--dir", tmp_path)
    assert result.exit_code == 1
    assert "is not empty" in result.stderr
