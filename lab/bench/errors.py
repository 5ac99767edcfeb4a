"""What can go wrong in a benchmark, as one clear line."""

from __future__ import annotations

from algebra.errors import LockstepError


class BenchmarkError(LockstepError):
    """A run that must not be reported: a wrong view, missing versions, a process that died or hung."""

    reason = "BENCHMARK"
