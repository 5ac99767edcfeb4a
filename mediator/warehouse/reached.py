"""How far views have missed nothing, beyond their vectors: what lets sources trim behind a quiet view.

A record (F, P) of a view and a source says: whoever is at F has missed nothing up to P. It counts only while
the view's vector is exactly at F, so a record that is too old says nothing, and can say nothing wrong.

Reference: docs/adr/0021-a-quiet-view-holds-back-nobody.md.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from algebra.errors import ConfigurationError
from algebra.position import Position
from mediator.warehouse.disk import Disk

REACHED_FILE = "reached.json"


@dataclass(frozen=True)
class Reach:
    """Whoever is at `start` has missed nothing up to `end`."""

    start: Position
    end: Position

    def applies_to(self, position: Position) -> bool:
        """Whether that position is the start: the same place of the same history."""
        return (position.ordinal, position.token) == (self.start.ordinal, self.start.token)


Reaches = Mapping[str, Mapping[str, Reach]]
"""By view (its id) and source."""


class Reached:
    """The records of all views, in memory and on disk. The warehouse's lock guards it."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._path = root / REACHED_FILE
        self._disk = disk
        self._reaches: dict[str, dict[str, Reach]] = {}

    def load(self) -> None:
        """Reads the file; none is as good as an empty one."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            self._reaches = {
                view: {
                    source: Reach(Position(*start), Position(*end))
                    for source, (start, end) in reaches.items()
                }
                for view, reaches in found.items()
            }
        except FileNotFoundError:
            self._reaches = {}
        except (ValueError, TypeError, AttributeError):
            raise ConfigurationError(
                f"{self._path} cannot be read; remove it: views whose history was trimmed are then read anew"
            ) from None

    def positions(self, view_id: str, vector: Mapping[str, Position]) -> dict[str, Position]:
        """From where a view with that vector goes on, by source."""
        reaches = self._reaches.get(view_id, {})
        return {
            source: reaches[source].end
            if source in reaches and reaches[source].applies_to(position)
            else position
            for source, position in vector.items()
        }

    def update(self, reaches: Reaches, living: Collection[str]) -> None:
        """Writes these views' records, keeps those of other living views; it all survives a crash then."""
        kept = {
            view: dict(found)
            for view, found in {**self._reaches, **reaches}.items()
            if found and view in living
        }
        content = {
            view: {
                source: [[reach.start.ordinal, reach.start.token], [reach.end.ordinal, reach.end.token]]
                for source, reach in of_view.items()
            }
            for view, of_view in kept.items()
        }
        with self._disk.steps("reached.write"):
            self._disk.prepare(self._path, json.dumps(content).encode())
        with self._disk.steps("reached.commit"):
            self._disk.replace(self._path)
        self._reaches = kept

    def try_writing(self) -> None:
        """Writes what `update` would, up to its commit, and deletes it again."""
        self._disk.prepare(self._path, bytes(1 << 16))
        self._disk.delete_prepared(self._path)

    def delete_remains(self) -> None:
        """Deletes what a write that was cut off has left."""
        self._disk.delete_prepared(self._path)
