"""A source's own types are data: each sample of its quirks gets the cases of the common types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from adapters.conformance import Case, CaseFailure, Sample, cases_for, run_case
from adapters.conformance.tests.memory_harness import MemoryHarness
from algebra.schema import RelationSchema

MOOD = Sample("mood", pa.string(), ("happy", "sad", ""), absent="bored", declared="ENUM mood")


class MoodHarness(MemoryHarness):
    """A source with an enumeration; it says under which name."""

    quirks = replace(MemoryHarness.quirks, samples=(MOOD,))

    def create(self, tables: Sequence[RelationSchema]) -> None:
        assert self.declared == {("sample", "value"): "ENUM mood"}
        super().create(tables)


OWN = [case for case in cases_for(MoodHarness) if case.name.endswith("-mood")]


def test_a_sample_gets_the_cases_of_a_type() -> None:
    assert [case.name for case in OWN] == ["type-mood", "bag-of-mood", "key-of-mood"]
    assert len(cases_for(MemoryHarness)) == len(cases_for(MoodHarness)) - 3


@pytest.mark.parametrize("case", OWN, ids=lambda case: case.name)
def test_they_are_tried_on_the_declared_type(case: Case, tmp_path: Path) -> None:
    run_case(case, MoodHarness, tmp_path)


def test_a_hook_that_is_neither_there_nor_excused_fails_and_says_so(tmp_path: Path) -> None:
    class Forgetful(MemoryHarness):
        def history_size(self) -> int:
            return super(MemoryHarness, self).history_size()

    (case,) = [case for case in cases_for(Forgetful) if case.name == "acknowledged-history-is-let-go"]
    with pytest.raises(
        CaseFailure, match=r"implement Harness\.history_size, or say in Quirks\.no_trimming why"
    ):
        run_case(case, Forgetful, tmp_path)
