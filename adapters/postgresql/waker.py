"""Waiting on sockets and on another thread at once."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import suppress


class Waker:
    """A wait that `wake` of any thread ends; a wake before the wait counts."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def wait(self, sockets: Sequence[int], timeout: float) -> bool:
        """Whether it was woken; returns also when a socket is readable, or after so many seconds."""
        ready, _, _ = select.select([self._reader, *sockets], [], [], max(0.0, timeout))
        if self._reader not in ready:
            return False
        while True:
            try:
                if not os.read(self._reader, 4096):
                    return True
            except BlockingIOError:
                return True

    def wake(self) -> None:
        with suppress(OSError):  # a full pipe is a wake, too
            os.write(self._writer, b"!")

    def __del__(self) -> None:
        for descriptor in (self._reader, self._writer):
            with suppress(OSError):
                os.close(descriptor)
