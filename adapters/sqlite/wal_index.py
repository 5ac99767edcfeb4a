"""How far a write-ahead log is valid: what writers have published in SQLite's wal-index (the `-shm` file).

Problem. A commit frame in the log does not make a commit. A writer that is killed after it wrote the frame,
but before it published it in the wal-index, has committed nothing: the next writer begins at the published
end and overwrites what it left, or a part of it.

Wrong ways. *Open the file*: closing it again would drop the locks of this process (see `connection`). *Take
what the checksums prove*: they prove that frames were written, by whoever it was, not that they count; and
some releases of SQLite leave frames without checksums in the middle of what counts. *Take only what the
snapshot shows*: a commit that appends nothing to the change log cannot be told by its rows.

Chosen way. SQLite itself holds the file open for as long as a connection of this process reads the database.
Reading through that descriptor opens and closes nothing. It is known by the file that it names, before and
after each read, since a descriptor's number is used again once it is closed.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_DESCRIPTORS = ("/proc/self/fd", "/dev/fd")
_VERSION = 3007000
_HEADER = struct.Struct("=I I I B B H I I 2I 8s 2I")
"""Version, unused, changes, initialized, word order, page size, last frame, pages, checksum of the last
frame, salts (as in the log), checksum of all this. Written twice, the second copy first."""
_SUMMED = 40
_NATIVE = "<" if sys.byteorder == "little" else ">"
_ATTEMPTS = 64


@dataclass(frozen=True)
class Published:
    """What counts in the log: so many frames of the generation with these salts; the last one's checksum."""

    salts: tuple[int, int]
    frames: int
    checksum: tuple[int, int]


class WalIndex:
    """The wal-index of a database that this process has open through SQLite, and has read from."""

    def __init__(self, database: Path) -> None:
        self._path = Path(f"{database}-shm")
        self._descriptor: int | None = None

    def published(self) -> Published | None:
        """What writers have published; None if that cannot be told now."""
        for _ in range(_ATTEMPTS):
            header = self._read(2 * _HEADER.size)
            if header is None:
                return None
            first, second = header[: _HEADER.size], header[_HEADER.size :]
            if first == second:
                return _parse(first)
        return None

    def _read(self, length: int) -> bytes | None:
        try:
            wanted = os.stat(self._path)
        except OSError:
            return None
        for descriptor in self._candidates():
            with suppress(OSError):
                if not os.path.samestat(os.fstat(descriptor), wanted):
                    continue
                content = os.pread(descriptor, length, 0)
                if len(content) == length and os.path.samestat(os.fstat(descriptor), wanted):
                    self._descriptor = descriptor
                    return content
        return None

    def _candidates(self) -> Iterator[int]:
        if self._descriptor is not None:
            yield self._descriptor
        for folder in _DESCRIPTORS:
            with suppress(OSError):
                yield from map(int, os.listdir(folder))
                return


def _parse(header: bytes) -> Published | None:
    version, _, _, is_init, _, _, frames, _, sum1, sum2, salts, own1, own2 = _HEADER.unpack(header)
    if version != _VERSION or not is_init or checksum(_NATIVE, header[:_SUMMED], (0, 0)) != (own1, own2):
        return None
    return Published(struct.unpack(">II", salts), frames, (sum1, sum2))


def checksum(word_format: str, content: bytes, before: tuple[int, int]) -> tuple[int, int]:
    """SQLite's running checksum over more content, whose words are in little ('<') or big ('>') order."""
    first, second = before
    words = struct.unpack(f"{word_format}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
