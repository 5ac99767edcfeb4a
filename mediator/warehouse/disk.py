"""What the warehouse asks of a disk: bytes that are really there before anything refers to them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from algebra.private_files import make_private_folder
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

    def prepare(self, path: Path, content: bytes) -> None:
        """Writes the next content of a file beside it, for `replace`."""
        self.delete_prepared(path)
        self.write(_beside(path), content)

    def replace(self, path: Path) -> None:
        """Puts what `prepare` wrote in the place of the file; with `durable`, it is there for good then."""
        os.replace(_beside(path), path)
        self.sync([path.parent])

    def delete_prepared(self, path: Path) -> None:
        """Deletes what `prepare` wrote and nobody needs."""
        _beside(path).unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        """Makes a folder and those missing above it, for this user alone; with `durable`, they are there for
        good then."""
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        make_private_folder(path)
        self.sync([folder.parent for folder in missing])

    def sync(self, paths: Iterable[Path]) -> None:
        """Forces files and folder entries to the disk, side by side: one journal commit serves them all.

        A file is there after a power failure if its bytes were forced, and the entry of every folder on the
        way to it. `delta_files.sync_rows` knows them for the files of a table.
        """
        if self._pool:
            list(self._pool.map(_sync, paths))

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown()


def _beside(path: Path) -> Path:
    return path.with_suffix(".tmp")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
