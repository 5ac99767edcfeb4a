"""Printing: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.text import visible, visible_json

# A pipe has no width; nothing printed into one is cut or wrapped.
_UNBOUNDED = 10_000


def console() -> Console:
    """Stdout, as it is now; a terminal gets colours, a pipe gets whole lines."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else _UNBOUNDED, highlight=False)


def error_console() -> Console:
    """Stderr, likewise."""
    return Console(file=sys.stderr, width=None if sys.stderr.isatty() else _UNBOUNDED, highlight=False)


def emit_json(value: Any) -> None:
    """Print one JSON document."""
    print(visible_json(value, indent=2))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """A table whose cells cannot steer a terminal; columns named in `right` hold numbers."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in headings:
        made.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(visible(value)) for value in row))
    return made
