"""Every broken adapter: each has one deliberate fault, and names the cases that must see it."""

from __future__ import annotations

from adapters.conformance.tests import (
    broken_changes,
    broken_disturbances,
    broken_fetch,
    broken_lifecycle,
    broken_marks,
    broken_recovery,
    broken_runs,
    broken_sizes,
    broken_types,
)
from adapters.conformance.tests.fault import Fault

FAULTS: tuple[Fault, ...] = (
    *broken_changes.FAULTS,
    *broken_disturbances.FAULTS,
    *broken_fetch.FAULTS,
    *broken_lifecycle.FAULTS,
    *broken_marks.FAULTS,
    *broken_recovery.FAULTS,
    *broken_runs.FAULTS,
    *broken_sizes.FAULTS,
    *broken_types.FAULTS,
)
