"""What a benchmark measures, as plain values that a report and a JSON file are made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Mode(StrEnum):
    """How the transactions meet the maintenance.

    BACKLOG: all are committed in the sources while the mediator is down; measured from the restarted
    mediator's ready line to the last version's commit. LIVE: the sources are written while the mediator
    maintains; measured from the first source commit to the last version's commit.
    """

    BACKLOG = "backlog"
    LIVE = "live"


@dataclass(frozen=True)
class Case:
    """One run: what is maintained, by which engine, in which batches, how often already."""

    sf: str
    engine: str
    mode: Mode
    batch: int
    transactions: int
    repeat: int = 1

    @property
    def stream(self) -> str:
        """The stream's name; systems that ran the same one compare."""
        return f"k{self.transactions}"

    def __str__(self) -> str:
        return f"SF {self.sf} {self.engine} {self.mode} batch {self.batch}, {self.transactions} transactions"


@dataclass(frozen=True)
class Measurement:
    """The figures of one checked run.

    `seconds` is the measured stretch, `measured_from` its beginning. `load_seconds` is the view's creation
    with its initial load, `write_seconds` the writers' time, `recompute_seconds` DuckDB's time for the
    whole view from the final tables. Wire counters hold only the measured stretch. `peak_memory`
    is resident bytes and `cpu_seconds` processor time, by process.
    """

    case: Case
    seconds: float
    measured_from: str
    versions: int
    batched_versions: int
    view_rows: int
    final_rows: int
    batches: int
    queries: int
    compensations: int
    bytes_received: int
    bytes_sent: int
    warehouse_bytes: int
    base_bytes: int
    source_bytes: int
    load_seconds: float
    write_seconds: float
    recompute_seconds: float
    peak_memory: Mapping[str, int] = field(default_factory=dict)
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def transactions_per_second(self) -> float:
        """Source transactions per second until the last version is committed."""
        return self.case.transactions / self.seconds

    @property
    def view_rows_per_second(self) -> float:
        """View rows deleted and inserted per second."""
        return self.view_rows / self.seconds

    @property
    def recompute_ratio(self) -> float:
        """How many times faster than recomputing the view for every transaction."""
        return self.transactions_per_second * self.recompute_seconds

    @property
    def queries_per_transaction(self) -> float:
        """Maintenance queries per source transaction."""
        return self.queries / self.case.transactions

    @property
    def queries_per_batch(self) -> float:
        """Maintenance queries per installed batch."""
        return self.queries / self.batches if self.batches else math.nan

    @property
    def wire_bytes_per_transaction(self) -> float:
        """Bytes between mediator and wrappers, both ways, per source transaction."""
        return (self.bytes_received + self.bytes_sent) / self.case.transactions

    @property
    def cpu_milliseconds_per_transaction(self) -> float:
        """Processor time of mediator and wrappers per source transaction; a busy machine changes it least."""
        return 1000 * self.cpu_seconds.get("total", math.nan) / self.case.transactions

    @property
    def warehouse_ratio(self) -> float:
        """Warehouse bytes, history included, per byte of the base tables as Parquet."""
        return self.warehouse_bytes / self.base_bytes


@dataclass(frozen=True)
class Freshness:
    """How long single transactions at rest took, from commit in the source to arrival at a client."""

    sf: str
    engine: str
    milliseconds: tuple[float, ...]

    @property
    def p50(self) -> float:
        """The median, in milliseconds."""
        return percentile(self.milliseconds, 50)

    @property
    def p99(self) -> float:
        """The 99th percentile, in milliseconds; with fewer than 100 samples, the slowest."""
        return percentile(self.milliseconds, 99)


@dataclass(frozen=True)
class Failure:
    """A run that gives no figure, and why."""

    what: str
    problem: str


@dataclass(frozen=True)
class Results:
    """Everything one benchmark run found."""

    measurements: Sequence[Measurement] = ()
    freshness: Sequence[Freshness] = ()
    failures: Sequence[Failure] = ()


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of the values do not exceed.

    >>> percentile([3.0, 1.0, 2.0], 50)
    2.0
    >>> percentile([3.0, 1.0, 2.0], 99)
    3.0
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
