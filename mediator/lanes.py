"""Lanes: work that may wait for long, such as for a source that does not answer, beside other such work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence


class Lanes:
    """A thread for each lane that has work: only what shares a lane waits for each other. For one caller."""

    def __init__(self, name: str, stopped: threading.Event) -> None:
        self._name = name
        self._stopped = stopped
        self._busy: dict[Hashable, threading.Thread] = {}

    def begin(self, due: Mapping[Hashable, Sequence[Callable[[], None]]]) -> None:
        """Begin what is due in each lane, in order, and return. A lane that is still busy is left out."""
        self._busy = {lane: thread for lane, thread in self._busy.items() if thread.is_alive()}
        for lane, tasks in due.items():
            if lane not in self._busy:
                thread = threading.Thread(target=self._run, args=(tasks,), name=self._name, daemon=True)
                self._busy[lane] = thread
                thread.start()

    def _run(self, tasks: Sequence[Callable[[], None]]) -> None:
        for task in tasks:
            if self._stopped.is_set():
                return
            task()

    def join(self) -> None:
        """Return when all that was begun has ended."""
        for thread in self._busy.values():
            thread.join()
