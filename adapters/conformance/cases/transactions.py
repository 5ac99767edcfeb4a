"""Transactions come whole, in commit order, and only if they committed."""

from __future__ import annotations

from adapters.conformance.bench import Bench
from adapters.conformance.case import CaseSkipped, case, require
from adapters.conformance.journal import (
    WRITER_STRIDE,
    numbered,
    numbers_in,
    require_commit_order,
    require_exact,
    require_whole_transactions,
)
from adapters.conformance.model import Change
from adapters.conformance.operations import (
    Delete,
    Insert,
    RollbackTo,
    Savepoint,
    Transaction,
    Update,
)
from adapters.conformance.reading import Entry
from adapters.conformance.workload import BANK, Bank
from adapters.spi import Boundaries
from algebra.position import Position

ROUNDS = 8


def _run(bench: Bench) -> tuple[dict[int, Change], list[Entry]]:
    """Some transactions, read in a few portions: what they did by number, and the entries read."""
    at = bench.start(*BANK)
    entries: list[Entry] = []
    script = Bank(seed=3).script(ROUNDS * 3)
    for start in range(0, len(script), 3):
        bench.write(*script[start : start + 3])
        with bench.reading() as reading:
            entries += reading.entries(at)
            at = reading.position
    return {number: change for change in bench.truth for (number,) in change["journal"]}, entries


@case
def entries_hold_whole_transactions(bench: Bench) -> None:
    """Every entry holds one or more whole transactions: none is split, repeated, changed or missing."""
    require_whole_transactions(*_run(bench))


@case
def transactions_come_in_commit_order(bench: Bench) -> None:
    """Entries come in the order in which their transactions committed."""
    _, entries = _run(bench)
    require_commit_order(entries)


@case
def exact_entries_hold_one_transaction(bench: Bench) -> None:
    """Where boundaries are exact, an entry that is not marked as batched is exactly one transaction."""
    _, entries = _run(bench)
    boundaries = bench.adapter.capabilities.boundaries
    if boundaries is Boundaries.BATCHED:
        raise CaseSkipped("this capture batches transactions, and says so")
    require_exact(boundaries, entries)


@case
def large_transactions_stay_whole(bench: Bench) -> None:
    """A transaction of thousands of rows in two tables is one entry, between its neighbours."""
    start = bench.start(*BANK)
    rows = tuple((i, f"owner {i}", i) for i in range(3000))
    bench.write(
        numbered(1, Insert("account", rows[:10])),
        numbered(2, Insert("account", rows[10:]), Insert("posting", rows[:2000] * 2)),
        numbered(3, Delete("account", rows[0])),
    )
    truth = {number: change for change in bench.truth for (number,) in change["journal"]}
    require_whole_transactions(truth, bench.entries(start))


@case
def rolled_back_work_is_invisible(bench: Bench) -> None:
    """A transaction that rolled back shows nowhere, also when the next one writes the same rows."""
    start = bench.start(*BANK)
    row, other = (1, "kept", 5), (1, "lost", 6)
    bench.write(
        numbered(1, Insert("account", (row,))),
        numbered(2, Update("account", row, other), Insert("posting", ((1, "lost", 1),)), commits=False),
        numbered(3, Delete("account", row), commits=False),
        numbered(4, Update("account", row, (1, "kept", 7))),
    )
    shown = [number for entry in bench.entries(start) for number in numbers_in(entry)]
    require(shown == [1, 4], f"entries show transactions {shown}; only 1 and 4 committed")
    bench.require_agreement(start)


@case
def uncommitted_work_is_invisible(bench: Bench) -> None:
    """A transaction that is still open shows neither in fetch nor in changes; when it commits, it does."""
    bench.require_overlap()
    start = bench.start(*BANK)
    bench.write(numbered(1, Insert("account", ((1, "a", 1),))))
    pending = numbered(2, Insert("account", ((2, "b", 2),)), Insert("posting", ((2, "b", -2),)))
    writer = bench.writer()
    writer.begin()
    for operation in pending.operations:
        writer.execute(operation)
    try:
        bench.require_agreement(start, "while a transaction is open")
    finally:
        writer.commit()
    bench.expect(pending)
    bench.require_agreement(start, "after it committed")


@case
def interleaved_transactions_stay_apart(bench: Bench) -> None:
    """Two transactions that are open at the same time and commit in the other order are two entries."""
    bench.require_overlap()
    if bench.quirks.writers < 2 or bench.quirks.one_open_transaction:
        raise CaseSkipped("this source has one open write transaction at a time")
    start = bench.start(*BANK)
    early = numbered(1, Insert("posting", ((1, "a", 1),)))
    late = numbered(2, Insert("posting", ((2, "b", 2),)))
    first, second = bench.writer(0), bench.writer(1)
    first.begin()
    first.execute(early.operations[0])
    second.begin()
    for operation in late.operations:
        second.execute(operation)
    second.commit()
    bench.expect(late)
    with bench.reading() as reading:
        between = reading.position
        bench.require_tables("while the first is open", reading)
    for operation in early.operations[1:]:
        first.execute(operation)
    first.commit()
    bench.expect(early)
    bench.require_agreement(start)
    shown = [numbers_in(entry) for entry in bench.entries(between)]
    require(shown == [[1]], f"after the snapshot between the two commits, entries show {shown}, not [[1]]")


