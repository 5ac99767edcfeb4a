"""All that the kit knows of a source: how to make one, how to write to it, and where it differs.

An adapter's test-suite subclasses `Harness` and hands the class to `conformance_tests`. The kit never
asks which adapter it is testing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from adapters.conformance.disturbance import Disturbance
from adapters.conformance.operations import Operation, Transaction
from adapters.conformance.samples import Sample
from adapters.conformance.schema_change import SchemaChange
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
    until something that must happen counts as not happening. `columns`: how many a wide table has.
    `value_bytes`: the size of a large value. `samples`: types of this source's own, with values at their
    edges; each gets the cases that the common types have. `skips`: case name -> why it cannot hold.

    What a source has not, each with the reason: `no_overwrite` (a statement that overwrites a row),
    `no_savepoints`, `no_restart` (it is no server), `no_disconnect` (an adapter keeps no connection that
    could be cut), `no_rights` (nobody can be refused anything), `no_trimming` (acknowledged history is not
    the adapter's to delete), `no_drift` (kind of schema change -> reason),
    `no_disturbance` (kind of disturbance -> reason).
    """

    stored: Mapping[pa.DataType, Stored] = field(default_factory=dict)
    unsupported: Mapping[pa.DataType, str] = field(default_factory=dict)
    writers: int = 2
    one_open_transaction: bool = False
    overlap: bool = True
    case_sensitive_names: bool = True
    workload: int = 60
    patience: float = 30.0
    columns: int = 300
    value_bytes: int = 1 << 20
    samples: tuple[Sample, ...] = ()
    no_overwrite: str = ""
    no_savepoints: str = ""
    no_restart: str = ""
    no_disconnect: str = ""
    no_rights: str = ""
    no_trimming: str = ""
    no_drift: Mapping[str, str] = field(default_factory=dict)
    no_disturbance: Mapping[str, str] = field(default_factory=dict)
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
    """One source for one case, in a directory of its own.

    Four methods are needed. The hooks after them have no default: a source either has what a hook asks for,
    or says in its quirks why not.
    """

    quirks: ClassVar[Quirks] = Quirks()

    rights: ClassVar[tuple[str, ...]] = ()
    """The rights that an adapter needs and that can be withheld one by one; see `without_right`."""

    declared: Mapping[tuple[str, str], str] = {}
    """(table, column) -> the type as the source writes it, where a case asks for one of `Quirks.samples`."""

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
        """A new adapter on the source, restricted to `relations` if given; not prepared.

        Where a source has rights, the adapter has the least of them that the documentation asks for.
        """

    @abstractmethod
    def objects(self) -> frozenset[str]:
        """The names of all that is in the source and beside it, to tell whether capture left a trace."""

    def close(self) -> None:
        """Drop what the harness itself holds; the kit closes writers and adapters."""

    # Hooks

    def restarting(self) -> AbstractContextManager[None]:
        """Stops the source's server when entered, and starts it again, on the same data, when left.

        Left only when the server answers. Every connection breaks, and open transactions are lost.
        """
        raise _missing("restarting", "no_restart")

    def disconnect(self) -> None:
        """Cut every connection that adapters have to the source, from the source's side."""
        raise _missing("disconnect", "no_disconnect")

    def alter(self, change: SchemaChange) -> None:
        """Change the schema as the source's owner would; writers made afterwards know the new one.

        `schema_change.altered` gives the tables after it, `schema_change.alter_table` the usual statement.
        """
        raise _missing("alter", f"no_drift[{change.kind!r}]")

    def disturb(self, disturbance: Disturbance) -> None:
        """Do to the source, as its owner would, what capture may not see.

        `disturb_table` gives the usual statements. Rights that went with a table are granted again.
        """
        raise _missing("disturb", f"no_disturbance[{disturbance.kind!r}]")

    def without_right(self, right: str) -> Adapter:
        """An adapter for a user that has every right but this one of `rights`."""
        raise _missing("without_right", "no_rights")

    def history_size(self) -> int:
        """How much history capture keeps now, in or beside the source, in any unit that grows with it."""
        raise _missing("history_size", "no_trimming")


def _missing(hook: str, quirk: str) -> NotImplementedError:
    return NotImplementedError(
        f"implement Harness.{hook}, or say in Quirks.{quirk} why this source has nothing of the kind"
    )
