"""Lockstep processes started as children: their output relayed, their ready line awaited, all stopped."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from algebra.errors import LockstepError
from cli.logs import LogFormat

_READY = re.compile(r"^lockstep .*listening on (\S+)$")
_GRACE = 20.0
_POLL = 0.1

OnLine = Callable[[str, str], None]


class Child:
    """One `lockstep` command in a process of its own."""

    def __init__(self, name: str, arguments: Sequence[str], on_line: OnLine) -> None:
        self.name = name
        self.address = ""
        self._on_line = on_line
        self._ready = threading.Event()
        # A session of its own: Ctrl-C in the terminal reaches the parent, who stops the children in order.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cli.main", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"output of {name}", daemon=True)
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout: float, stop: threading.Event | None = None) -> str:
        """The address it listens on; raises if it ends, is told to stop, or takes too long."""
        deadline = time.monotonic() + timeout
        while not self._ready.wait(_POLL):
            if self.exit_code is not None:
                self._reader.join(1.0)
                raise LockstepError(f"{self.name} ended before it was ready (exit code {self.exit_code})")
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            if time.monotonic() > deadline:
                raise LockstepError(f"{self.name} was not ready within {timeout:g} s")
        return self.address

    def terminate(self) -> None:
        """Ask it to stop."""
        if self.exit_code is None:
            self._process.terminate()

    def join(self, grace: float = _GRACE) -> int:
        """Wait for its end, by force after `grace` seconds; returns its exit code."""
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(1.0)
        if self._process.stdin:
            self._process.stdin.close()
        return self._process.returncode

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.rstrip("\r\n")
            if match := _READY.match(text):
                self.address = match[1]
                self._ready.set()
            self._on_line(self.name, text)


class Family:
    """Children that live and die together; leaving the context stops all."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self.children: list[Child] = []

    def __enter__(self) -> Family:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, name: str, arguments: Sequence[str]) -> Child:
        """A new child."""
        child = Child(name, arguments, self._on_line)
        self.children.append(child)
        return child

    def watch(self, stop: threading.Event) -> None:
        """Return when `stop` is set; raise when a child ends before."""
        while not stop.wait(_POLL):
            self.check()

    def check(self) -> None:
        """Raise if a child has ended."""
        for child in self.children:
            if child.exit_code is not None:
                raise LockstepError(
                    f"{child.name} ended with exit code {child.exit_code}; the others are stopped"
                )

    def stop(self) -> None:
        """Stop all; the last started ends before the others are told, as a mediator before its wrappers."""
        for group in (self.children[-1:], self.children[:-1]):
            for child in group:
                child.terminate()
            for child in group:
                child.join()
        self.children.clear()


def relay(form: LogFormat) -> OnLine:
    """Prints children's lines on stderr, each with the child's name in front, or in it if they are JSON."""
    return _relay_json if form is LogFormat.JSON else _relay_text()


def _relay_json(name: str, line: str) -> None:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    record = found if isinstance(found, dict) else {"message": line}
    sys.stderr.write(json.dumps({"process": name, **record}) + "\n")


def _relay_text() -> OnLine:
    from rich.text import Text

    from cli.output import error_console

    out = error_console()
    styles = ("cyan", "magenta", "yellow", "blue", "green")
    seen: dict[str, str] = {}

    def on_line(name: str, line: str) -> None:
        style = seen.setdefault(name, styles[len(seen) % len(styles)])
        out.print(Text.assemble((f"{name:<12} | ", style), line), soft_wrap=True)

    return on_line
