"""A token bucket: how often something may happen, over time, with a burst of one second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# A hair less than a whole token is one: sums of floats may never reach it.
_HAIR = 1e-9


class TokenBucket:
    """Fills by so many tokens each second, 0 for no limit; holds those of one second, at least one.

    Full at first, and for any thread. Tokens are taken at once, if need be on credit: who takes decides where
    to wait for the debt to be paid.

    >>> bucket = TokenBucket(2, clock=lambda: 100.0)
    >>> [bucket.take() for _ in range(4)]
    [0.0, 0.0, 0.5, 1.0]
    >>> bucket.seconds_until(1)
    1.5
    """

    def __init__(self, per_second: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._size = max(1.0, per_second)
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = self._size
        self._at = clock()

    def take(self, tokens: float = 1.0) -> float:
        """Take tokens now; how many seconds it takes until the bucket owes none."""
        if not self._rate:
            return 0.0
        with self._lock:
            self._refill()
            self._tokens -= tokens
            return self._seconds(-self._tokens)

    def put_back(self, tokens: float = 1.0) -> None:
        """Give back tokens that were taken for nothing."""
        with self._lock:
            self._tokens = min(self._size, self._tokens + tokens)

    def seconds_until(self, tokens: float) -> float:
        """How many seconds it takes until the bucket holds so many."""
        if not self._rate:
            return 0.0
        with self._lock:
            self._refill()
            return self._seconds(tokens - self._tokens)

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._size, self._tokens + (now - self._at) * self._rate)
        self._at = now

    def _seconds(self, missing: float) -> float:
        return missing / self._rate if missing > _HAIR else 0.0
