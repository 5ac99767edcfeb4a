"""Which runs a benchmark makes, and with how many transactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.bench.results import Case, Mode
from lab.bench.sources import SQLITE

WARM_UP = 3
"""Transactions before the freshness samples that are not counted."""


@dataclass(frozen=True)
class Plan:
    """A benchmark as asked for.

    `limits` bounds the transactions for some batch sizes, because tiny batches take long and their rate
    does not depend on the stream's length. `freshness` is the number of samples, 0 for none. `data` is an
    existing directory of streams; None generates one below `directory`. `stalled` is how many seconds
    may pass without a new version before a run is given up.
    """

    directory: Path
    scale_factors: tuple[str, ...] = ("0.01", "0.1")
    engines: tuple[str, ...] = ("duckdb", "spark", "auto")
    modes: tuple[Mode, ...] = (Mode.BACKLOG, Mode.LIVE)
    batches: tuple[int, ...] = (1, 100, 1000, 10_000)
    transactions: int = 10_000
    limits: Mapping[int, int] = field(default_factory=lambda: {1: 200, 100: 2000})
    repeat: int = 1
    freshness: int = 30
    source_c: str = SQLITE
    data: Path | None = None
    keep: bool = False
    stalled: float = 300.0

    def cases(self) -> Iterator[Case]:
        """Every throughput run; repeats outermost, so that a machine's noise meets all of them."""
        for repeat in range(1, self.repeat + 1):
            for sf in self.scale_factors:
                for engine in self.engines:
                    for batch in self.batches:
                        for mode in self.modes:
                            yield Case(sf, engine, mode, batch, self.transactions_for(batch), repeat)

    def transactions_for(self, batch: int) -> int:
        """How many transactions a run with that batch size has."""
        return min(self.transactions, self.limits.get(batch, self.transactions))

    @property
    def longest_stream(self) -> int:
        """How many transactions the streams must have for all runs."""
        samples = self.freshness + WARM_UP if self.freshness else 0
        return max([samples, *(self.transactions_for(batch) for batch in self.batches)])
