"""How often a mediator may ask.

Who asks too often waits; on the Exchange that holds up everything the mediator sends, and gRPC's flow control
tells it so. To refuse instead would pause a view for having been busy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from adapters.token_bucket import TokenBucket
from algebra.errors import LimitExceededError

PATIENCE_SECONDS = 10.0
"""How long a call outside the Exchange is held up before it is refused."""


class RateLimit:
    """Lets `per_second` acts through each second, and as many at once; None lets all through."""

    def __init__(self, per_second: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second or 0.0
        self._bucket = TokenBucket(self._rate, clock=clock)

    def reserve(self) -> float:
        """Take one act's room; how many seconds to wait before it may happen."""
        return self._bucket.take()

    def wait(self, stopped: threading.Event) -> None:
        """Return when one more act may happen, or when `stopped` is set."""
        delay = self.reserve()
        if delay:
            stopped.wait(delay)

    def admit(self) -> None:
        """Wait for one more act, but not for long; LimitExceededError if it would take longer."""
        delay = self.reserve()
        if delay > PATIENCE_SECONDS:
            self._bucket.put_back()
            raise LimitExceededError(
                f"this mediator may ask {self._rate:g} times a second, and asks more often"
            )
        if delay:
            time.sleep(delay)
