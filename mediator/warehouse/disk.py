"""What the warehouse asks of a disk: bytes that are really there before anything refers to them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mediator.warehouse.steps import Steps

_PARALLEL = 4


class Disk:
    """Writes files, and forces them to the disk where `durable` asks for it.

    Without `durable` everything survives a killed process, but not a power failure: the last seconds may be
    lost then, after their source transactions were acknowledged.
    """

    def __init__(self, durable: bool, steps: Steps | None = None) -> None:
        self.steps = steps or Steps(None)
        self._pool = ThreadPoolExecutor(_PARALLEL, "lockstep-sync") if durable else None

    def write(self, path: Path, content: bytes) -> None:
        """Writes a whole new file; with `durable`, it is on the disk when this returns."""
        with open(path, "xb") as file:
            file.write(content)
            if self._pool:
                file.flush()
                os.fsync(file.fileno())

    def sync(self, paths: Iterable[Path]) -> None:
        """Forces files and folder entries to the disk, side by side: one journal commit serves them all."""
        if self._pool:
            list(self._pool.map(_sync, paths))

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
