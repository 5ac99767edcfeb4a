"""What crosses the warehouse's boundary: versions, installs and stored views, as immutable values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from algebra.position import Position
from mediator.warehouse.storage import Storage

VERSION = "_version"
"""The version that a row of a `changes` table belongs to."""


@dataclass(frozen=True)
class VersionRow:
    """One version to be installed: which source transaction made it, and the vector it reflects.

    `source` is empty for version 0 and for refreshes. `observed_at` carries a time zone.
    """

    version: int
    source: str
    position: Position
    vector: Mapping[str, Position]
    observed_at: datetime
    batched: bool = False


@dataclass(frozen=True)
class VersionRecord:
    """One visible version of a view.

    `changed_rows` counts what its change adds and removes; `rows` is the size of the view after it; both
    count duplicates.
    """

    view: str
    version: int
    source: str
    position: Position
    vector: Mapping[str, Position]
    observed_at: datetime
    committed_at: datetime
    changed_rows: int
    rows: int
    batched: bool


@dataclass(frozen=True)
class ViewInstall:
    """The next versions of one view with their change: staged Parquet files, or a table, or nothing.

    Both carry the view's columns, `_count` and `_version`, and each version's rows in normal form. Versions
    without rows are legal: they changed nothing in this view.
    """

    view: str
    versions: Sequence[VersionRow]
    files: Sequence[Path] = ()
    table: pa.Table | None = None


@dataclass(frozen=True)
class StoredView:
    """A view's definition as the warehouse keeps it.

    `schema` holds the view's columns, `hidden` names those of them that only maintenance needs and no reader
    is shown. `state_version` is the version that its compacted state holds.
    """

    name: str
    view_id: str
    spec: Mapping[str, Any]
    schema: pa.Schema
    state_version: int
    storage: Storage = field(compare=False)
    hidden: tuple[str, ...] = ()

    @cached_property
    def visible(self) -> Storage:
        """The stored form of the columns that readers are shown."""
        return Storage(tuple(c for c in self.storage.columns if c.name not in self.hidden))

    @property
    def visible_schema(self) -> pa.Schema:
        """The columns that readers are shown."""
        return pa.schema([f for f in self.schema if f.name not in self.hidden])


@dataclass(frozen=True)
class CompactResult:
    """What a compaction did: the version that the state now holds, and data files before and after."""

    version: int
    files_before: int
    files_after: int


def vector_texts(rows: Sequence[VersionRow]) -> list[str]:
    """The vector of each row as JSON text `{"source":[ordinal,"token"],...}`.

    Consecutive versions differ in one entry as a rule, so the text of an entry is kept until it changes.
    """
    known: dict[str, tuple[Position, str]] = {}
    texts: list[str] = []
    for row in rows:
        parts: list[str] = []
        for source, position in row.vector.items():
            entry = known.get(source)
            if entry is None or entry[0] is not position:
                text = f"{json.dumps(source)}:[{position.ordinal},{json.dumps(position.token)}]"
                entry = known[source] = (position, text)
            parts.append(entry[1])
        texts.append("{" + ",".join(parts) + "}")
    return texts


def parse_vector(text: str) -> dict[str, Position]:
    """The vector that `vector_texts` wrote.

    >>> parse_vector('{"shop":[7,"e1"]}')["shop"].token
    'e1'
    """
    return {source: Position(ordinal, token) for source, (ordinal, token) in json.loads(text).items()}
