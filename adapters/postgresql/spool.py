"""What the log said and nobody has acknowledged, beyond what may stay in memory: in a file without a name."""

from __future__ import annotations

import os
import pickle
import tempfile
from dataclasses import dataclass
from typing import IO

from adapters.postgresql.pgoutput import Content
from algebra.errors import SourceUnavailableError


class Spool:
    """A file that only this process can reach. One thread may put while another reads."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._size = 0

    def put(self, content: Content) -> Spooled:
        """Keep a content in the file."""
        data = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
        start, end = self._size, self._size + len(data)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="lockstep-log-")  # noqa: SIM115 (see `close`)
            while self._size < end:
                self._size += os.pwrite(self._file.fileno(), data[self._size - start :], self._size)
        except OSError as error:
            raise SourceUnavailableError(
                f"what is not acknowledged cannot be kept in the temporary folder {tempfile.gettempdir()}: "
                f"{error.strerror}"
            ) from error
        return Spooled(self, start, len(data))

    def get(self, start: int, size: int) -> Content:
        assert self._file is not None
        pieces: list[bytes] = []
        end = start + size
        while start < end:
            # One call returns 2 GiB at most.
            pieces.append(os.pread(self._file.fileno(), end - start, start))
            assert pieces[-1], "the file ends before what was put into it"
            start += len(pieces[-1])
        content: Content = pickle.loads(b"".join(pieces))  # written by `put`; the file has no name
        return content

    def clear(self) -> None:
        """Forget everything; nobody reads it any more."""
        self._size = 0
        if self._file is not None:
            self._file.truncate(0)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(frozen=True, slots=True)
class Spooled:
    """A content in the file."""

    spool: Spool
    start: int
    size: int

    def read(self) -> Content:
        return self.spool.get(self.start, self.size)
