"""SWEEP at the mediator: the sweep of `algebra/sweep.py` over the updates of the UMQ.

Problem, wrong ways, chosen way, guarantee and cost stand there; here the update message queue becomes the
sweep's input. `sweep` takes any prefix of the queue at once, `sweep-published` one transaction at a time
with n-1 queries each, exactly as in Figure 4 of the SWEEP paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from algebra.engines.contract import Engine, Relation
from algebra.plan import SweepPlan
from algebra.sweep import Pending, Sweep, batched_sweep, sweep
from mediator.maintenance.contract import Maintenance
from mediator.update_queue import DeliveredRun


def _deltas(batch: Sequence[DeliveredRun]) -> dict[int, Relation]:
    parts: dict[int, list[Relation]] = {}
    for run in batch:
        for node, table in run.tables.items():
            parts.setdefault(node, []).append(table)
    return {node: pa.concat_tables(tables) for node, tables in sorted(parts.items())}


class BatchedSweep(Maintenance):
    """Complete consistency with at most 2(n-1) queries per batch of any size."""

    name = "sweep"

    def view_change(
        self,
        plan: SweepPlan,
        batch: Sequence[DeliveredRun],
        engine: Engine,
        pending: Pending,
        directory: Path | None,
    ) -> Sweep:
        return batched_sweep(plan, _deltas(batch), engine, pending, directory)


class PublishedSweep(Maintenance):
    """Complete consistency with n-1 queries per transaction, one transaction after the other."""

    name = "sweep-published"
    max_batch = 1

    def view_change(
        self,
        plan: SweepPlan,
        batch: Sequence[DeliveredRun],
        engine: Engine,
        pending: Pending,
        directory: Path | None,
    ) -> Sweep:
        (transaction,) = batch
        assert len(transaction) == 1, "SWEEP as published takes one transaction at a time"
        return sweep(plan, _deltas(batch), engine, pending)
