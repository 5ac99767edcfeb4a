"""A database server as a child process: started, stopped, killed and paused, with all its own children.

A kill is that of the whole server at once. Ended one by one, the workers of a server would be missed by their
parent, which then cleans up: that is another fault than the one a crash is.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from adapters.servers.ports import free_port

START_SECONDS = 120.0
"""Until a server that does not answer counts as broken; it may have to recover from a crash first."""
END_SECONDS = 60.0
_PAUSE = 0.02


class ServerProcess(ABC):
    """One server in one folder. Whatever ends it, `start` brings it back with its data, at the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
        """How processes are started, for an owner who sees to their end in a way of its own."""

    @property
    def log(self) -> Path:
        """What the server prints."""
        return self.folder / "server.log"

    @abstractmethod
    def install(self) -> None:
        """Make the empty database cluster in the folder, once."""

    @abstractmethod
    def url(self, database: str) -> str:
        """Where an adapter finds a database, as the user who may do everything."""

    @abstractmethod
    def create_database(self, name: str = "") -> str:
        """Make an empty database; its name, which is a new one if none is given."""

    @abstractmethod
    def _command(self) -> Sequence[str]: ...

    @abstractmethod
    def _answers(self) -> bool: ...

    @contextmanager
    def for_a_while(self) -> Iterator[None]:
        """Installed and running meanwhile; stopped and deleted with its folder in the end."""
        try:
            self.install()
            self.start()
            try:
                yield
            finally:
                self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start the process, and wait until it answers.

        The command changes users by itself: `subprocess` would have to fork for that, and a fork in a process
        that uses gRPC may crash.
        """
        with self.log.open("ab") as log:
            process = self.popen(
                self._command(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for whoever started it, who then stops it
            )
        self._process = process
        if not _wait(lambda: process.poll() is not None or self._answers(), START_SECONDS):
            self.kill()
        if (status := process.poll()) is not None:
            self._process = None
            said = self.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{type(self).__name__} did not start, status {status}\n{said}")

    def _run_installer(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Run a program to its end, which must be a good one."""
        process = self.popen(
            command,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{type(self).__name__} cannot be installed: {said.decode(errors='replace')}")

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end by that signal, and wait until it has; nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(by)
            process.wait(END_SECONDS)

    def kill(self) -> None:
        """End the server and all its children at once; nothing if it does not run."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        # It must not see its children die, nor make new ones.
        process.send_signal(signal.SIGSTOP)
        found = self.processes()
        for one in reversed(found):
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        self._process = None
        _wait(lambda: not any(map(_runs, found)), END_SECONDS)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The server and its children do nothing meanwhile."""
        found = self.processes()
        for one in found:
            with suppress(psutil.NoSuchProcess):
                one.suspend()
        try:
            yield
        finally:
            for one in found:
                with suppress(psutil.NoSuchProcess):
                    one.resume()

    def processes(self) -> list[psutil.Process]:
        """The server and its children, itself first; none while it does not run."""
        process = self._process
        if process is None or process.poll() is not None:
            return []
        try:
            first = psutil.Process(process.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _runs(process: psutil.Process) -> bool:
    """Whether it still does; one whose parent has not asked for its end yet does not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait(what: Callable[[], bool], seconds: float) -> bool:
    """Whether it becomes true within that time."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return True
