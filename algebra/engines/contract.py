"""The engine contract: what a sweep asks of whatever does its joins.

Algorithms treat relations as opaque; an engine computes with them. All engines agree with the reference
engine on every input, which tests check on random data.

Rows of node i carry the node's columns. Deltas add `_count` and `_seq`; answers of a source are bags, with
or without `_count`; histories add `_count`, `_lo` and `_hi`. A partial result of SWEEP as published carries
columns named `n<i>.<column>` and `_count`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from algebra.assembly import AssemblyQuery, Node
from algebra.local_view import Keys
from algebra.plan import Hop, SweepPlan
from algebra.schema import COUNT

Relation: TypeAlias = pa.Table

EARLIEST = -(1 << 62)
LATEST = 1 << 62
"""A history row with [EARLIEST, LATEST) holds at every sequence number."""


@dataclass(frozen=True)
class Start:
    """The deltas of one node, and the history of every other node they are to be joined with, in order."""

    node: int
    deltas: Relation
    hops: tuple[tuple[Hop, Relation], ...]


@dataclass(frozen=True)
class Extent:
    """A node's whole extent: a bag of its rows, in a table or in Parquet files.

    `minus` holds deltas (columns and `_count`) that the bag shows too much: what happened between the
    wanted moment and the reading.
    """

    table: Relation | None = None
    files: tuple[Path, ...] = ()
    minus: Relation | None = None


@dataclass(frozen=True)
class ViewChange:
    """A view's change: the query's columns, `_count` and `_version`, in normal form per version.

    Held either as a table, or as Parquet files that an engine wrote into the directory it was given.
    """

    table: Relation | None = None
    files: tuple[Path, ...] = field(default_factory=tuple)


class Engine(ABC):
    """Does the joins of sweeps. One engine is used by one thread at a time."""

    name: str

    @abstractmethod
    def select(self, node: Node, rows: Relation) -> Relation:
        """The rows that satisfy the node's own filter."""

    @abstractmethod
    def keys(self, rows: Sequence[Relation], hop: Hop, query: AssemblyQuery) -> Relation:
        """The distinct, NULL-free join values that `rows` of the hop's origin want from its target.

        Columns are named and typed as the target's.
        """

    @abstractmethod
    def history(self, node: Node, answer: Relation, pending: Relation, keys: Keys | None) -> Relation:
        """The node's rows with the interval of sequence numbers [_lo, _hi) in which each count holds.

        `answer` reflects every row of `pending`; R as of q is the answer minus all that is pending with
        `_seq` > q. Pending rows outside `keys` are not wanted. This is SWEEP's local compensation, done
        once per source row instead of once per joined row.
        Raises OrderingViolationError if a count would be negative: changes and answer disagree.
        """

    @abstractmethod
    def assemble(self, plan: SweepPlan, starts: Sequence[Start], directory: Path | None) -> ViewChange:
        """The change of the view over all starts: one join per start, grouped by version.

        Into Parquet files below `directory` if one is given and the engine prefers that.
        """

    @abstractmethod
    def begin(self, node: int, deltas: Relation) -> Relation:
        """A partial result that holds one node's deltas."""

    @abstractmethod
    def partial_keys(self, partial: Relation, hop: Hop, query: AssemblyQuery) -> Relation:
        """As `keys`, from a partial result."""

    @abstractmethod
    def join(self, partial: Relation, hop: Hop, rows: Relation) -> Relation:
        """The partial result joined with rows of the hop's target; counts multiply."""

    @abstractmethod
    def minus(self, left: Relation, right: Relation) -> Relation:
        """The difference of two partial results over the same nodes, in normal form."""

    def merge(self, left: Relation, right: Relation, on: str) -> Relation:
        """Two partial results that share some nodes, joined on a row number; counts multiply."""
        added = [c for c in right.column_names if c not in left.column_names or c in (on, COUNT)]
        pairs = (
            left.select([on])
            .append_column("_left", pa.array(range(left.num_rows), pa.int64()))
            .join(
                right.select([on]).append_column("_right", pa.array(range(right.num_rows), pa.int64())),
                keys=on,
                join_type="inner",
                use_threads=False,
            )
        )
        one = left.take(pairs["_left"].combine_chunks())
        other = right.select(added).take(pairs["_right"].combine_chunks())
        for name in added:
            if name not in (on, COUNT):
                one = one.append_column(right.schema.field(name), other[name])
        count = pc.multiply(one[COUNT], other[COUNT])
        return one.set_column(one.column_names.index(COUNT), COUNT, count)

    @abstractmethod
    def project(self, query: AssemblyQuery, partial: Relation) -> Relation:
        """A partial result over all nodes, filtered and projected to the query's columns and `_count`."""

    @abstractmethod
    def extent(self, query: AssemblyQuery, extents: Sequence[Extent], directory: Path | None) -> ViewChange:
        """The whole query over whole extents: columns and `_count`, in normal form, no `_version`."""

    def failure(self) -> str:
        """Why the engine can do nothing any more, such as a process of its own that has ended; else empty."""
        return ""

    def close(self) -> None:
        """Let go of what the engine holds; the default holds nothing."""
