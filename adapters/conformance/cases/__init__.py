"""Every case of the kit, by subject."""

from adapters.conformance.case import Case
from adapters.conformance.cases import (
    agreement,
    disturbances,
    drift,
    fetching,
    large,
    lifecycle,
    marks,
    names,
    recovery,
    resuming,
    rights,
    rows,
    runs,
    transactions,
    types,
    waiting,
)
from adapters.conformance.harness import Harness

CASES: tuple[Case, ...] = (
    *lifecycle.CASES,
    *rows.CASES,
    *types.CASES,
    *names.CASES,
    *fetching.CASES,
    *transactions.CASES,
    *marks.CASES,
    *resuming.CASES,
    *runs.CASES,
    *waiting.CASES,
    *large.CASES,
    *drift.CASES,
    *disturbances.CASES,
    *rights.CASES,
    *recovery.CASES,
    *agreement.CASES,
)


def cases_for(harness: type[Harness]) -> tuple[Case, ...]:
    """Every case, and the type cases of the harness's own samples."""
    return (*CASES, *types.cases_of(harness.quirks.samples))


__all__ = ["CASES", "cases_for"]
