from __future__ import annotations

import random

import pytest

from algebra import consistency
from lab.generate import generate
from lab.scenario import Scenario
from mediator.maintenance import ALGORITHMS


def scenarios(algorithm: str, count: int = 60, **options: object) -> list[Scenario]:
    return [generate(random.Random(seed), algorithm, **options) for seed in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize("sources", range(1, 7))
def test_every_number_of_sources_has_scenarios(sources: int) -> None:
    for made in scenarios("sweep", 6, sources=sources):
        made.check()
        assert len(made.sources) == sources
        assert made.transactions == 5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_scenarios_fit_what_the_algorithm_needs(algorithm: str) -> None:
    needs = ALGORITHMS[algorithm]
    for made in scenarios(algorithm, 12):
        made.check()
        assert not needs.needs_keys or all(r.key for s in made.sources for r in s.relations)
        assert not needs.single_source or len(made.sources) == 1


def test_single_updates_change_one_row_each() -> None:
    for made in scenarios("sweep", kind=consistency.Scenario.SINGLE_UPDATE):
        assert made.kind is consistency.Scenario.SINGLE_UPDATE


def test_there_are_insertions_deletions_modifications_and_keys_used_again() -> None:
    kinds: set[str] = set()
    for made in scenarios("strobe"):
        for source in made.sources:
            deleted: set[tuple[str, object]] = set()
            for transaction in source.transactions:
                net = transaction.net()
                gone = {(relation, row[0]) for (relation, row), n in net.items() if n < 0}
                come = {(relation, row[0]) for (relation, row), n in net.items() if n > 0}
                kinds |= {"deletion"} if gone else set()
                kinds |= {"insertion"} if come else set()
                kinds |= {"modification"} if gone & come else set()
                kinds |= {"again"} if come & deleted else set()
                kinds |= {"several relations"} if len({relation for relation, _ in net}) > 1 else set()
                deleted |= gone
    assert kinds == {"insertion", "deletion", "modification", "again", "several relations"}


def test_global_transactions_span_sources_in_one_order() -> None:
    for made in scenarios("sweep", kind=consistency.Scenario.GLOBAL):
        made.check()
        assert made.kind is consistency.Scenario.GLOBAL


def test_the_same_seed_gives_the_same_scenario() -> None:
    assert scenarios("sweep", 5) == scenarios("sweep", 5)
