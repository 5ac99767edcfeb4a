"""Progress of loads on stderr: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from cli import text
from cli.output import error_console

if TYPE_CHECKING:
    from rich.progress import TaskID

    from protos.lockstep.v1.mediator_pb2 import LoadProgress

_PHASES = {
    "plan": "planning",
    "load": "reading the sources",
    "join": "joining",
    "store": "storing",
    "compare": "comparing",
    "done": "done",
}


class Reporter(ABC):
    """Shows each step of a load."""

    @abstractmethod
    def update(self, step: LoadProgress) -> None:
        """Show this step."""


class BarReporter(Reporter):
    """A bar per local view, and a line for what is going on."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._title = title
        self._phase = progress.add_task(title, total=None)
        self._bars: dict[str, TaskID] = {}

    def update(self, step: LoadProgress) -> None:
        phase = _PHASES.get(step.phase, text.visible(step.phase))
        self._progress.update(self._phase, description=f"{self._title}: {phase}")
        if step.local_view:
            if step.local_view not in self._bars:
                self._bars[step.local_view] = self._progress.add_task(
                    f"  {text.visible(step.local_view)}", total=None
                )
            # An estimate may be too low; a bar must not run over.
            total = max(step.row_estimate, step.rows) if step.HasField("row_estimate") else None
            self._progress.update(self._bars[step.local_view], completed=step.rows, total=total)
        else:
            for bar in self._bars.values():
                done = self._progress.tasks[self._progress.task_ids.index(bar)].completed
                self._progress.update(bar, total=done)


class LineReporter(Reporter):
    """A line per phase, and one every few seconds while rows arrive."""

    def __init__(self, title: str, clock: Callable[[], float] = time.monotonic, every: float = 5.0) -> None:
        self._title = title
        self._clock = clock
        self._every = every
        self._last: tuple[str, str] = ("", "")
        self._said = clock()

    def update(self, step: LoadProgress) -> None:
        here = (step.phase, step.local_view)
        now = self._clock()
        if here == self._last and now - self._said < self._every:
            return
        self._last, self._said = here, now
        line = f"{self._title}: {_PHASES.get(step.phase, text.visible(step.phase))}"
        if step.local_view:
            estimate = f" of about {text.number(step.row_estimate)}" if step.HasField("row_estimate") else ""
            line += f": {text.visible(step.local_view)}, {text.number(step.rows)}{estimate} rows"
        print(line, file=sys.stderr, flush=True)


@contextmanager
def reporter(title: str) -> Iterator[Reporter]:
    """A reporter that suits stderr."""
    if not sys.stderr.isatty():
        yield LineReporter(title)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=error_console(), transient=True) as progress:
        yield BarReporter(progress, title)
