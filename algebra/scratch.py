"""Temporary folders that are gone when their process is, however it ends.

Problem: a process that is killed leaves its temporary folders behind, with rows of sources in them. One that
is killed again and again fills the disk.

Wrong ways: the process id in the name (ids are used again); an age (a load may take hours).

Chosen way: whoever has a folder holds a lock on it, which ends with the process. A process that makes its
first folder somewhere removes those beside it that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_END = ".scratch"
_tidied: set[Path] = set()
"""Where this process has looked for what others have left."""


class ScratchFolder:
    """A new folder for this user alone, until `close`; the next process removes what a killed one leaves.

    `name` tells people what it is for. `parent` is where it is made: the temporary folder unless given.

    >>> with ScratchFolder("example") as folder:
    ...     folder.is_dir()
    True
    >>> folder.exists()
    False
    """

    def __init__(self, name: str, parent: str | Path | None = None) -> None:
        place = Path(parent or tempfile.gettempdir())
        if place not in _tidied:
            _remove_abandoned(place)
            _tidied.add(place)
        self._held = -1
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"lockstep-{name}-", suffix=_END, dir=place))
            # Somebody may take it for abandoned before it is locked.
            with suppress(FileNotFoundError):
                self._held = os.open(self.path, os.O_RDONLY)
                fcntl.flock(self._held, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._held)
                self._held = -1

    def close(self) -> None:
        """Remove the folder with all that is in it; nothing happens the second time."""
        if self._held >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._held)
            self._held = -1

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_held"):
            self.close()


def _remove_abandoned(place: Path) -> None:
    """Remove the folders of ended processes; those of other users cannot be opened."""
    for path in place.glob(f"lockstep-*{_END}"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
