"""Every case of the kit, by subject."""

from adapters.conformance.case import Case
from adapters.conformance.cases import (
    agreement,
    fetching,
    lifecycle,
    marks,
    names,
    resuming,
    rows,
    transactions,
    types,
    waiting,
)

CASES: tuple[Case, ...] = (
    *lifecycle.CASES,
    *rows.CASES,
    *types.CASES,
    *names.CASES,
    *fetching.CASES,
    *transactions.CASES,
    *marks.CASES,
    *resuming.CASES,
    *waiting.CASES,
    *agreement.CASES,
)

__all__ = ["CASES"]
