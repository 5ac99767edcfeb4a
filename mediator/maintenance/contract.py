"""What a maintenance algorithm is to the mediator: a generator over a batch of delivered updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from algebra.engines.contract import Engine
from algebra.plan import SweepPlan
from algebra.sweep import Pending, Sweep
from mediator.update_queue import DeliveredRun


class Maintenance(ABC):
    """One algorithm. `name` is what `maintenance:` says; `max_batch` bounds what one run of it may take."""

    name: str
    max_batch: int | None = None

    @abstractmethod
    def view_change(
        self,
        plan: SweepPlan,
        batch: Sequence[DeliveredRun],
        engine: Engine,
        pending: Pending,
        directory: Path | None,
    ) -> Sweep:
        """The change that a batch of transactions makes to the view, version by version.

        `directory` is where the engine may leave large results as Parquet files.
        """
