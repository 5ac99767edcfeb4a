"""Numbered transactions: each writes its own number into the journal, so an entry tells what it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from adapters.conformance.case import fail, require
from adapters.conformance.model import Change, difference_of_changes, sum_changes
from adapters.conformance.operations import Insert, Operation, Transaction
from adapters.conformance.queries import table
from adapters.conformance.reading import Entry
from adapters.spi import Boundaries

JOURNAL = table("journal", {"number": pa.int64()}, key=["number"])

WRITER_STRIDE = 1_000_000
"""Numbers of writer w start at w times this."""


def numbered(number: int, *operations: Operation, commits: bool = True) -> Transaction:
    """A transaction that also notes its number; last, so that a split off part shows none."""
    return Transaction((*operations, Insert(JOURNAL.name, ((number,),))), commits)


def numbers_in(entry: Entry) -> list[int]:
    """The numbers of the transactions in an entry, ascending."""
    return sorted(number for (number,) in entry.change.get(JOURNAL.name, {}))


def require_whole_transactions(truth: Mapping[int, Change], entries: Sequence[Entry]) -> None:
    """Fail unless every entry holds whole transactions, each transaction once, and nothing is missing."""
    seen: set[int] = set()
    for index, entry in enumerate(entries):
        numbers = numbers_in(entry)
        require(bool(numbers), f"entry {index} holds only a part of a transaction: {_text(entry)}")
        strangers = [number for number in numbers if number not in truth]
        require(not strangers, f"entry {index} holds transactions that never committed: {strangers}")
        again = [number for number in numbers if number in seen]
        require(not again, f"entry {index} repeats transactions {again}")
        seen.update(numbers)
        text = difference_of_changes(sum_changes(truth[number] for number in numbers), entry.change)
        if text:
            fail(f"entry {index} is not the whole of transactions {numbers}: {text}")
    missing = sorted(set(truth) - seen)
    require(not missing, f"transactions {missing[:10]} are in no entry")


def require_commit_order(entries: Sequence[Entry]) -> None:
    """Fail unless the transactions of each writer come one after the other, as it committed them."""
    latest: dict[int, int] = {}
    for index, entry in enumerate(entries):
        for number in numbers_in(entry):
            writer = number // WRITER_STRIDE
            before = latest.get(writer, -1)
            require(before < number, f"entry {index} holds transaction {number}, after {before}")
            latest[writer] = number


def require_exact(boundaries: Boundaries, entries: Sequence[Entry]) -> None:
    """Fail if an entry that claims to be one transaction holds several."""
    for index, entry in enumerate(entries):
        numbers = numbers_in(entry)
        if entry.batched:
            require(
                boundaries is not Boundaries.EXACT,
                f"entry {index} is marked batched, though boundaries are exact",
            )
        elif boundaries is not Boundaries.BATCHED:
            require(
                len(numbers) <= 1,
                f"entry {index} claims to be one transaction and holds {len(numbers)}: {numbers}",
            )


def _text(entry: Entry) -> str:
    return ", ".join(f"{sum(map(abs, bag.values()))} rows of {name}" for name, bag in entry.change.items())
