"""Resuming: from any position, the changes that follow it, all of them, or a clear refusal."""

from __future__ import annotations

from collections.abc import Sequence

from adapters.conformance.bench import Bench
from adapters.conformance.case import CaseSkipped, case, fail, require
from adapters.conformance.journal import numbered, numbers_in
from adapters.conformance.model import difference_of_changes, sum_changes
from adapters.conformance.operations import Insert
from adapters.conformance.reading import Entry, Reading
from adapters.conformance.workload import BANK, Bank
from adapters.spi import Boundaries
from algebra.errors import PositionTrimmedError
from algebra.position import ORIGIN, Position

TRANSACTIONS = 9


def _run(bench: Bench, script_seed: int = 5) -> tuple[Position, list[Position]]:
    """Some transactions, one snapshot after each; returns the start and the positions seen."""
    start = bench.start(*BANK)
    seen = []
    for transaction in Bank(script_seed).script(TRANSACTIONS):
        bench.write(transaction)
        seen.append(bench.position())
    return start, seen


def require_suffix(
    bench: Bench, reading: Reading, entries: Sequence[Entry], after: Position, when: str = ""
) -> None:
    """Fail unless changes(after) are those of `entries` that come after that position.

    Where a capture batches, it may draw the bounds between entries anew, but not through one.
    """
    rest = [entry for entry in entries if entry.position > after]
    found = reading.entries(after)
    wanted, shown = [numbers_in(entry) for entry in rest], [numbers_in(entry) for entry in found]
    what = f"{when}changes({after})"
    for entry in found:
        batched = entry.batched or bench.adapter.capabilities.boundaries is Boundaries.BATCHED
        length = sum(1 for other in rest if other.position <= entry.position)
        require(length == 1 or (batched and length > 0), f"{what} hold transactions {shown}, not {wanted}")
        same, rest = rest[:length], rest[length:]
        moved = entry.position != same[-1].position
        require(not moved, f"{what}: entry {same[-1].position} moved to {entry.position}")
        text = difference_of_changes(sum_changes(other.change for other in same), entry.change)
        if text:
            fail(f"{what}: entry {entry.position} reads differently: {text}")
    require(not rest, f"{what} hold transactions {shown}, not {wanted}")


@case
def resume_after_any_position(bench: Bench) -> None:
    """After every position that a snapshot or an entry ever had, exactly the later entries follow."""
    start, seen = _run(bench)
    with bench.reading() as reading:
        entries = reading.entries(start)
        bench.require_entries(f"changes({start})", bench.truth, entries)
        for position in [*seen, *(entry.position for entry in entries)]:
            require_suffix(bench, reading, entries, position)
        require(
            not reading.entries(reading.position), "changes after the snapshot's own position are not empty"
        )


@case
def resume_after_a_restart(bench: Bench) -> None:
    """A new adapter on the same source goes on from any position of the old one."""
    start, seen = _run(bench)
    if not bench.adapter.capabilities.history:
        raise CaseSkipped("this capture keeps no history over a restart, and says so")
    entries = bench.entries(start)
    bench.open()
    bench.write(numbered(900, Insert("posting", ((1, "while away", 0),))))
    with bench.reading() as reading:
        later = reading.entries(entries[-1].position)
        require(
            [numbers_in(e) for e in later] == [[900]],
            f"after a restart, {[numbers_in(e) for e in later]} follow, not [[900]]",
        )
        for position in [start, *seen[::3]]:
            require_suffix(bench, reading, [*entries, *later], position, "after a restart, ")


@case
def positions_rise_with_commits(bench: Bench) -> None:
    """A snapshot's position is above the last one's if something was committed since, and never below."""
    start, seen = _run(bench)
    for earlier, later in zip([start, *seen], seen, strict=False):
        require(earlier <= later, f"the position went back from {earlier} to {later}")
    committed = len(bench.truth)
    require(
        len(set(seen) - {start}) == committed,
        f"{committed} commits moved the position {len(set(seen) - {start})} times",
    )


@case
def positions_rest_when_nothing_happens(bench: Bench) -> None:
    """The position stays as it is while nothing is committed, over reads, waits and a restart."""
    _, seen = _run(bench)
    for _ in range(3):
        bench.wait(0.0)
        require(bench.position() == seen[-1], f"the position moved from {seen[-1]} to {bench.position()}")
    if bench.adapter.capabilities.history:
        bench.open()
        require(
            bench.position() == seen[-1], f"a restart moved the position {seen[-1]} to {bench.position()}"
        )


@case
def the_origin_is_the_whole_history_or_refused(bench: Bench) -> None:
    """Changes after ORIGIN are everything since the tables were empty, or PositionTrimmedError."""
    _run(bench)
    with bench.reading() as reading:
        try:
            entries = reading.entries(ORIGIN)
        except PositionTrimmedError:
            return
        bench.require_entries("changes(ORIGIN)", bench.truth, entries)


