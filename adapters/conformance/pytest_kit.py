"""The kit as pytest tests: one class for a harness, one test per case, named after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adapters.conformance.case import Case, CaseFailure, CaseSkipped, run_case
from adapters.conformance.cases import cases_for
from adapters.conformance.harness import Harness


def conformance_tests(harness: type[Harness], cases: Sequence[Case] | None = None) -> type:
    """A pytest class that tries every case on the harness's source, and those of its own samples.

    In a test module: `TestSqlite = conformance_tests(SqliteHarness)`.
    """
    chosen = cases_for(harness) if cases is None else cases
    # Here, because `lockstep adapter check` uses the kit where pytest is not installed.
    import pytest

    marked = [pytest.param(case, id=case.name, marks=pytest.mark.conformance(case.name)) for case in chosen]

    class Conformance:
        @pytest.mark.parametrize("case", marked)
        def test(self, case: Case, tmp_path: Path) -> None:
            __tracebackhide__ = True
            try:
                run_case(case, harness, tmp_path)
            except CaseSkipped as skipped:
                pytest.skip(str(skipped))
            except CaseFailure as failure:
                pytest.fail(f"{failure}\n{case.summary}", pytrace=failure.__cause__ is not None)

    return Conformance
