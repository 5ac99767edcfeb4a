"""Marks of global transactions: each comes with its transaction, whatever that did, and with no other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from adapters.conformance.bench import Bench
from adapters.conformance.case import CaseSkipped, case, require
from adapters.conformance.journal import WRITER_STRIDE, numbered, numbers_in
from adapters.conformance.operations import Insert, Mark, Operation, Row, Transaction
from adapters.conformance.reading import Entry
from adapters.conformance.workload import BANK, Bank
from adapters.spi import Boundaries
from algebra.global_transaction import GlobalTransaction
from algebra.position import Position

ELSEWHERE = "elsewhere"
"""A participant that no adapter knows; it need not."""

TRANSACTIONS = 12


def _create(bench: Bench) -> None:
    bench.create(*BANK)
    if not bench.adapter.capabilities.global_transactions:
        raise CaseSkipped("this capture takes no marks of global transactions, and says so")


def _start(bench: Bench, *relations: str) -> Position:
    _create(bench)
    bench.prepare(*relations)
    return bench.position()


def _mark(bench: Bench, id: str) -> Mark:
    return Mark(id, f"{bench.adapter.config.name},{ELSEWHERE}")


def _marked(bench: Bench, number: int, *operations: Operation, commits: bool = True) -> Transaction:
    """A numbered transaction whose mark is its number."""
    return numbered(number, _mark(bench, str(number)), *operations, commits=commits)


def _posting(number: int) -> Insert:
    return Insert("posting", ((number, "", 0),))


def _shown(entry: Entry) -> set[GlobalTransaction]:
    return set(entry.part_of.all) if entry.part_of is not None else set()


def _ids(entries: Iterable[Entry]) -> list[str]:
    """The ids of all marks, entry by entry."""
    return [one.id for entry in entries for one in (entry.part_of.all if entry.part_of else ())]


def _require_marks(bench: Bench, marked: Collection[int], entries: Iterable[Entry]) -> None:
    """Fail unless each entry is a part of exactly what the transactions it holds are marked with."""
    participants = frozenset({bench.adapter.config.name, ELSEWHERE})
    for entry in entries:
        numbers = numbers_in(entry)
        wanted = {GlobalTransaction(str(number), participants) for number in numbers if number in marked}
        found = _shown(entry)
        require(
            found == wanted,
            f"the entry with transactions {numbers} is a part of {_text(found)}, not of {_text(wanted)}",
        )


def _text(marks: Iterable[GlobalTransaction]) -> str:
    texts = [f"{mark.id!r} in {', '.join(sorted(mark.participants))}" for mark in marks]
    return " and ".join(sorted(texts)) or "nothing"


@case
def marks_come_with_their_transactions(bench: Bench) -> None:
    """A transaction with a mark is a part of that global transaction, with all its participants."""
    start = _start(bench)
    bench.write(
        numbered(1, _posting(1)),
        _marked(bench, 2, _posting(2)),
        _marked(bench, 3, _posting(3), _posting(3)),
        numbered(4, _posting(4)),
        _marked(bench, 5, _posting(5)),
    )
    entries = bench.entries(start)
    _require_marks(bench, {2, 3, 5}, entries)
    require(_ids(entries) == ["2", "3", "5"], f"marks {_ids(entries)} came, not 2, 3 and 5")
    bench.require_agreement(start)


@case
def unmarked_transactions_carry_no_mark(bench: Bench) -> None:
    """A mark is over with its transaction: what comes later, in whichever snapshot, does not have it."""
    at = _start(bench)
    for number in range(1, 7):
        marked = number % 3 == 1
        bench.write(_marked(bench, number) if marked else numbered(number, _posting(number)))
        with bench.reading() as reading:
            _require_marks(bench, {number} if marked else (), reading.entries(at))
            at = reading.position


@case
def parts_without_changes_have_an_entry(bench: Bench) -> None:
    """A transaction that has a mark and changes nothing that is captured is an entry all the same."""
    start = _start(bench, "account", "journal")
    bench.write(numbered(1))
    steps: dict[str, tuple[Operation, ...]] = {"alone": (), "beside": (_posting(1),)}
    for id, operations in steps.items():
        before = bench.position()
        bench.writer().run([Transaction((_mark(bench, id), *operations))])
        with bench.reading() as reading:
            require(reading.position > before, f"a transaction with a mark did not move {before}")
            entries = reading.entries(before)
        require(_ids(entries) == [id], f"after a transaction with the mark {id!r} came {_ids(entries)}")
        require(not entries[0].change, f"the part that changed nothing captured shows {entries[0].change}")
    bench.write(numbered(2))
    entries = bench.entries(start)
    require(_ids(entries) == ["alone", "beside"], f"marks {_ids(entries)} came, not alone and beside")
    numbers = [number for entry in entries for number in numbers_in(entry)]
    require(numbers == [1, 2], f"beside the parts without changes, transactions {numbers} came, not 1 and 2")


@case
def rolled_back_marks_vanish(bench: Bench) -> None:
    """A mark of a transaction that rolled back is nowhere, also not on the next transaction."""
    start = _start(bench)
    bench.write(
        _marked(bench, 1, commits=False),
        numbered(2, _posting(2)),
        Transaction((_mark(bench, "alone"),), commits=False),
        _marked(bench, 3),
        _marked(bench, 4, commits=False),
    )
    entries = bench.entries(start)
    _require_marks(bench, {3}, entries)
    require(_ids(entries) == ["3"], f"marks {_ids(entries)} came; of those only 3 committed")


@case
def several_marks_add_up(bench: Bench) -> None:
    """Rows with one id name the participants together; with several ids a transaction is a part of each."""
    start = _start(bench)
    here = bench.adapter.config.name
    bench.write(
        numbered(1, Mark("x", ELSEWHERE), _posting(1), Mark("x", here)),
        numbered(2, Mark("z", f" {here} ,, far "), Mark("y", f"{here},{ELSEWHERE}"), Mark("z", here)),
    )
    x = GlobalTransaction("x", frozenset({here, ELSEWHERE}))
    y = GlobalTransaction("y", frozenset({here, ELSEWHERE}))
    z = GlobalTransaction("z", frozenset({here, "far"}))
    for entry in bench.entries(start):
        wanted = {mark for number in numbers_in(entry) for mark in ({x} if number == 1 else {y, z})}
        found = _shown(entry)
        require(found == wanted, f"an entry with several marks is of {_text(found)}, not of {_text(wanted)}")


@case
def marks_that_say_nothing_are_ignored(bench: Bench) -> None:
    """Without an id, or without this source among its participants, a mark is none; nothing else is lost."""
    start = _start(bench)
    here = bench.adapter.config.name
    unusable = [(None, here), ("", here), ("  ", here), ("7", None), ("7", ""), ("7", ELSEWHERE)]
    for number, row in enumerate(unusable):
        bench.write(numbered(number, Mark(*row), _posting(number)))
    bench.write(Transaction((Mark(None, None),)), _marked(bench, len(unusable)))
    entries = bench.entries(start)
    _require_marks(bench, {len(unusable)}, entries)
    numbers = [number for entry in entries for number in numbers_in(entry)]
    require(numbers == list(range(len(unusable) + 1)), f"of {len(unusable) + 1} transactions {numbers} came")
    bench.require_agreement(start)


def _journal(transaction: Transaction) -> Row:
    note = transaction.operations[-1]
    assert isinstance(note, Insert)
    return note.rows[0]


def _batched(bench: Bench, entry: Entry) -> bool:
    return entry.batched or bench.adapter.capabilities.boundaries is Boundaries.BATCHED


def _run(bench: Bench) -> tuple[Position, set[int], list[Entry]]:
    """Some transactions, half of them marked and some without changes: start, what is marked, the entries."""
    start = _start(bench)
    marked: set[int] = set()
    for transaction in Bank(seed=11).script(TRANSACTIONS):
        (number,) = _journal(transaction)
        if number % 2:
            mark = _mark(bench, str(number))
            transaction = Transaction((mark, *transaction.operations), transaction.commits)
            marked |= {number} if transaction.commits else set()
        bench.write(transaction, Transaction((_mark(bench, f"after {number}"),)))
        bench.position()
    return start, marked, bench.entries(start)


def _require_same_marks(bench: Bench, entries: Sequence[Entry], after: Position, when: str) -> None:
    """Fail unless what follows a position has the marks that it had before.

    Where a capture batches, it may draw the bounds between entries anew.
    """
    rest = [entry for entry in entries if entry.position > after]
    for entry in bench.entries(after):
        length = sum(1 for other in rest if other.position <= entry.position)
        same, rest = rest[:length], rest[length:]
        require(
            length == 1 or _batched(bench, entry),
            f"{when}, entry {entry.position} stands for {length} entries",
        )
        wanted = {mark for other in same for mark in _shown(other)}
        require(
            _shown(entry) == wanted,
            f"{when}, entry {entry.position} is a part of {_text(_shown(entry))}, not of {_text(wanted)}",
        )
    require(not rest, f"{when}, {_ids(rest)} are missing")


@case
def marks_are_the_same_after_any_position(bench: Bench) -> None:
    """From wherever the changes are read, an entry has the same marks."""
    start, marked, entries = _run(bench)
    _require_marks(bench, marked, [entry for entry in entries if entry.change and not _batched(bench, entry)])
    for position in [start, *(entry.position for entry in entries)]:
        _require_same_marks(bench, entries, position, f"in changes({position})")


@case
def marks_survive_a_restart(bench: Bench) -> None:
    """A new adapter on the same source shows the marks of what was committed before."""
    start, _, entries = _run(bench)
    if not bench.adapter.capabilities.history:
        raise CaseSkipped("this capture keeps no history over a restart, and says so")
    bench.open()
    for position in [start, entries[len(entries) // 2].position]:
        _require_same_marks(bench, entries, position, f"after a restart, in changes({position})")


@case
def marks_stay_until_they_are_acknowledged(bench: Bench) -> None:
    """What comes after an acknowledged position keeps its marks, and new marks are taken as before."""
    _, _, entries = _run(bench)
    middle = entries[len(entries) // 2].position
    bench.acknowledge(middle)
    _require_same_marks(bench, entries, middle, f"after acknowledge({middle})")
    bench.acknowledge(entries[-1].position)
    bench.write(_marked(bench, 900))
    _require_marks(bench, {900}, bench.entries(entries[-1].position))


@case
def removal_takes_the_marks_with_it(bench: Bench) -> None:
    """Remove leaves no marker table, and capture that is installed again knows nothing of old marks."""
    _create(bench)
    before = bench.harness.objects()
    bench.prepare()
    bench.write(_marked(bench, 1), Transaction((_mark(bench, "alone"),)))
    bench.position()
    bench.remove()
    after = bench.harness.objects()
    require(after == before, f"remove left {sorted(after - before)} and took {sorted(before - after)}")
    bench.prepare()
    start = bench.position()
    bench.write(numbered(2, _posting(2)), _marked(bench, 3))
    entries = bench.entries(start)
    _require_marks(bench, {3}, entries)
    require(_ids(entries) == ["3"], f"after remove and prepare, marks {_ids(entries)} came, not 3")


@case
def marks_follow_concurrent_writers(bench: Bench) -> None:
    """Whatever several writers do at the same time, each transaction comes with its own mark."""
    at = _start(bench)
    scripts: list[list[Transaction]] = []
    marked: set[int] = set()
    for writer in range(bench.quirks.writers):
        numbers = range(writer * WRITER_STRIDE + 1, writer * WRITER_STRIDE + bench.quirks.workload // 2)
        marked |= {number for number in numbers if number % 3}
        scripts.append(
            [
                _marked(bench, number, _posting(number)) if number % 3 else numbered(number, _posting(number))
                for number in numbers
            ]
        )
    entries: list[Entry] = []
    with bench.writing(*scripts) as done:
        last = False
        while not last:
            last = done()  # asked before the snapshot: the last reading sees everything
            with bench.reading() as reading:
                entries += reading.entries(at)
                at = reading.position
            if not bench.quirks.overlap:
                bench.wait(0.05)  # so that writers get their turn
    _require_marks(bench, marked, entries)
    missing = marked - {int(id) for id in _ids(entries)}
    require(not missing, f"the marks of transactions {sorted(missing)[:10]} are in no entry")


CASES = (
    marks_come_with_their_transactions,
    unmarked_transactions_carry_no_mark,
    parts_without_changes_have_an_entry,
    rolled_back_marks_vanish,
    several_marks_add_up,
    marks_that_say_nothing_are_ignored,
    marks_are_the_same_after_any_position,
    marks_survive_a_restart,
    marks_stay_until_they_are_acknowledged,
    removal_takes_the_marks_with_it,
    marks_follow_concurrent_writers,
)