@case
def savepoints_take_back_a_part(bench: Bench) -> None:
    """What was rolled back to a savepoint shows nowhere; the rest of its transaction shows as one entry."""
    bench.require_has("savepoints", bench.quirks.no_savepoints)
    start = bench.start(*BANK)
    row, lost = (1, "kept", 5), (2, "lost", 6)
    bench.write(
        numbered(
            1,
            Insert("account", (row,)),
            Savepoint("a"),
            Insert("account", (lost,)),
            Insert("posting", ((2, "lost", 2),)),
            Update("account", row, (1, "lost", 7)),
            RollbackTo("a"),
            Insert("posting", ((1, "kept", 1),)),
        ),
        numbered(
            2,
            Savepoint("a"),
            Insert("posting", ((2, "kept", 2),)),
            Savepoint("b"),
            Delete("account", row),
            Insert("account", (lost,)),
            RollbackTo("b"),
            Insert("account", ((3, "kept", 3),)),
            Savepoint("c"),
            Insert("account", ((4, "lost", 4),)),
            RollbackTo("b"),
        ),
        Transaction((Savepoint("a"), Delete("account", row), RollbackTo("a"))),
        numbered(3, Insert("account", (lost,)), Savepoint("a"), Delete("account", lost), commits=False),
        numbered(4, Update("account", row, (1, "kept", 8))),
    )
    shown = [number for entry in bench.entries(start) for number in numbers_in(entry)]
    require(shown == [1, 2, 4], f"entries show transactions {shown}; 1, 2 and 4 committed")
    bench.require_agreement(start)


@case
def a_long_transaction_shows_when_it_commits(bench: Bench) -> None:
    """A transaction that stays open over many snapshots, commits of others and acknowledgements shows in none
    of them, and wholly after its commit, once, after every position that was seen meanwhile."""
    bench.require_overlap()
    start = bench.start(*BANK)
    others = bench.quirks.writers > 1 and not bench.quirks.one_open_transaction
    bench.write(numbered(1, Insert("account", ((1, "a", 1),))))
    pending = [Insert("account", ((100 + i, "long", i),)) for i in range(4)]
    long, quick = bench.writer(0), bench.writer(1) if others else None
    long.begin()
    seen: list[Position] = []
    entries: list[Entry] = []
    at = start
    for number, operation in enumerate(pending):
        long.execute(operation)
        if quick is not None:
            quick_one = numbered(WRITER_STRIDE + number, Insert("posting", ((number, "quick", 0),)))
            quick.run([quick_one])
            bench.expect(quick_one)
        with bench.reading() as reading:
            bench.require_tables(f"snapshot {number} while a transaction is open", reading)
            entries += reading.entries(at)
            at = reading.position
        seen.append(at)
        bench.acknowledge(seen[max(0, number - 2)])
    whole = numbered(2, *pending)
    long.execute(whole.operations[-1])
    long.commit()
    bench.expect(whole)
    with bench.reading() as reading:
        bench.require_tables("after the long transaction", reading)
        entries += reading.entries(at)
        for index, position in enumerate(seen[1:], start=1):
            expected = [2, *(WRITER_STRIDE + n for n in range(index + 1, len(pending)) if others)]
            later = sorted(number for entry in reading.entries(position) for number in numbers_in(entry))
            require(later == expected, f"after {position}, seen meanwhile, {later} follow, not {expected}")
    truth = {number: change for change in bench.truth for (number,) in change["journal"]}
    require_whole_transactions(truth, entries)


@case
def empty_transactions_do_no_harm(bench: Bench) -> None:
    """Transactions that change nothing, or change a row and change it back, add nothing."""
    start = bench.start(*BANK)
    row = (1, "a", 1)
    bench.write(
        Transaction((Insert("account", (row,)),)),
        Transaction(()),
        Transaction((Update("account", row, row),)),
        Transaction((Update("account", row, (1, "b", 2)), Update("account", (1, "b", 2), row))),
        Transaction((Insert("posting", ((1, "a", 1),)), Delete("posting", (1, "a", 1)))),
        Transaction((Insert("posting", ((2, "b", 2),)),)),
    )
    entries = bench.entries(start)
    require(
        sum(1 for entry in entries if entry.change) == 2
        or any(entry.batched for entry in entries)
        or bench.adapter.capabilities.boundaries is Boundaries.BATCHED,
        f"two transactions changed something, and {len(entries)} entries do",
    )
    bench.require_agreement(start)


CASES = (
    savepoints_take_back_a_part,
    a_long_transaction_shows_when_it_commits,
    entries_hold_whole_transactions,
    transactions_come_in_commit_order,
    exact_entries_hold_one_transaction,
    large_transactions_stay_whole,
    rolled_back_work_is_invisible,
    uncommitted_work_is_invisible,
    interleaved_transactions_stay_apart,
    empty_transactions_do_no_harm,
)
