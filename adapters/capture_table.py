"""The table of adapters and their captures in docs/adapters.md, made from what their classes declare.

`make docs` fails when the page says something else; `python -m adapters.capture_table` writes it anew.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

from adapters.registry import GROUP
from adapters.spi import Adapter, CaptureProfile

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "adapters.md"
BEGIN = "<!-- from the code: python -m adapters.capture_table -->"
END = "<!-- until here -->"

NO_SOURCES = frozenset({"memory"})
"""Adapters that are for tests and the lab alone."""

HEADINGS = (
    "adapter",
    "capture",
    "boundaries",
    "order",
    "deletes",
    "rights needed",
    "load",
    "strongest level",
)


def shipped() -> Iterator[tuple[str, type[Adapter]]]:
    """The adapters that this checkout registers, by name; from its sources, not from what is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, place in sorted(project["entry-points"][GROUP].items()):
        if name not in NO_SOURCES:
            module, _, attribute = place.partition(":")
            yield name, getattr(import_module(module), attribute)


def markdown(adapters: Iterable[tuple[str, type[Adapter]]]) -> str:
    """One row for each capture of each adapter."""
    rows = [_row(name, capture, p) for name, kind in adapters for capture, p in kind.captures.items()]
    lines = [HEADINGS, ("---",) * len(HEADINGS), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(name: str, capture: str, profile: CaptureProfile) -> tuple[str, ...]:
    can = profile.capabilities
    return (
        f"`{name}`",
        f"`{capture}`",
        can.boundaries.value,
        "commit order" if can.total_order else "none",
        profile.deletes if can.before_images else "not known",
        profile.rights,
        profile.load,
        f"**{can.level}**",
    )


def generated(page: str) -> str:
    """The page with the table as it must be."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has lost the marks between which the table stands")
    return f"{head}{begin}\n\n{markdown(shipped())}\n{end}{tail}"


def main() -> None:
    """Writes the table into the page."""
    PAGE.write_text(generated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
