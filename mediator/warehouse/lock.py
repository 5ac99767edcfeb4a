"""Lock files that the operating system releases when their process ends.

One writer per warehouse; and upkeep, which merges and deletes files, or copies of the warehouse, never both.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from algebra.errors import ConfigurationError


class WriterLock:
    """Holds the warehouse for writing until `release`; raises ConfigurationError if another process does."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigurationError(
                f"the warehouse {path.parent} cannot be written: {error.strerror}; a mediator needs to"
            ) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            owner = f"process {holder}" if holder else "another process"
            raise ConfigurationError(
                f"the warehouse {path.parent} is held by another mediator ({owner}); stop it first"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        _release(self._descriptor)


_UPKEEP = ".upkeep"


@contextmanager
def held_upkeep(root: Path) -> Iterator[None]:
    """No upkeep meanwhile, in any process; other copies may run side by side."""
    with _locked(root / _UPKEEP, fcntl.LOCK_SH):
        yield


@contextmanager
def upkeep_allowed(root: Path) -> Iterator[bool]:
    """Whether upkeep may run now: not while the warehouse is copied; then no copy begins meanwhile."""
    with ExitStack() as held:
        try:
            held.enter_context(_locked(root / _UPKEEP, fcntl.LOCK_EX | fcntl.LOCK_NB))
            allowed = True
        except BlockingIOError:
            allowed = False
        yield allowed


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        _release(descriptor)


def _release(descriptor: int) -> None:
    """Gives the lock up at once: a process that is being started has the descriptor too, for a moment."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
