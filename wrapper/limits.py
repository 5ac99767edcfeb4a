"""What bounds a wrapper's memory, as configured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WrapperLimits:
    """How much a wrapper holds in memory at once.

    `max_run_rows`: rows of changes that one run has, about; a single transaction may have more.
    `embedded_memory`: the embedded engine's buffers, with unit; larger joins spill.
    `queue_bytes`: what waits to leave; beyond it the wrapper waits, too.
    """

    max_run_rows: int = 200_000
    embedded_memory: str = "512MiB"
    queue_bytes: int = 32 << 20
