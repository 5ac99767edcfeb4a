"""How hard the fuzz tests try: the same few examples in every run, or many new ones on demand.

`LOCKSTEP_FUZZ=5000 make test ARGS="-m fuzz"` tries 5,000 new examples per test. Whatever such a run finds is
kept as an `@example` beside the test, so that it is tried forever after.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_MANY = int(os.environ.get("LOCKSTEP_FUZZ", "0"))

FUZZ = settings(
    max_examples=_MANY or 60,
    derandomize=not _MANY,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
