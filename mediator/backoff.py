"""Pauses between attempts: they double, and a random part is taken off, so that many do not come at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """Pauses in seconds: `first`, doubled each time up to `longest`, each less up to half of it at random.

    `uniform` gives numbers in [0, 1); it is injected, so that tests know what comes.

    >>> pauses = Backoff(0.2, 5.0, uniform=lambda: 0.0)
    >>> [pauses.next() for _ in range(6)]
    [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    >>> pauses.reset()
    >>> pauses.next()
    0.2
    """

    first: float
    longest: float
    uniform: Callable[[], float] = random.random
    _failures: int = field(default=0, init=False)

    def next(self) -> float:
        """The pause after one more failure."""
        pause = min(self.first * 2.0 ** min(self._failures, 30), self.longest)
        self._failures += 1
        return pause * (1.0 - 0.5 * self.uniform())

    def reset(self) -> None:
        """It went well: the next failure is the first again."""
        self._failures = 0


class Retries:
    """When things that failed may be tried again, by name.

    >>> now = 0.0
    >>> retries = Retries(lambda: Backoff(1.0, 8.0, uniform=lambda: 0.0), clock=lambda: now)
    >>> retries.failed("one")
    >>> retries.is_due("one"), retries.is_due("two")
    (False, True)
    >>> now = 1.0
    >>> retries.is_due("one")
    True
    """

    def __init__(self, backoff: Callable[[], Backoff], clock: Callable[[], float] = time.monotonic) -> None:
        self._backoff = backoff
        self._clock = clock
        self._failed: dict[str, tuple[Backoff, float]] = {}

    def is_due(self, name: str) -> bool:
        """Whether it may be tried now."""
        failed = self._failed.get(name)
        return failed is None or self._clock() >= failed[1]

    def failed(self, name: str) -> None:
        """It failed (again): the next pause begins."""
        backoff, _ = self._failed.get(name) or (self._backoff(), 0.0)
        self._failed[name] = backoff, self._clock() + backoff.next()

    def succeeded(self, name: str) -> None:
        """It went well: the next failure is the first again."""
        self._failed.pop(name, None)
