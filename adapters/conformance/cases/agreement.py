"""Changes and query answers read inside one snapshot agree exactly, whatever writers do meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

from adapters.conformance.bench import Bench
from adapters.conformance.case import case, fail, require
from adapters.conformance.evaluation import evaluate
from adapters.conformance.journal import (
    WRITER_STRIDE,
    numbered,
    numbers_in,
    require_commit_order,
    require_exact,
    require_whole_transactions,
)
from adapters.conformance.model import Bag, Change, difference, plus, sum_changes
from adapters.conformance.operations import Insert
from adapters.conformance.queries import select
from adapters.conformance.reading import Entry, Reading
from adapters.conformance.workload import BANK, POSTING, Bank, total
from algebra.local_view import LocalView
from algebra.position import Position

SEED = 20

TURN = 0.2
"""Seconds at most that a source which is not read and written at once is left to its writers."""


def _concurrent_readings(bench: Bench, seed: int) -> Iterator[Reading]:
    """Readings taken while writers run seeded transactions, and a last one when they are done."""
    scripts = [Bank(seed, writer).script(bench.quirks.workload) for writer in range(bench.quirks.writers)]
    for script in scripts:
        for transaction in script:
            bench.expect(transaction)
    with bench.writing(*scripts) as done:
        last = pause = False
        while not last:
            last = done()  # asked before the snapshot: the last reading sees everything
            with bench.reading() as reading:
                yield reading
            pause = not (pause or last or bench.quirks.overlap)
            if pause:
                bench.wait(TURN)  # so that writers get their turn


def _joined(bench: Bench) -> LocalView:
    return select(
        bench.catalog,
        {"a": "account", "p": "posting"},
        [("a", "id"), ("a", "owner"), ("p", "tag"), ("p", "amount")],
        joins=[(("a", "id"), ("p", "account"))],
    )


@case
def snapshots_agree_under_concurrent_writers(bench: Bench) -> None:
    """In every snapshot, the tables fetched are what the changes since the start add up to, and what the
    last snapshot's tables and the changes since then add up to."""
    start = bench.start(*BANK)
    before: Position = start
    tables: dict[str, Bag] = {name: plus() for name in bench.model.tables}
    for number, reading in enumerate(_concurrent_readings(bench, SEED)):
        now = reading.tables()
        steps = sum_changes(entry.change for entry in reading.entries(before))
        whole = sum_changes(entry.change for entry in reading.entries(start))
        for name, found in now.items():
            text = difference(plus(tables[name], steps.get(name, plus())), found)
            if text:
                fail(f"snapshot {number}: {name} is not the last snapshot's plus changes({before}): {text}")
            text = difference(whole.get(name, plus()), found)
            if text:
                fail(f"snapshot {number}: {name} is not what changes({start}) add up to: {text}")
        before, tables = reading.position, now
    for name, expected in bench.model.contents.items():
        bench.require_same(f"after all writers, {name}", expected, tables[name])


@case
def a_snapshot_that_waits_for_a_writer_agrees(bench: Bench) -> None:
    """A snapshot asked for while a transaction is open shows it wholly or not at all, if need be later."""
    start = bench.start(*BANK)
    writer = bench.writer()
    for number in range(3):
        before = dict(bench.model.contents)
        transaction = numbered(number, Insert("account", ((number, "a", number),)))
        writer.begin()
        for operation in transaction.operations:
            writer.execute(operation)
        bench.expect(transaction)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(_read, bench, start)
            # A source that can be read meanwhile answers within this time; others have begun to wait.
            wait([reading], timeout=TURN)
            writer.commit()
            tables, changes = reading.result()
        for name, found in tables.items():
            bench.require_same(
                f"round {number}, {name} against changes({start})", changes.get(name, plus()), found
            )
        require(
            tables in (before, bench.model.contents),
            f"round {number}: the tables are neither those before the transaction nor those after it",
        )
        bench.position()


def _read(bench: Bench, start: Position) -> tuple[dict[str, Bag], Change]:
    with bench.reading() as reading:
        return reading.tables(), sum_changes(entry.change for entry in reading.entries(start))


@case
def joins_agree_with_their_tables(bench: Bench) -> None:
    """In every snapshot, a fetched join is the join of the tables fetched."""
    bench.start(*BANK)
    query = _joined(bench)
    for number, reading in enumerate(_concurrent_readings(bench, SEED + 1)):
        found = reading.rows(query)
        expected = evaluate(query, bench.model.tables, reading.tables())
        bench.require_same(f"snapshot {number}, join of account and posting", expected, found)


@case
def transactions_stay_whole_under_concurrent_writers(bench: Bench) -> None:
    """Every fetch, and every prefix of the changes, keeps an invariant that only whole transactions keep."""
    start = bench.start(*BANK)
    for number, reading in enumerate(_concurrent_readings(bench, SEED + 2)):
        amount = total(reading.tables())
        require(amount == 0, f"snapshot {number}: the amounts fetched add up to {amount}, not 0")
        for entry in reading.entries(start):
            amount = total(entry.change)
            require(
                amount == 0, f"snapshot {number}: the amounts in entry {entry.position} add up to {amount}"
            )


@case
def entries_follow_concurrent_writers(bench: Bench) -> None:
    """Followed from snapshot to snapshot, each writer's transactions come whole, once, in commit order."""
    at = bench.start(*BANK)
    entries: list[Entry] = []
    for reading in _concurrent_readings(bench, SEED + 3):
        entries += reading.entries(at)
        at = reading.position
    # Two transactions between two snapshots: their order shows, however the writers were scheduled.
    later = bench.quirks.writers * WRITER_STRIDE
    bench.write(*(numbered(later + i, Insert("posting", ((later + i, "z", 0),))) for i in range(2)))
    with bench.reading() as reading:
        entries += reading.entries(at)
    truth: dict[int, Change] = {}
    for change in bench.truth:
        for (number,) in change["journal"]:
            truth[number] = change
    require_whole_transactions(truth, entries)
    require_commit_order(entries)
    require_exact(bench.adapter.capabilities.boundaries, entries)
    require(bool(entries and numbers_in(entries[-1])), "the writers committed and no entry shows it")


@case
def snapshots_stay_as_they_are(bench: Bench) -> None:
    """What commits while a snapshot is open shows in the next one, not in its own fetches or changes."""
    bench.require_overlap()
    start = bench.start(*BANK)
    bench.write(numbered(1, Insert("posting", ((1, "a", 1),))))
    with bench.reading() as reading:
        position, entries = reading.position, reading.entries(start)
        bench.write(numbered(2, Insert("posting", ((2, "b", 2),))))
        shown = {number for entry in reading.entries(start) for number in numbers_in(entry)}
        require(shown == {1}, f"changes show transactions {shown}; only 1 had committed when it opened")
        fetched = reading.table(POSTING.name)
        bench.require_same(
            f"fetch in the older snapshot at {position}", entries[0].change["posting"], fetched
        )
        require(reading.snapshot.position == position, "the position of an open snapshot moved")
    bench.require_agreement(start, "in the next snapshot")


CASES = (
    snapshots_stay_as_they_are,
    a_snapshot_that_waits_for_a_writer_agrees,
    snapshots_agree_under_concurrent_writers,
    joins_agree_with_their_tables,
    transactions_stay_whole_under_concurrent_writers,
    entries_follow_concurrent_writers,
)
