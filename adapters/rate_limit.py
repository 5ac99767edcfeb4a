"""How hard an adapter may press its source: a rate limit, and the two options every adapter shares.

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

from adapters.options import GivenOptions
from adapters.spi import Changes, Snapshot, SourceConfig
from adapters.token_bucket import TokenBucket
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

    `statement_timeout`: seconds after which a statement of ours is ended; 0 means never. The adapter has the
    source itself keep the time, or does so itself (`adapters/statement_limit`) where statements run in this
    process; a statement that was ended is a SourceUnavailableError.
    `rate_limit`: statements per second, over time; 0 means no limit.
    """

    statement_timeout: float = DEFAULT_STATEMENT_TIMEOUT
    rate_limit: float = 0.0

    @classmethod
    def of(cls, config: SourceConfig) -> Footprint:
        """What is configured; ConfigurationError names the first value that is no number."""
        given = GivenOptions.of(config)
        return cls(
            _finite(given, STATEMENT_TIMEOUT, "a time in seconds, 0 for none", cls.statement_timeout),
            _finite(given, RATE_LIMIT, "a number of statements per second, 0 for no limit", cls.rate_limit),
        )


def _finite(given: GivenOptions, name: str, wanted: str, default: float) -> float:
    value = given.number(name, default, wanted=wanted)
    if math.isinf(value):
        raise given.error(name, value, wanted)
    return value


class RateLimit:
    """Lets so many statements be sent each second, over time, with a burst of one second; 0 sets no limit.

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
        self._limited = per_second > 0
        self._bucket = TokenBucket(per_second, clock=clock)
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait

    def spend(self, statements: float = 1.0) -> None:
        """Note statements that are sent now; never waits."""
        self._bucket.take(statements)

    def pause(self) -> None:
        """Wait until there is no debt and a statement may be sent; call it before opening a snapshot."""
        while (delay := self.delay) > 0 and not self._wait(delay):
            pass

    @property
    def delay(self) -> float:
        """How many seconds `pause` would wait now."""
        return self._bucket.seconds_until(1.0)

    def counted(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot, with a statement spent for each of its fetches and readings of changes."""
        return _Counted(snapshot, self) if self._limited else snapshot

    def close(self) -> None:
        """End a pause that another thread is in, and all later ones."""
        self._closed.set()


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
