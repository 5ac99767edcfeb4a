from __future__ import annotations

import threading

import pytest

from adapters.statement_limit import UNLIMITED, StatementLimit
from algebra.errors import SourceUnavailableError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def work(limit: StatementLimit, clock: Clock, seconds: float, error: Exception | None = None) -> None:
    with limit.working():
        clock.now += seconds
        if error is not None:
            raise error


def test_only_the_time_in_which_the_engine_works_counts() -> None:
    clock = Clock()
    limit = StatementLimit("shop", 10.0, clock=clock)
    for _ in range(9):
        work(limit, clock, 1.0)
        clock.now += 100.0  # its reader is slow
    with pytest.raises(SourceUnavailableError, match=r"source 'shop': .* option statement_timeout"):
        work(limit, clock, 1.0)


def test_an_error_in_time_is_left_as_it_is() -> None:
    clock = Clock()
    limit = StatementLimit("shop", 10.0, clock=clock)
    with pytest.raises(KeyError):
        work(limit, clock, 1.0, KeyError("its own"))
    with pytest.raises(SourceUnavailableError, match="statement_timeout"):
        work(limit, clock, 9.0, OSError("interrupted"))


def test_without_a_limit_it_may_work_for_ever() -> None:
    work(UNLIMITED, Clock(), 1e9)


def test_the_engine_is_interrupted_while_it_works() -> None:
    interrupted = threading.Event()
    limit = StatementLimit("shop", 0.01, interrupted.set)
    with pytest.raises(SourceUnavailableError, match="statement_timeout"), limit.working():
        assert interrupted.wait(60)
