"""What a maintenance algorithm is: a process at the warehouse, as a generator without I/O.

The papers describe algorithms by what happens at the warehouse when a message arrives. Here each is a
generator that never ends. It yields *steps*: queries to send, the wish for the next message, a change to
install. A driver carries the steps out and sends back what came of them. The mediator's driver works over
gRPC, the lab's over a simulated network; the algorithm cannot tell.

An algorithm sees the update message queue in one of two ways:

* It takes prefixes of it (`Take`), asks tuples of queries, and installs one version per transaction
  (`Install`). Deltas stay columnar, batches may be large, and several views advance together.
* It receives each message as it arrives (`Next`), an update or an answer, in exactly the order of arrival,
  and settles the view when it sees fit (`Settle`), one version for any number of transactions.

An update leaves the queue when a version that reflects it is committed, not before. If a source goes away in
between, the driver drops the process and starts a new one, which is given the same updates again.
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from algebra.consistency import Level, Scenario
from algebra.engines.contract import Engine, Relation, ViewChange
from algebra.global_transaction import GlobalTransaction
from algebra.keys import ViewKeys
from algebra.plan import SweepPlan
from algebra.position import Position
from algebra.sweep import Answer, Pending, Query
from mediator.update_queue import DeliveredRun


@dataclass(frozen=True)
class Update:
    """ΔIS: what one source transaction did to the view's nodes, as it was delivered.

    `number` counts the updates of the view in the order of delivery. `deltas` maps nodes to rows with
    `_count`.
    """

    number: int
    source: str
    position: Position
    deltas: Mapping[int, Relation]
    batched: bool = False
    observed_at: datetime.datetime = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    part_of: GlobalTransaction | None = None


@dataclass(frozen=True)
class Term:
    """A view expression with rows in place of some nodes, counted by `sign`."""

    sign: int
    substituted: Mapping[int, Relation]


@dataclass(frozen=True)
class SourceQuery:
    """A sum of view expressions that one source evaluates in one snapshot; its answer is rows of the view."""

    terms: tuple[Term, ...]

    @property
    def compensates(self) -> bool:
        """Whether it also corrects answers to earlier queries."""
        return any(len(term.substituted) > 1 for term in self.terms)


AnyQuery: TypeAlias = Query | SourceQuery


@dataclass(frozen=True)
class Answered:
    """The answer to a query that was sent by an earlier step."""

    query: AnyQuery
    answer: Answer


@dataclass(frozen=True)
class Next:
    """Send these queries, then wait for the next message: receives an `Update` or an `Answered`."""

    queries: tuple[AnyQuery, ...] = ()


@dataclass(frozen=True)
class Take:
    """Wait until updates are queued: receives a prefix of the UMQ, a `Sequence[DeliveredRun]`."""


@dataclass(frozen=True)
class Read:
    """Receives rows of the view (its columns and `_count`) as of its last version.

    Those whose `columns` equal a row of `values`; all of them without columns.
    """

    columns: tuple[str, ...] = ()
    values: Relation | None = None


@dataclass(frozen=True)
class Install:
    """Make one version for each transaction of a batch that was taken; receives None when committed."""

    change: ViewChange
    batch: Sequence[DeliveredRun]


@dataclass(frozen=True)
class Settle:
    """Make one version: the last one plus `change` (the view's columns and `_count`, in normal form).

    `reflects` are the updates that it takes in beyond the last version's; none if it shows a state that no
    source was in. Receives None when committed.
    """

    change: Relation
    reflects: Sequence[Update] = field(default_factory=tuple)


Step: TypeAlias = tuple[Query, ...] | Next | Take | Read | Install | Settle
"""A bare tuple of queries is sent at once and receives the tuple of all its answers."""

Process: TypeAlias = Generator[Step, Any, None]

Evaluation: TypeAlias = Generator[tuple[AnyQuery, ...], tuple[Answer, ...], Any]
"""Part of an algorithm that only asks: it yields tuples of queries and returns what it found."""


@dataclass(frozen=True)
class ViewContext:
    """What an algorithm works with.

    `sources[i]` is the source of node i. `keys` is there for algorithms that need keys. `pending` is for
    algorithms that take prefixes: deltas that are queued, and that an answer shows. `stage` names a new
    directory for large results, or None.
    """

    plan: SweepPlan
    engine: Engine
    sources: Sequence[str]
    keys: ViewKeys | None = None
    pending: Pending | None = None
    stage: Callable[[], Path | None] = lambda: None


class Maintenance(ABC):
    """One algorithm. `name` is what `maintenance:` says.

    `guarantee` tells the level by scenario. `needs_keys`: the view must show a key of every relation.
    `single_source`: all relations live in one source, and each is a node of its own.
    `needs_marks`: sources must report which global transaction a transaction is a part of.
    `one_node_per_source`: no source has several nodes. `takes_batches`: it uses `Take`, at most `max_batch`
    transactions at once. `only_by_force`: it is wrong under concurrency, and there to show it.
    """

    name: ClassVar[str]
    guarantee: ClassVar[Mapping[Scenario, Level]]
    message_cost: ClassVar[str]
    needs_keys: ClassVar[bool] = False
    single_source: ClassVar[bool] = False
    needs_marks: ClassVar[bool] = False
    one_node_per_source: ClassVar[bool] = False
    takes_batches: ClassVar[bool] = False
    max_batch: ClassVar[int | None] = None
    only_by_force: ClassVar[bool] = False

    @abstractmethod
    def maintain(self, view: ViewContext) -> Process:
        """Keep a view: a process that never ends."""
