"""The named steps of every write, so that tests can break a write before and after each of them.

Whatever the warehouse writes, it writes inside of a step; `tests/test_faults.py` compares the folder before
and after each of them, and fails on a write that is outside of all. Steps may lie within each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Steps:
    """Runs steps by name and calls `fault`, if there is one, with "before NAME" and "after NAME"."""

    def __init__(self, fault: Callable[[str], None] | None) -> None:
        self._fault = fault
        self.begun = False
        """Some step was entered since this was last set to False: there may be something to clean up."""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.begun = True
        if self._fault:
            self._fault(f"before {name}")
        yield
        if self._fault:
            self._fault(f"after {name}")
