from __future__ import annotations

import threading

import pytest

from algebra.errors import LockstepError
from cli.children import Child, Family


def test_a_child_that_ends_before_it_is_ready_is_an_error() -> None:
    lines: list[tuple[str, str]] = []
    with Family(lambda name, line: lines.append((name, line))) as family:
        child = family.start("wrapper shop", ["--version"])
        with pytest.raises(LockstepError, match="wrapper shop ended before it was ready"):
            child.wait_ready(30)
        with pytest.raises(LockstepError, match="ended with exit code 0"):
            family.check()
    assert lines[0][0] == "wrapper shop"
    assert lines[0][1].startswith("lockstep ")


def test_waiting_ends_when_told_to_stop() -> None:
    stop = threading.Event()
    stop.set()
    child = Child("mediator", ["--help"], lambda name, line: None)
    with pytest.raises((KeyboardInterrupt, LockstepError)):
        child.wait_ready(30, stop)
    child.join()
