"""Waiting: a commit ends it, a wake ends it, and nothing is slept through."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from adapters.conformance.bench import Bench
from adapters.conformance.case import case, require
from adapters.conformance.operations import Insert, Transaction
from adapters.conformance.queries import table

NOTE = table("note", {"text": pa.string()})
ONE = Transaction((Insert("note", (("x",),)),))

FOREVER = 3600.0


@contextmanager
def waiting(bench: Bench, timeout: float = FOREVER) -> Iterator[threading.Event]:
    """Another thread in `adapter.wait`; yields the event that it returned."""
    returned = threading.Event()

    def wait() -> None:
        bench.wait(timeout)
        returned.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield returned
    finally:
        bench.adapter.wake()
        thread.join(bench.quirks.patience)


@case
def wait_returns_after_a_commit(bench: Bench) -> None:
    """A commit, during the wait, makes it return."""
    bench.start(NOTE)
    for number in range(3):
        with waiting(bench) as returned:
            bench.write(ONE)
            require(bench.within_patience(returned), f"wait slept through commit {number}")
        bench.position()


@case
def wait_returns_for_an_earlier_commit(bench: Bench) -> None:
    """A commit after the last snapshot and before the wait makes it return: no wake-up is lost."""
    bench.start(NOTE)
    bench.write(ONE)
    with waiting(bench) as returned:
        require(bench.within_patience(returned), "wait slept on a change that was there when it began")


@case
def wait_returns_when_time_is_up(bench: Bench) -> None:
    """Without a change, the wait ends with its timeout."""
    bench.start(NOTE)
    with waiting(bench, timeout=0.05) as returned:
        require(bench.within_patience(returned), "wait(0.05) did not return")


@case
def wake_ends_a_wait(bench: Bench) -> None:
    """Another thread's wake makes a wait return."""
    bench.start(NOTE)
    with waiting(bench) as returned:
        bench.adapter.wake()
        require(bench.within_patience(returned), "wake did not end the wait")


CASES = (
    wait_returns_after_a_commit,
    wait_returns_for_an_earlier_commit,
    wait_returns_when_time_is_up,
    wake_ends_a_wait,
)
