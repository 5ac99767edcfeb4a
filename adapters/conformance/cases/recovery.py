"""Recovery: a source that restarts, and a connection that is cut, cost time and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from adapters.conformance.bench import Bench
from adapters.conformance.case import CaseSkipped, case, fail, require
from adapters.conformance.cases.resuming import require_suffix
from adapters.conformance.cases.waiting import waiting
from adapters.conformance.journal import numbered, numbers_in
from adapters.conformance.operations import Insert
from adapters.conformance.workload import BANK, Bank
from algebra.errors import SourceUnavailableError
from algebra.position import Position

TRANSACTIONS = 6


def _follow(bench: Bench) -> tuple[Position, list[Position]]:
    """A source that is followed in the middle of a stream: its start, and the positions seen."""
    start = bench.start(*BANK)
    seen = []
    for transaction in Bank(7).script(TRANSACTIONS):
        bench.write(transaction)
        seen.append(bench.position())
    return start, seen


def _require_all(bench: Bench, start: Position, seen: list[Position], when: str) -> None:
    """Fail unless everything is there: the tables, the whole stream, and what follows each position."""
    bench.require_agreement(start, when)
    with bench.reading() as reading:
        entries = reading.entries(start)
        for position in seen:
            require_suffix(bench, reading, entries, position, f"{when}, ")


def _write(bench: Bench, number: int) -> None:
    bench.write(numbered(number, Insert("posting", ((number, "later", 0),))))


@case
def a_restart_of_the_source_loses_nothing(bench: Bench) -> None:
    """When the source restarts in mid-stream, the same adapter and a new one go on from every position; a
    transaction that was open is gone."""
    bench.require_has("restart", bench.quirks.no_restart)
    start, seen = _follow(bench)
    bench.writer().begin()
    bench.writer().execute(Insert("posting", ((1, "never committed", 1),)))
    with bench.harness.restarting():
        pass
    bench.drop_writers()
    _write(bench, 900)
    _require_all(bench, start, seen, "after a restart of the source")
    bench.acknowledge(seen[-1])
    _write(bench, 901)
    if bench.adapter.capabilities.history:
        bench.open()
    shown = [number for entry in bench.entries(seen[-1]) for number in numbers_in(entry)]
    require(shown == [900, 901], f"after the restart and an acknowledgement, {shown} follow, not 900 and 901")


@case
def a_source_that_is_down_is_unavailable(bench: Bench) -> None:
    """While the source is down, every call is a SourceUnavailableError of one line: it is retried."""
    bench.require_has("restart", bench.quirks.no_restart)
    start, seen = _follow(bench)
    bench.drop_writers()
    with bench.harness.restarting():
        _require_unavailable("a snapshot", lambda: _read(bench, start))
        _require_unavailable("catalog", bench.adapter.catalog)
        bench.open()
        _require_unavailable("catalog of a new adapter", bench.adapter.catalog)
        _require_unavailable("prepare", lambda: bench.adapter.prepare(tuple(bench.model.tables)))
    bench.open()
    if not bench.adapter.capabilities.history:
        raise CaseSkipped("this capture keeps no history over a restart, and says so")
    _write(bench, 900)
    _require_all(bench, start, seen, "when the source is up again")


@case
def a_lost_connection_loses_nothing(bench: Bench) -> None:
    """When its connections are cut between snapshots, the adapter makes new ones, and goes on."""
    bench.require_has("disconnect", bench.quirks.no_disconnect)
    start, seen = _follow(bench)
    for number in range(900, 902):
        bench.harness.disconnect()
        _write(bench, number)
        _require_all(bench, start, seen, "after the connection was lost")
    bench.harness.disconnect()
    bench.acknowledge(seen[1])
    _write(bench, 902)
    shown = [number for entry in bench.entries(seen[-1]) for number in numbers_in(entry)]
    require(shown == [900, 901, 902], f"after connections were lost, {shown} follow, not 900 to 902")


@case
def a_connection_lost_in_a_snapshot_is_said(bench: Bench) -> None:
    """When its connections are cut inside a snapshot, a reading is right or SourceUnavailableError; the next
    snapshot is right."""
    bench.require_has("disconnect", bench.quirks.no_disconnect)
    start, seen = _follow(bench)
    try:
        with bench.reading() as reading:
            bench.harness.disconnect()
            bench.require_tables("in the snapshot whose connection was lost", reading)
            found = reading.entries(start)
            bench.require_entries("in the snapshot whose connection was lost", bench.truth, found)
    except SourceUnavailableError:
        pass
    _write(bench, 900)
    _require_all(bench, start, seen, "in the snapshot after the connection was lost")


@case
def a_lost_connection_ends_no_waiting(bench: Bench) -> None:
    """When its connections are cut during a wait, a later commit is still noticed."""
    bench.require_has("disconnect", bench.quirks.no_disconnect)
    start = bench.start(*BANK)
    for number in range(2):
        bench.wait(0.0)  # so that no wake of the round before is left
        with waiting(bench) as returned:
            bench.harness.disconnect()
            _write(bench, number)
            require(bench.within_patience(returned), "wait slept on after its connection was lost")
        bench.require_agreement(start, "after the wait")


def _read(bench: Bench, start: Position) -> None:
    with bench.adapter.snapshot() as snapshot:
        snapshot.changes(start)


def _require_unavailable(what: str, attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except SourceUnavailableError as error:
        require("\n" not in str(error), f"{what}: the error has several lines: {error}")
        return
    except Exception as error:
        fail(f"{what}, while the source is down, raised {type(error).__name__}: {error}")
    fail(f"{what} answered while the source is down")


CASES = (
    a_restart_of_the_source_loses_nothing,
    a_source_that_is_down_is_unavailable,
    a_lost_connection_loses_nothing,
    a_connection_lost_in_a_snapshot_is_said,
    a_lost_connection_ends_no_waiting,
)
