"""Whether the database file may have changed, asked without opening it in DuckDB.

Problem: a writer's commits first go to `<file>.wal`, then a checkpoint moves them into the file. Size and
time of both nearly tell; but a file keeps its size over a checkpoint, and file times tick in milliseconds,
so two quick writes can look like one.

Chosen way: also look at the two database headers (4 KiB and 8 KiB into the file), which carry a counter
that every checkpoint increments; the log only ever grows in between. The file is kept open for that, by one
descriptor for all watches of the process, since closing any descriptor drops the process's locks on it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

_HEADERS = (4096, 8192)
_HEADER_BYTES = 64
FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.025

Identity = tuple[int, int, int, int]
"""Device, inode, size and time of a file."""


@dataclass(frozen=True)
class Signature:
    """Equal signatures: nothing was committed in between. Taken before a snapshot, it errs to the safe
    side."""

    file: Identity | None
    wal: Identity | None
    headers: bytes

    def __str__(self) -> str:
        return f"{self.file} {self.wal} {self.headers.hex()}"


class FileWatch:
    """Looks at one database file and waits for it to change."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._wal = path.with_name(path.name + ".wal")
        self._clock = clock
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._open: _OpenFile | None = None

    def signature(self) -> Signature:
        """What the file looks like now."""
        file = _stat(self._path)
        with self._lock:
            headers = self._headers(file)
        return Signature(file, _stat(self._wal), headers)

    def wait(self, seen: Signature | None, timeout: float, is_free: Callable[[], bool]) -> None:
        """Return when the file differs from `seen` and is free to open, when woken, or after `timeout`."""
        deadline = self._clock() + timeout
        pause = FIRST_PAUSE
        while not (self.signature() != seen and is_free()):
            left = deadline - self._clock()
            if left <= 0 or self._woken.wait(min(pause, left)):
                break
            pause = min(pause * 1.5, LONGEST_PAUSE)
        self._woken.clear()

    def wake(self) -> None:
        """Let the `wait` that is running, or else the next one, return at once."""
        self._woken.set()

    def close(self) -> None:
        """Let go of the file; from any thread."""
        with self._lock:
            self._forget()

    def _headers(self, file: Identity | None) -> bytes:
        if self._open is not None and (file is None or self._open.inode != file[:2]):
            self._forget()
        if file is not None and self._open is None and hasattr(os, "pread"):
            self._open = _OpenFile.take(self._path, file[:2])
        return self._open.headers() if self._open is not None else b""

    def _forget(self) -> None:
        if self._open is not None:
            self._open.give_back()
            self._open = None


class _OpenFile:
    """A descriptor that all watches of one file in this process share; closed with the last of them."""

    _all: ClassVar[dict[tuple[int, int], _OpenFile]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, descriptor: int, inode: tuple[int, int]) -> None:
        self.inode = inode
        self._descriptor = descriptor
        self._watches = 0

    @classmethod
    def take(cls, path: Path, inode: tuple[int, int]) -> _OpenFile | None:
        """The open file at that path, or None if it is not to be had now."""
        with cls._guard:
            if inode not in cls._all:
                try:
                    descriptor = os.open(path, os.O_RDONLY)
                except OSError:
                    return None
                found = os.fstat(descriptor)
                inode = (found.st_dev, found.st_ino)
                cls._all.setdefault(inode, cls(descriptor, inode))
            taken = cls._all[inode]
            taken._watches += 1
            return taken

    def headers(self) -> bytes:
        return b"".join(os.pread(self._descriptor, _HEADER_BYTES, offset) for offset in _HEADERS)

    def give_back(self) -> None:
        with self._guard:
            self._watches -= 1
            if self._watches == 0:
                del self._all[self.inode]
                os.close(self._descriptor)


def _stat(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
