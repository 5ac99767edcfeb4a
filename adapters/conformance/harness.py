"""All that the kit knows of a source: how to make one, how to write to it, and where it differs.

An adapter's test-suite subclasses `Harness` and hands the class to `conformance_tests`. The kit never
asks which adapter it is testing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from adapters.conformance.operations import Operation, Transaction
from adapters.spi import Adapter
from algebra.schema import RelationSchema


@dataclass(frozen=True)
class Stored:
    """What becomes of a type's values in this source: the type shown, what each value turns into, and why.

    `holds`: whether a value can be stored at all; the cases leave out what cannot.
    """

    type: pa.DataType
    reason: str
    convert: Callable[[Any], Any] = lambda value: value
    holds: Callable[[Any], bool] = lambda value: True


@dataclass(frozen=True)
class Quirks:
    """Where a source honestly differs from the ideal. Every entry that excuses something has a reason.

    `stored`: logical type -> what the source makes of it. `unsupported`: logical type -> why it has none.
    `writers`: how many may write at the same time. `one_open_transaction`: a second writer waits until the
    first has committed. `overlap`: a transaction may be open, and commit,
    while a snapshot is open. `case_sensitive_names`: `item` and `Item` may be two tables, `a` and `A` two
    columns. `workload`: transactions per writer in the cases with concurrent writers. `patience`: seconds
    until something that must happen counts as not happening. `no_overwrite`: why rows cannot be
    overwritten by a single statement. `skips`: case name -> why it cannot hold.
    """

    stored: Mapping[pa.DataType, Stored] = field(default_factory=dict)
    unsupported: Mapping[pa.DataType, str] = field(default_factory=dict)
    writers: int = 2
    one_open_transaction: bool = False
    overlap: bool = True
    case_sensitive_names: bool = True
    workload: int = 60
    patience: float = 30.0
    no_overwrite: str = ""
    skips: Mapping[str, str] = field(default_factory=dict)


class Writer(ABC):
    """A connection that writes as an application would, knowing nothing of any capture.

    At most one transaction is open. Best kept in a process of its own (`process.in_process`).
    """

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def execute(self, operation: Operation) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def run(self, transactions: Iterable[Transaction]) -> None:
        """Run these transactions, one after the other."""
        for transaction in transactions:
            self.begin()
            for operation in transaction.operations:
                self.execute(operation)
            if transaction.commits:
                self.commit()
            else:
                self.rollback()


class Harness(ABC):
    """One source for one case, in a directory of its own."""

    quirks: ClassVar[Quirks] = Quirks()

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    def create(self, tables: Sequence[RelationSchema]) -> None:
        """Make the source, with these tables, empty; called once, before anything else."""

    @abstractmethod
    def writer(self, number: int) -> Writer:
        """A new writer; writers with different numbers are used at the same time."""

    @abstractmethod
    def adapter(self, relations: tuple[str, ...] | None = None) -> Adapter:
        """A new adapter on the source, restricted to `relations` if given; not prepared."""

    @abstractmethod
    def objects(self) -> frozenset[str]:
        """The names of all that is in the source and beside it, to tell whether capture left a trace."""

    def close(self) -> None:
        """Drop what the harness itself holds; the kit closes writers and adapters."""
