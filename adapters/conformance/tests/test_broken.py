from __future__ import annotations

from pathlib import Path

import pytest

from adapters.conformance import CASES, CaseFailure, run_case
from adapters.conformance.tests.broken import FAULTS
from adapters.conformance.tests.fault import Fault

BY_NAME = {case.name: case for case in CASES}
PROOFS = [(fault, name) for fault in FAULTS for name in fault.cases]


@pytest.mark.parametrize(("fault", "name"), PROOFS, ids=[f"{f.name}-fails-{name}" for f, name in PROOFS])
def test_the_kit_catches(fault: Fault, name: str, tmp_path: Path) -> None:
    with pytest.raises(CaseFailure, match=f"^case {name} failed") as caught:
        run_case(BY_NAME[name], fault.harness, tmp_path)
    if not fault.raises:
        assert "failed with" not in str(caught.value), "the case stumbled over the fault and did not see it"


def test_every_case_can_fail() -> None:
    proven = {name for fault in FAULTS for name in fault.cases}
    assert sorted(set(BY_NAME) - proven) == []


def test_names_are_stable_and_unique() -> None:
    assert len(BY_NAME) == len(CASES)
    assert all(case.summary for case in CASES)
