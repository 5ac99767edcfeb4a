"""The cost of capture is a ratio of two runs of the same transactions."""

from __future__ import annotations

from pathlib import Path

from adapters.conformance import CaseSkipped
from adapters.conformance.tests.memory_harness import MemoryHarness
from adapters.memory import MemoryAdapter
from lab.bench.capture import Effort, harnesses, measure

SMALL = Effort(turns=2, transactions=4, bulk_turns=1, bulk_rows=50)


def test_every_capture_of_this_checkout_has_a_harness() -> None:
    found = {(adapter, capture) for adapter, capture, _ in harnesses()}
    assert {("sqlite", "trigger"), ("duckdb", "trigger"), ("duckdb", "diff")} <= found
    assert {adapter for adapter, _, _ in harnesses(["sqlite"])} == {"sqlite"}


def test_a_cost_is_two_ratios() -> None:
    cost = measure("memory", "log", MemoryHarness, SMALL)
    assert cost.problem == ""
    assert cost.small_ratio > 0
    assert cost.bulk_ratio > 0
    assert cost.transactions_per_second > 0


def test_what_cannot_be_measured_says_why() -> None:
    class NoServer(MemoryHarness):
        def __init__(self, directory: Path) -> None:
            raise CaseSkipped("no server: apt-get install it")

    assert measure("memory", "log", NoServer, SMALL).problem == "no server: apt-get install it"


def test_a_follower_that_fails_is_no_measurement() -> None:
    class Broken(MemoryAdapter):
        def snapshot(self):  # type: ignore[no-untyped-def]
            from algebra.errors import DataError

            raise DataError("a value that does not fit")

    class BrokenHarness(MemoryHarness):
        adapter_class = Broken

    assert measure("memory", "log", BrokenHarness, SMALL).problem == "a value that does not fit"