@case
def nothing_is_trimmed_unasked(bench: Bench) -> None:
    """History stays until it is acknowledged, however often it is read."""
    start, seen = _run(bench)
    entries = bench.entries(start)
    for position in seen[:3]:
        bench.acknowledge(start)
        with bench.reading() as reading:
            require_suffix(bench, reading, entries, start, "before any acknowledgement, ")
            require_suffix(bench, reading, entries, position, "before any acknowledgement, ")


@case
def acknowledged_positions_can_be_resumed(bench: Bench) -> None:
    """After acknowledge(p), changes(p) and those after later positions are as before."""
    start, seen = _run(bench)
    entries = bench.entries(start)
    middle = seen[TRANSACTIONS // 2]
    bench.acknowledge(middle)
    bench.write(numbered(900, Insert("posting", ((1, "after", 0),))))
    with bench.reading() as reading:
        later = reading.entries(entries[-1].position)
        for position in [p for p in seen if p >= middle]:
            require_suffix(bench, reading, [*entries, *later], position, f"after acknowledge({middle}), ")
        bench.require_tables(f"after acknowledge({middle})", reading)


@case
def trimmed_history_is_refused(bench: Bench) -> None:
    """After acknowledge(p), what came before p is still whole or refused with PositionTrimmedError."""
    start, seen = _run(bench)
    entries = bench.entries(start)
    middle = seen[TRANSACTIONS // 2]
    bench.acknowledge(middle)
    bench.write(numbered(900, Insert("posting", ((1, "after", 0),))))
    with bench.reading() as reading:
        later = reading.entries(entries[-1].position)
        for position in [start, *(p for p in seen if p < middle)]:
            try:
                reading.snapshot.changes(position)
            except PositionTrimmedError:
                continue
            require_suffix(bench, reading, [*entries, *later], position, f"after acknowledge({middle}), ")


@case
def acknowledging_never_goes_back(bench: Bench) -> None:
    """Acknowledging an older position, or the same again, changes nothing."""
    start, seen = _run(bench)
    entries = bench.entries(start)
    middle = seen[TRANSACTIONS // 2]
    for position in (middle, start, middle, seen[0]):
        bench.acknowledge(position)
        with bench.reading() as reading:
            require_suffix(bench, reading, entries, middle, f"after acknowledge({position}), ")
    bench.acknowledge(seen[-1])
    bench.write(numbered(900, Insert("posting", ((1, "after", 0),))))
    shown = [numbers_in(entry) for entry in bench.entries(seen[-1])]
    require(shown == [[900]], f"after all was acknowledged, {shown} follow, not [[900]]")
    require(bench.position() > seen[-1], "after all was acknowledged, the position started over")


@case
def positions_from_the_future_are_refused(bench: Bench) -> None:
    """A position past the history, as after a restore from backup, is refused with PositionTrimmedError."""
    _, seen = _run(bench)
    future = Position(seen[-1].ordinal + 1_000_000, seen[-1].token)
    with bench.reading() as reading:
        try:
            changes = reading.snapshot.changes(future)
        except PositionTrimmedError:
            return
        fail(f"changes({future}) answered with {len(changes)} entries; the history ends at {seen[-1]}")


@case
def positions_of_a_removed_capture_are_refused(bench: Bench) -> None:
    """When capture was removed and installed again, the old positions are refused: a gap is in between."""
    start, seen = _run(bench)
    bench.remove()
    bench.write(numbered(900, Insert("posting", ((1, "unseen", 0),))))
    bench.prepare()
    bench.write(numbered(901, Insert("posting", ((1, "seen", 0),))))
    with bench.reading() as reading:
        for position in [start, *seen]:
            try:
                changes = reading.snapshot.changes(position)
            except PositionTrimmedError:
                continue
            fail(f"changes({position}) of the removed capture answered with {len(changes)} entries")


@case
def acknowledged_history_is_let_go(bench: Bench) -> None:
    """What was acknowledged is deleted in time: history does not grow for ever in or beside the source."""
    bench.require_has("trimming", bench.quirks.no_trimming)
    _run(bench)
    full = bench.harness.history_size()
    bench.acknowledge(bench.position())
    # Some captures delete what was acknowledged when they are next at work.
    bench.write(numbered(900, Insert("posting", ((1, "after", 0),))))
    bench.acknowledge(bench.position())
    left = bench.harness.history_size()
    require(left < full, f"{full} of history were kept; after all was acknowledged, {left} are")


CASES = (
    acknowledged_history_is_let_go,
    resume_after_any_position,
    resume_after_a_restart,
    positions_rise_with_commits,
    positions_rest_when_nothing_happens,
    the_origin_is_the_whole_history_or_refused,
    nothing_is_trimmed_unasked,
    acknowledged_positions_can_be_resumed,
    trimmed_history_is_refused,
    acknowledging_never_goes_back,
    positions_from_the_future_are_refused,
    positions_of_a_removed_capture_are_refused,
)
