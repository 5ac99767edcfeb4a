"""What the sweeps promise holds on hundreds of schedules; what is wrong is caught, and made small."""

from __future__ import annotations

import pytest

from algebra import consistency
from algebra.consistency import Level
from algebra.sweep import sweep
from lab.counterexample import counterexample
from lab.experiment import Experiment, run
from lab.explore import explore
from lab.oracle import check_vectors, judge
from lab.scenario import Scenario
from lab.tests.worlds import CHAIN, scenario
from lab.transcript import Transcript, format_history
from lab.world import World
from mediator.maintenance.contract import Install, Maintenance, Process, Take, ViewContext
from mediator.maintenance.sweep import deltas_of

SWEEPS = ("sweep", "sweep-published", "sweep-parallel")


@pytest.mark.parametrize("faults", [False, True], ids=["calm", "faults"])
@pytest.mark.parametrize("algorithm", SWEEPS)
def test_sweeps_are_complete(algorithm: str, faults: bool) -> None:
    """Reference: SWEEP paper, section 5; restarts and cut links change nothing about it."""
    result = run(Experiment(algorithm, schedules=210, faults=faults))
    assert dict(result.levels) == {Level.COMPLETE: 210}
    assert result.untrue == 0


@pytest.mark.parametrize("sources", [1, 2, 5])
def test_sweeps_are_complete_over_few_and_many_sources(sources: int) -> None:
    result = run(Experiment("sweep", sources=sources, transactions=4, schedules=42, seed=sources))
    assert result.reached is Level.COMPLETE


@pytest.mark.parametrize("algorithm", SWEEPS)
def test_sweeps_are_complete_under_every_schedule(algorithm: str) -> None:
    histories = list(explore(World(scenario(CHAIN, algorithm))))
    assert len(histories) > 40
    assert {judge(history).level for history in histories} == {Level.COMPLETE}
    assert not any(check_vectors(history) for history in histories)


def test_global_transactions_can_be_seen_in_parts() -> None:
    """Reference: Strobe paper, section 5.4."""
    result = run(Experiment("sweep", schedules=84, kind=consistency.Scenario.GLOBAL))
    assert result.reached is Level.WEAK
    assert result.broken == 0


def test_ivma_is_caught_and_its_counterexample_has_two_transactions() -> None:
    """Two updates that meet are the least that can go wrong."""
    result = run(Experiment("ivma", schedules=63, kind=consistency.Scenario.SINGLE_UPDATE))
    assert result.reached is Level.NONE
    assert result.broken == 0, "it promises nothing"
    assert result.failure is not None
    small = counterexample(result.failure)
    assert judge(small).level is Level.NONE
    assert small.world.scenario.transactions == 2
    text = format_history(small)
    assert format_history(counterexample(result.failure)) == text, "shrinking is deterministic"
    assert format_history(counterexample(small)) == text, "nothing is left to spare"
    assert format_history(Transcript.parse(text).replay()) == text


class Uncompensated(Maintenance):
    """SWEEP that forgets to subtract what is concurrent."""

    name = "sweep-published"
    guarantee = dict.fromkeys(consistency.Scenario, Level.COMPLETE)
    message_cost = "n-1"
    takes_batches = True
    max_batch = 1

    def maintain(self, view: ViewContext) -> Process:
        assert view.pending is not None
        pending = view.pending
        while True:
            batch = yield Take()
            change = yield from sweep(
                view.plan,
                deltas_of(batch),
                view.engine,
                lambda node, position: pending(node, position).slice(0, 0),
            )
            yield Install(change, batch)


def test_a_sweep_without_compensation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scenario, "maintenance", Uncompensated())
    levels = {judge(history).level for history in explore(World(scenario(CHAIN, "sweep-published")))}
    assert Level.NONE in levels
    result = run(Experiment("sweep-published", schedules=42))
    assert result.broken
    assert result.failure is not None
    assert counterexample(result.failure).world.scenario.transactions == 2
