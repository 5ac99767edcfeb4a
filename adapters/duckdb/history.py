"""What each capture has to offer to the adapter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import duckdb

from adapters.duckdb.catalog import SourceTables
from adapters.duckdb.watch import Signature
from adapters.spi import CaptureProfile, Changes
from algebra.position import Position


class History(ABC):
    """The captured history as one snapshot shows it."""

    @property
    @abstractmethod
    def position(self) -> Position:
        """The position of the state that the snapshot shows."""

    @abstractmethod
    def changes(self, after: Position, most_rows: int | None) -> Changes:
        """The entries after that position: all, or a first run of them, as in the contract."""


class Capture(ABC):
    """A way to learn what changed; the adapter owns the file, the capture what it keeps about it."""

    profile: ClassVar[CaptureProfile]
    """What this capture can do, and what it asks of the source."""

    @abstractmethod
    def prepare(self, relations: Sequence[str], *, dry_run: bool) -> list[str]:
        """As in the contract."""

    @abstractmethod
    def remove(self, *, dry_run: bool) -> list[str]:
        """As in the contract."""

    @abstractmethod
    def history(
        self, connection: duckdb.DuckDBPyConnection, tables: SourceTables, signature: Signature | None
    ) -> AbstractContextManager[History]:
        """The history that belongs to the file as it is attached; `signature` is that of exactly this
        state, or None if it is not known."""

    @abstractmethod
    def acknowledge(self, position: Position) -> None:
        """As in the contract."""
