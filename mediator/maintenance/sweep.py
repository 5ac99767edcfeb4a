"""SWEEP at the mediator: the sweeps of `algebra/sweep.py` over the updates of the UMQ.

Problem, wrong ways, chosen way, guarantee and cost stand there; here the update message queue becomes a
sweep's input. `sweep` takes any prefix of the queue at once; `sweep-published` takes one transaction at a
time with n-1 queries each, exactly as in Figure 4 of the SWEEP paper; `sweep-parallel` does the same with the
left and the right sweep side by side, as its section 5.3 suggests.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import pyarrow as pa

from algebra.consistency import Level, by_scenario
from algebra.engines.contract import Relation
from algebra.sweep import Pending, Sweep, batched_sweep, parallel_sweep, sweep
from mediator.maintenance.contract import Install, Maintenance, Process, Take, ViewContext
from mediator.update_queue import DeliveredRun


def deltas_of(batch: Sequence[DeliveredRun]) -> dict[int, Relation]:
    """The deltas of a batch by node."""
    parts: dict[int, list[Relation]] = {}
    for run in batch:
        for node, table in run.tables.items():
            parts.setdefault(node, []).append(table)
    return {node: pa.concat_tables(tables) for node, tables in sorted(parts.items())}


class _Sweeping(Maintenance):
    """Takes a batch, sweeps it, installs one version per transaction, for ever."""

    guarantee = by_scenario(Level.COMPLETE, Level.COMPLETE, Level.WEAK)
    takes_batches = True

    def maintain(self, view: ViewContext) -> Process:
        assert view.pending is not None
        while True:
            batch = yield Take()
            change = yield from self.view_change(view, deltas_of(batch), view.pending)
            yield Install(change, batch)

    @abstractmethod
    def view_change(self, view: ViewContext, deltas: Mapping[int, Relation], pending: Pending) -> Sweep:
        """ΔV for a batch."""


class BatchedSweep(_Sweeping):
    """One version per transaction with at most 2(n-1) queries per batch of any size."""

    name = "sweep"
    message_cost = "2(n-1)/k for batches of k"

    def view_change(self, view: ViewContext, deltas: Mapping[int, Relation], pending: Pending) -> Sweep:
        return batched_sweep(view.plan, deltas, view.engine, pending, view.stage())


class PublishedSweep(_Sweeping):
    """One transaction after the other: left sweep, then right sweep."""

    name = "sweep-published"
    message_cost = "n-1"
    max_batch = 1

    def view_change(self, view: ViewContext, deltas: Mapping[int, Relation], pending: Pending) -> Sweep:
        return sweep(view.plan, deltas, view.engine, pending)


class ParallelSweep(_Sweeping):
    """One transaction after the other: left sweep and right sweep side by side."""

    name = "sweep-parallel"
    message_cost = "n-1, in as many rounds as the longer side has sources"
    max_batch = 1

    def view_change(self, view: ViewContext, deltas: Mapping[int, Relation], pending: Pending) -> Sweep:
        return parallel_sweep(view.plan, deltas, view.engine, pending)
