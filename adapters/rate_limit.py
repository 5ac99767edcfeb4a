"""How hard an adapter may press its source: a token bucket, and the two options every adapter shares.

Problem. A mediator that catches up asks as fast as it gets answers; the source's own users pay for that.

Wrong ways. *To wait before every statement*: a wait inside a snapshot keeps a read transaction open, which
holds up vacuum, checkpoints or writers. *To sleep a fixed time between snapshots*: an idle source is then
slow to answer, and a busy one not protected.

Chosen way. What is asked inside a snapshot is spent at once, if need be on credit; the debt is paid by
waiting before the next snapshot is opened. Over time that keeps the rate, and no transaction stays open.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from adapters.spi import Changes, Snapshot, SourceConfig
from algebra.errors import ConfigurationError
from algebra.local_view import Keys, LocalView
from algebra.position import Position

STATEMENT_TIMEOUT = "statement_timeout"
RATE_LIMIT = "rate_limit"
FOOTPRINT_OPTIONS = (STATEMENT_TIMEOUT, RATE_LIMIT)
"""The options that `Footprint.of` reads; an adapter adds them to those it knows."""

DEFAULT_STATEMENT_TIMEOUT = 300.0


@dataclass(frozen=True)
class Footprint:
    """The common options that protect a source.

    `statement_timeout`: seconds after which the source ends a statement of ours; 0 means never. The adapter
    has the source itself keep the time, and reports a statement that was ended as SourceUnavailableError.
    `rate_limit`: statements per second, over time; 0 means no limit.
    """

    statement_timeout: float = DEFAULT_STATEMENT_TIMEOUT
    rate_limit: float = 0.0

    @classmethod
    def of(cls, config: SourceConfig) -> Footprint:
        """What is configured; ConfigurationError names the first value that is no number."""
        return cls(
            _number(config, STATEMENT_TIMEOUT, "a time in seconds, 0 for none", cls.statement_timeout),
            _number(config, RATE_LIMIT, "a number of statements per second, 0 for no limit", cls.rate_limit),
        )


def _number(config: SourceConfig, name: str, meaning: str, default: float) -> float:
    value = config.options.get(name, default)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise ConfigurationError(f"source {config.name!r}: option {name} is {value!r}, not {meaning}")
    return float(value)


class RateLimit:
    """A token bucket that holds the statements of one second, at least one; full at first.

    `spend` and `pause` are for the thread that uses the adapter, `close` for any.
    `wait` sleeps at most so many seconds and says whether it was woken; tests give their own.
    """

    def __init__(
        self,
        per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._rate = per_second
        self._size = max(1.0, per_second)
        self._clock = clock
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._tokens = self._size
        self._at = clock()

    def spend(self, statements: float = 1.0) -> None:
        """Note statements that are sent now; never waits."""
        if self._rate:
            self._refill()
            self._tokens -= statements

    def pause(self) -> None:
        """Wait until there is no debt and a statement may be sent; call it before opening a snapshot."""
        while (delay := self.delay) > 0 and not self._wait(delay):
            pass

    @property
    def delay(self) -> float:
        """How many seconds `pause` would wait now."""
        if not self._rate:
            return 0.0
        self._refill()
        # A hair less than one whole token is one: sums of floats may never reach it.
        missing = 1.0 - self._tokens
        return missing / self._rate if missing > 1e-9 else 0.0

    def counted(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot, with a statement spent for each of its fetches and readings of changes."""
        return _Counted(snapshot, self) if self._rate else snapshot

    def close(self) -> None:
        """End a pause that another thread is in, and all later ones."""
        self._closed.set()

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._size, self._tokens + (now - self._at) * self._rate)
        self._at = now


class _Counted(Snapshot):
    def __init__(self, snapshot: Snapshot, limit: RateLimit) -> None:
        self._snapshot = snapshot
        self._limit = limit

    @property
    def position(self) -> Position:
        return self._snapshot.position

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        self._limit.spend()
        return self._snapshot.changes(after, most_rows)

    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        self._limit.spend()
        return self._snapshot.fetch(query, keys)
