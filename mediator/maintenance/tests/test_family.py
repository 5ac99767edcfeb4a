"""Every algorithm says what it does, in its file and in the documentation."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from algebra import sweep
from algebra.consistency import Scenario
from mediator.maintenance import ALGORITHMS

DOCS = Path(__file__).resolve().parents[3] / "docs" / "algorithms.md"
PARTS = ("Problem.", "Guarantee:", "Cost:", "Needs from ", "Reference:")


def header(name: str) -> str:
    module = inspect.getmodule(type(ALGORITHMS[name]))
    text = module.__doc__ if module else None
    # What the sweeps are is said where they are written.
    return f"{text}\n{sweep.__doc__}" if name.startswith("sweep") else str(text)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_header_says_problem_guarantee_cost_needs_and_reference(name: str) -> None:
    assert [part for part in PARTS if part not in " ".join(header(name).split())] == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_documentation_lists_every_algorithm_with_its_level(name: str) -> None:
    (row,) = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{name}`")]
    level, needs = row.split("|")[3].strip(), row.split("|")[5]
    algorithm = ALGORITHMS[name]
    assert level.startswith(str(algorithm.guarantee[Scenario.SOURCE_LOCAL]))
    assert ("keys" in needs) == algorithm.needs_keys
    assert ("one local view per source" in needs) == algorithm.one_node_per_source
    assert ("all relations in one source" in needs) == algorithm.single_source
    assert ("marks" in needs) == algorithm.needs_marks
