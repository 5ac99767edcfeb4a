"""Lockstep as its users run it: separate processes started by the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_READY = re.compile(r"listening on (\S+)")


class LockstepProcess:
    """A `lockstep` server process; its output is kept for the failure message."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        self._lines: list[str] = []
        self._ready = threading.Event()
        self.address = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            found = _READY.search(line)
            if found:
                self.address = found[1]
                self._ready.set()
        self._ready.set()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout: float = 180) -> str:
        """The address it listens on."""
        assert self._ready.wait(timeout), f"not ready:\n{self.output}"
        assert self.address, f"ended:\n{self.output}"
        return self.address

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=30)

    def stop(self) -> int:
        """End it as an operator would; its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout=30)
        return self._process.returncode


def run_module(module: str, *arguments: str) -> subprocess.Popen[str]:
    """A module as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )


def finish(processes: Sequence[subprocess.Popen[str]], timeout: float = 240) -> None:
    """Wait for processes that must end well."""
    for process in processes:
        _, errors = process.communicate(timeout=timeout)
        assert process.returncode == 0, errors


def run_lockstep(
    *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """A `lockstep` command run to its end; its output is kept apart."""
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        timeout=timeout,
        check=False,
    )
