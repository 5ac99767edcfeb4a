"""Files that were replaced, kept until nobody can be reading them.

Problem: a compaction replaces files while readers, which took their list of files before, have yet to open
them. In this process we know the readers; in others (Spark, the command line) we do not.

Chosen way: a reader holds a pin from before it takes its list until it has ended. A replaced file is
deleted when every pin that is older than its replacement is gone and a grace period, meant for the other
processes, is over.
"""

from __future__ import annotations

import shutil
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path


class Pin:
    """A reader's claim on everything that exists now; ends with `release` or with the object itself."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._finalizer = weakref.finalize(self, release)

    def release(self) -> None:
        self._finalizer()


class Graveyard:
    """Replaced files and folders, in the order of their replacement."""

    def __init__(self, grace_seconds: float, monotonic: Callable[[], float]) -> None:
        self._grace = grace_seconds
        self._monotonic = monotonic
        self._ticks = count()
        self._pins: set[int] = set()
        self._buried: list[tuple[int, float, Path]] = []
        self._lock = threading.Lock()

    def pin(self) -> Pin:
        with self._lock:
            tick = next(self._ticks)
            self._pins.add(tick)
        return Pin(lambda: self._pins.discard(tick))

    def bury(self, paths: Iterable[Path], grace: bool = True) -> None:
        """Marks files or folders for deletion; `grace=False` waits for this process's readers only."""
        due = self._monotonic() + (self._grace if grace else 0.0)
        with self._lock:
            tick = next(self._ticks)
            self._buried += [(tick, due, path) for path in paths]

    def dig(self) -> int:
        """Deletes what nobody can be reading any more; how many files and folders that were."""
        now = self._monotonic()
        with self._lock:
            oldest = min(self._pins.copy(), default=None)  # a finalizer may run at any time
            free = [
                entry for entry in self._buried if entry[1] <= now and (oldest is None or oldest > entry[0])
            ]
            gone = set(free)
            self._buried = [entry for entry in self._buried if entry not in gone]
        stuck = [entry for entry in free if not _is_deleted(entry[2])]
        with self._lock:
            self._buried += stuck
        return len(free) - len(stuck)

    @property
    def waiting(self) -> frozenset[Path]:
        """What is marked and not deleted yet."""
        with self._lock:
            return frozenset(path for _, _, path in self._buried)


def _is_deleted(path: Path) -> bool:
    """Tries to delete it; what cannot be deleted now is tried again the next time."""
    with suppress(OSError):
        delete(path)
    return not path.exists()


def delete(path: Path) -> None:
    """Deletes a file or a folder; what is gone already is fine."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
