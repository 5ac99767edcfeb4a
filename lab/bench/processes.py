"""Child processes of a benchmark: started, awaited by what they print, and stopped without leftovers."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from lab.bench.errors import BenchmarkError

ROOT = Path(__file__).resolve().parents[2]
"""Where the import packages lie; children must find the same ones."""

LISTENING = re.compile(r"^lockstep .*listening on (?P<host>\S+):(?P<port>\d+)$")
"""The line that a wrapper or mediator prints when it is ready."""


@dataclass(frozen=True)
class Line:
    """One printed line and when it was read, in nanoseconds of the host's clock."""

    text: str
    at_ns: int


class Child:
    """A process running one of our modules; what it prints goes into a log file and can be awaited."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        log: Path,
        popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
    ) -> None:
        self.name = name
        self._log = log
        self.started_ns = time.time_ns()
        self._process = popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_environment(),
            start_new_session=True,  # Ctrl-C reaches the benchmark alone, which stops its children in order
        )
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_for(self, pattern: re.Pattern[str], timeout: float) -> tuple[re.Match[str], Line]:
        """The next printed line that contains the pattern; lines before it are skipped.

        Raises BenchmarkError if the process ends or the time is up.
        """
        give_up = time.monotonic() + timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, give_up - time.monotonic()))
            except queue.Empty:
                raise BenchmarkError(
                    f"{self.name} did not print '{pattern.pattern}' in {timeout:.0f} s{self._tail()}"
                ) from None
            if line is None:
                raise BenchmarkError(f"{self.name} ended with status {self._process.wait()}{self._tail()}")
            match = pattern.search(line.text)
            if match:
                return match, line

    def send(self, text: str) -> None:
        """Write one line to its standard input."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(text + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise BenchmarkError(
                f"{self.name} ended with status {self._process.wait()}{self._tail()}"
            ) from None

    def stop(self, timeout: float = 30.0) -> None:
        """Ask it to end, insist after `timeout` seconds, and take its own children along; idempotent."""
        if self._process.poll() is None:
            descendants = self._descendants()
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            _kill(descendants)
        if self._process.stdin:
            self._process.stdin.close()
        self._reader.join(timeout=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        with self._log.open("a", encoding="utf-8") as log, stdout:
            for text in stdout:
                self._lines.put(Line(text.rstrip("\n"), time.time_ns()))
                log.write(text)
                log.flush()
        self._lines.put(None)

    def _descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _tail(self) -> str:
        self._reader.join(timeout=1)
        try:
            lines = [line for line in self._log.read_text(encoding="utf-8").splitlines() if line.strip()]
        except OSError:
            return ""
        return f"; its last words: {lines[-1].strip()[:300]}" if lines else ""


def _environment() -> dict[str, str]:
    """Ours without settings that would change what is measured."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)}


def _kill(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=5)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
