"""The demo on screen: a live panel on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cli import text
from cli.demo.layout import SOURCES
from cli.demo.oracle import VersionChange
from cli.output import table

_NEWEST = 12


@dataclass(frozen=True)
class Moment:
    """What there is to see now."""

    seconds: float
    committed: Mapping[str, int]
    """Transactions that each writer has committed."""
    shown: Mapping[str, int]
    """Those that the view's newest version shows."""
    positions: Mapping[str, int]
    version: int
    rows: int
    lag: float | None
    changes: list[VersionChange]
    """The newest changes, oldest first."""


class Screen(ABC):
    """Shows moments."""

    @abstractmethod
    def show(self, moment: Moment) -> None:
        """Show how things are now."""


class LineScreen(Screen):
    """A line now and then."""

    def __init__(self, console: Console, every: float = 2.0) -> None:
        self._console = console
        self._every = every
        self._next = time.monotonic()

    def show(self, moment: Moment) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        sources = "  ".join(f"{name} {moment.shown[name]}/{moment.committed[name]}" for name in SOURCES)
        self._console.print(
            f"  {moment.seconds:5.1f} s  version {moment.version}  {text.count(moment.rows, 'row')}  "
            f"{sources}  lag {text.seconds(moment.lag) or '-'}",
            markup=False,
        )


class LiveScreen(Screen):
    """A panel that is drawn again and again."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, moment: Moment) -> None:
        self._live.update(_panel(moment))


def _panel(moment: Moment) -> Group:
    rows = [
        (
            name,
            source.adapter,
            text.number(moment.committed[name]),
            text.number(moment.shown[name]),
            text.number(moment.committed[name] - moment.shown[name]),
            str(moment.positions.get(name, "")),
        )
        for name, source in SOURCES.items()
    ]
    headings = ("source", "kind", "committed", "in the view", "on the way", "position")
    sources = table(headings, rows, right=headings[2:])
    heading = Text.assemble(
        ("order_book ", "bold"),
        f"version {text.number(moment.version)}, {text.count(moment.rows, 'row')}, "
        f"lag {text.seconds(moment.lag) or '-'}, {moment.seconds:.0f} s",
    )
    return Group(sources, heading, *_newest(moment.changes))


def _newest(changes: list[VersionChange]) -> list[Text]:
    lines = []
    for change in changes:
        for row, count in sorted(change.rows, key=lambda item: item[1])[:4]:
            style = "green" if count > 0 else "red"
            cells = " | ".join(text.cell(value) for value in row)
            sign = "+" if count > 0 else "-"
            lines.append(Text(f"{change.version:>6} {change.source:<7}{sign} {cells}", style, no_wrap=True))
    return lines[-_NEWEST:]


@contextmanager
def screen(console: Console) -> Iterator[Screen]:
    """A screen that suits the console."""
    if not console.is_terminal:
        yield LineScreen(console)
        return
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield LiveScreen(live)
