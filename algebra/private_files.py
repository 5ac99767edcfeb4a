"""Folders and files that no other user of the machine can read, whatever the process's umask is.

Wrong way: a umask for the whole process. What a wrapper makes beside a source, such as the log files of a
database, must stay usable by the source's owner.

What others make (DuckDB, Spark, Delta writers) follows the umask, so it goes into a private folder.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make_private_folder(path: Path) -> None:
    """Makes a folder and those missing above it, for this user alone; one that is there keeps its mode."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with suppress(FileExistsError):  # somebody made it meanwhile
            folder.mkdir(mode=0o700)
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is no folder")


def private(path: str, flags: int) -> int:
    """For `open(…, opener=private)`: a file that is made is for this user alone."""
    return os.open(path, flags, 0o600)
