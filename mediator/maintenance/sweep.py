"""SWEEP at the mediator: the sweeps of `algebra/sweep.py` over the updates of the UMQ.

Problem, wrong ways, chosen way, guarantee and cost stand there; here the update message queue becomes a
sweep's input. `sweep` takes any prefix of the queue at once; `sweep-published` takes one transaction at a
time with n-1 queries each, exactly as in Figure 4 of the SWEEP paper; `sweep-parallel` does the same with the
left and the right sweep side by side, as its section 5.3 suggests.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from algebra.consistency import Level, by_scenario
from algebra.engines.contract import Relation
from algebra.sweep import batched_sweep, parallel_sweep, sweep
from mediator.maintenance.contract import Install, Maintenance, Process, Take, ViewContext
from mediator.update_queue import DeliveredRun

_COMPLETE = by_scenario(Level.COMPLETE, Level.COMPLETE, Level.WEAK)


def deltas_of(batch: Sequence[DeliveredRun]) -> dict[int, Relation]:
    """The deltas of a batch by node."""
    parts: dict[int, list[Relation]] = {}
    for run in batch:
        for node, table in run.tables.items():
            parts.setdefault(node, []).append(table)
    return {node: pa.concat_tables(tables) for node, tables in sorted(parts.items())}


class BatchedSweep(Maintenance):
    """One version per transaction with at most 2(n-1) queries per batch of any size."""

    name = "sweep"
    guarantee = _COMPLETE
    message_cost = "2(n-1)/k for batches of k"
    takes_batches = True

    def maintain(self, view: ViewContext) -> Process:
        assert view.pending is not None
        while True:
            batch = yield Take()
            change = yield from batched_sweep(
                view.plan, deltas_of(batch), view.engine, view.pending, view.stage()
            )
            yield Install(change, batch)


class PublishedSweep(Maintenance):
    """One transaction after the other: left sweep, then right sweep."""

    name = "sweep-published"
    guarantee = _COMPLETE
    message_cost = "n-1"
    takes_batches = True
    max_batch = 1

    def maintain(self, view: ViewContext) -> Process:
        assert view.pending is not None
        while True:
            batch = yield Take()
            change = yield from sweep(view.plan, deltas_of(batch), view.engine, view.pending)
            yield Install(change, batch)


class ParallelSweep(Maintenance):
    """One transaction after the other: left sweep and right sweep side by side."""

    name = "sweep-parallel"
    guarantee = _COMPLETE
    message_cost = "n-1, in as many rounds as the longer side has sources"
    takes_batches = True
    max_batch = 1

    def maintain(self, view: ViewContext) -> Process:
        assert view.pending is not None
        while True:
            batch = yield Take()
            change = yield from parallel_sweep(view.plan, deltas_of(batch), view.engine, view.pending)
            yield Install(change, batch)
