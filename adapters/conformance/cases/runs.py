"""Runs: a backlog piece by piece, every piece made of whole transactions, and nothing between the pieces."""

from __future__ import annotations

from dataclasses import replace

from adapters.conformance.bench import Bench
from adapters.conformance.case import CaseSkipped, case, require
from adapters.conformance.journal import numbered, require_whole_transactions
from adapters.conformance.model import difference_of_changes
from adapters.conformance.operations import Insert, Mark
from adapters.conformance.reading import Entry
from adapters.conformance.workload import BANK, Bank
from algebra.position import Position

TRANSACTIONS = 12
LIMITS = (1, 2, 5, 1000)


def _backlog(bench: Bench) -> Position:
    """Transactions of all sizes, with a look at the source after each, so that it may tell them apart."""
    start = bench.start(*BANK)
    for number, transaction in enumerate(Bank(11).script(TRANSACTIONS)):
        if number % 3 == 0 and bench.adapter.capabilities.global_transactions:
            mark = Mark(f"g{number}", f"{bench.adapter.config.name},elsewhere")
            transaction = replace(transaction, operations=(mark, *transaction.operations))
        bench.write(transaction)
        bench.position()
    return start


def _rows(entry: Entry) -> int:
    """What an entry counts against a limit, at least."""
    return max(1, sum(abs(count) for bag in entry.change.values() for count in bag.values()))


@case
def runs_add_up_to_all_changes(bench: Bench) -> None:
    """Read in runs of any size, the changes are the same as read at once: every entry, in order, once."""
    start = _backlog(bench)
    with bench.reading() as reading:
        whole = reading.entries(start)
        bench.require_entries(f"changes({start})", bench.truth, whole)
        for most_rows in LIMITS:
            found = [entry for run in reading.runs(start, most_rows) for entry in run]
            what = f"in runs of {most_rows} rows, changes({start})"
            positions, wanted = [e.position for e in found], [e.position for e in whole]
            require(positions == wanted, f"{what} are at {positions}, not {wanted}")
            for one, other in zip(found, whole, strict=True):
                text = difference_of_changes(other.change, one.change)
                require(not text, f"{what}: entry {one.position} reads differently: {text}")
                require(
                    (one.batched, one.part_of) == (other.batched, other.part_of),
                    f"{what}: entry {one.position} is told as another kind of transaction",
                )


@case
def a_run_never_ends_inside_a_transaction(bench: Bench) -> None:
    """However small a run must be, a transaction is in it as a whole, with all its relations."""
    start = bench.start(*BANK)
    for number in range(1, 4):
        accounts = tuple((10 * number + i, "ada", 0) for i in range(4))
        postings = tuple((10 * number, "x", i) for i in range(3))
        bench.write(numbered(number, Insert("account", accounts), Insert("posting", postings)))
        bench.position()
    truth = {number: change for change in bench.truth for (number,) in change["journal"]}
    with bench.reading() as reading:
        for most_rows in (1, 3, 9):
            entries = [entry for run in reading.runs(start, most_rows) for entry in run]
            require_whole_transactions(truth, entries)


@case
def runs_are_as_small_as_asked(bench: Bench) -> None:
    """A run ends with the transaction by which it has as many rows as asked for, or before it."""
    start = _backlog(bench)
    if not bench.adapter.capabilities.bounded_runs:
        raise CaseSkipped("this capture tells its changes at once, and says so")
    with bench.reading() as reading:
        for most_rows in LIMITS:
            for run in reading.runs(start, most_rows):
                before = sum(_rows(entry) for entry in run[:-1])
                require(before < most_rows, f"a run of {most_rows} rows goes on after {before} rows")


CASES = (runs_add_up_to_all_changes, a_run_never_ends_inside_a_transaction, runs_are_as_small_as_asked)
