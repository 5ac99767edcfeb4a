"""One writer per warehouse: a lock file that the operating system releases when its process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from algebra.errors import ConfigurationError


class WriterLock:
    """Holds the warehouse for writing until `release`; raises ConfigurationError if another process does."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
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
        os.close(self._descriptor)
