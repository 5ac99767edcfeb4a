"""What bounds a wrapper's memory, as configured."""

from __future__ import annotations

from dataclasses import dataclass

from protos.lockstep.v1 import types_pb2
from protos.process_memory import peak_bytes, resident_bytes


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

    def with_use(self) -> types_pb2.WrapperMemory:
        """The limits, and how much memory this process has now."""
        return types_pb2.WrapperMemory(
            memory_bytes=resident_bytes(),
            peak_memory_bytes=peak_bytes(),
            max_run_rows=self.max_run_rows,
            embedded_memory=self.embedded_memory,
            queue_bytes=self.queue_bytes,
        )
