"""A process that ends everything that its owner has started when the owner has ended, however that came.

The guard reads from a pipe whose other end the owner holds, and that end closes with the owner even if it is
killed. A signal at the parent's death (`PR_SET_PDEATHSIG`) would not do: it comes at the end of the thread
that started a process, and a soak's threads come and go.

A process must be known to the guard before its owner can be killed, so it is not the owner who tells. The
owner starts a launcher, which inherits the pipe, writes its own id into it, and becomes the process, by which
its copy of the pipe closes. Until then the guard waits for it, too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil

_END_SECONDS = 60.0
_PAUSE = 0.02
_PROCESS, _FOLDER = "process", "folder"
_LAUNCHER = (
    "import os, sys; pipe, *command = sys.argv[1:]; os.set_inheritable(int(pipe), False); "
    f"os.write(int(pipe), b'{_PROCESS} %d\\n' % os.getpid()); os.execvp(command[0], command)"
)


class Guard:
    """Starts processes, and outlives its owner as long as it takes to end them and their children."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # As a file: of our packages it needs none.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the owner, who then ends what it has started
        )

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command as `subprocess.Popen` does; it will end before or with the owner."""
        pipe = self._pipe.fileno()
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(pipe)]
        return subprocess.Popen([*launcher, *command], pass_fds=[pipe], **options)

    def delete(self, folder: Path) -> None:
        """Have a folder deleted when everything has ended, if it is still there."""
        self._pipe.write(f"{_FOLDER} {folder}\n".encode())
        self._pipe.flush()

    def close(self) -> None:
        """End what still runs, and wait until it has."""
        if self._process is not None:
            self._pipe.close()
            self._process.wait(2 * _END_SECONDS)

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process is not None, "the guard was not started"
        assert self._process.stdin is not None
        return self._process.stdin


def _watch() -> None:
    """Note what comes through the pipe until it closes, then end and delete all of it."""
    processes: list[psutil.Process] = []
    folders: list[str] = []
    for line in sys.stdin:
        what, _, name = line.rstrip("\n").partition(" ")
        if what == _FOLDER:
            folders.append(name)
            continue
        # It knows when the process began, so that later nobody else is taken for it.
        with suppress(psutil.NoSuchProcess):
            processes = [process for process in processes if process.is_running()]
            processes.append(psutil.Process(int(name)))
    found = [one for process in processes for one in _with_children(process)]
    for one in found:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    deadline = time.monotonic() + _END_SECONDS
    while any(map(_runs, found)) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _with_children(process: psutil.Process) -> list[psutil.Process]:
    """A process, stopped so that it starts nothing more, and all that it has started."""
    with suppress(psutil.NoSuchProcess):
        process.suspend()
        return [*process.children(recursive=True), process]
    return []


def _runs(process: psutil.Process) -> bool:
    """Whether it does; one that nobody has asked for its end yet does not."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


if __name__ == "__main__":
    _watch()
