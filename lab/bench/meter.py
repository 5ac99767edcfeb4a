"""What processes use while a run is measured: peak resident memory and processor time, by process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import psutil

INTERVAL_SECONDS = 0.2

JVM = "jvm"
TOTAL = "total"


class Meter:
    """Samples process trees in a thread; use it as a context manager.

    Java processes below a tree count as `jvm`, everything else as the tree's own name. `total` of the peaks
    is the largest sum seen at one instant, which may be less than the sum of the peaks.
    """

    def __init__(self, processes: Mapping[str, int], interval: float = INTERVAL_SECONDS) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in processes.items()}
        self._interval = interval
        self._peaks: dict[str, int] = {}
        self._cpu_before: dict[str, float] = {}
        self._cpu_now: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)

    @property
    def peak_memory(self) -> dict[str, int]:
        """The largest number of resident bytes seen, by process name."""
        return dict(self._peaks)

    @property
    def cpu_seconds(self) -> dict[str, float]:
        """Processor time used since the context was entered, by process name."""
        used = {name: now - self._cpu_before.get(name, 0.0) for name, now in self._cpu_now.items()}
        return {**used, TOTAL: sum(used.values())}

    def __enter__(self) -> Self:
        self._sample()
        self._cpu_before = dict(self._cpu_now)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._sample()

    def _sample(self) -> None:
        memory: dict[str, int] = {}
        cpu: dict[str, float] = {}
        for name, root in self._processes.items():
            for process in _tree(root):
                try:
                    role = JVM if process.name() == "java" else name
                    times = process.cpu_times()
                    rss = process.memory_info().rss
                except psutil.Error:  # ended between the listing and the look
                    continue
                memory[role] = memory.get(role, 0) + rss
                cpu[role] = cpu.get(role, 0.0) + times.user + times.system
        memory[TOTAL] = sum(memory.values())
        for role, bytes_now in memory.items():
            self._peaks[role] = max(bytes_now, self._peaks.get(role, 0))
        self._cpu_now.update(cpu)


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []
