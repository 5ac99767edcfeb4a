"""A time limit for statements that run in the process of the wrapper, where no server keeps the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from algebra.errors import SourceUnavailableError


class StatementLimit:
    """How long one statement may work, in seconds; 0 means for ever.

    What its reader does between two batches is not counted: a slow reader is no slow statement. `interrupt`
    ends what the engine is at, from another thread. Without it, for an engine that cannot be interrupted, the
    time is looked at whenever the engine answers.
    """

    def __init__(
        self,
        source: str,
        seconds: float,
        interrupt: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._seconds = seconds
        self._interrupt = interrupt
        self._clock = clock
        self._spent = 0.0
        self._ended = False

    @contextmanager
    def working(self) -> Iterator[None]:
        """Inside, the engine works on the statement; SourceUnavailableError once that took too long."""
        if not self._seconds:
            yield
            return
        start = self._clock()
        timer = None
        if self._interrupt is not None:
            timer = threading.Timer(max(0.0, self._seconds - self._spent), self._end)
            timer.daemon = True
            timer.start()
        try:
            yield
        except Exception as error:
            self._spend(start, error)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        self._spend(start)

    def _end(self) -> None:
        self._ended = True
        if self._interrupt is not None:
            self._interrupt()

    def _spend(self, start: float, error: Exception | None = None) -> None:
        self._spent += self._clock() - start
        if self._ended or self._spent >= self._seconds:
            raise SourceUnavailableError(
                f"source {self._source!r}: a statement took longer than option statement_timeout allows"
            ) from error


UNLIMITED = StatementLimit("", 0.0)
