"""Waiting for a change in the folder: the system's reports where it makes them, a look now and then anyway.

Problem: not every file system reports changes (network shares do not), and reports can be lost.

Chosen way: a report only ends a pause early; whether something changed is always decided by looking. Without
reports, a change is seen after `poll_seconds` at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

STEP_MS = 5
"""Milliseconds between two looks of the watcher at its reports and at `wake`."""


class FolderWatch:
    """Waits until the folder has changed."""

    def __init__(
        self,
        path: Path,
        poll_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        reports: bool = True,
    ) -> None:
        self._path = path
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._reports = reports
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._notify: RustNotify | None = None
        self._closed = False

    def wait(self, changed: Callable[[], bool], timeout: float) -> None:
        """Return when `changed` says so, when woken, or after `timeout` seconds."""
        deadline = self._clock() + timeout
        # Before the first look: what happens after it is reported.
        notify = self._watching()
        while not self._woken.is_set() and not changed():
            left = deadline - self._clock()
            if left <= 0:
                break
            pause = min(left, self._poll_seconds)
            if notify is None:
                self._woken.wait(pause)
            else:
                notify.watch(STEP_MS, STEP_MS, max(1, round(pause * 1000)), self._woken)
        self._woken.clear()

    def wake(self) -> None:
        """Let the `wait` that is running, or else the next one, return at once."""
        self._woken.set()

    def close(self) -> None:
        """Let go of the watcher."""
        self._woken.set()
        with self._lock:
            self._closed = True
            notify, self._notify = self._notify, None
        if notify is not None:
            notify.close()

    def _watching(self) -> RustNotify | None:
        with self._lock:
            if self._notify is None and self._reports and not self._closed:
                self._notify = _notify(self._path)
                # No folder yet, or no more watches to be had: look now and then instead.
                self._reports = self._notify is not None or not self._path.is_dir()
            return self._notify


def _notify(path: Path) -> RustNotify | None:
    try:
        return RustNotify([str(path)], False, False, 0, True, True)
    except (OSError, WatchfilesRustInternalError):
        return None
