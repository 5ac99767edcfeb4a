"""What capture costs the writers of a source, as a ratio with and without it, measured in one run.

Problem. The cost depends on the machine, the disk and what else runs; seconds of one day say nothing of the
next.

Chosen way. Two sources of the same kind are made, and the same seeded transactions run on both, in short
turns one after the other, so that whatever disturbs one disturbs the other. One of them is captured and
followed as a wrapper does: wait, snapshot, changes, acknowledge. The ratio of a turn is the time with capture
over the time without; the median of the turns counts. The conformance kit's harnesses make the sources and
provide the writers, in processes of their own where the source has them so.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pyarrow as pa

from adapters import registry
from adapters.conformance import CaseSkipped, Fill, Harness, Transaction
from adapters.conformance.queries import table
from adapters.conformance.workload import BANK, Bank
from adapters.spi import Adapter
from algebra.errors import LockstepError, SourceUnavailableError

BULK = table("bulk", {"id": pa.int64(), "value": pa.int64()}, key=["id"])
PATIENCE = 30.0


@dataclass(frozen=True)
class Cost:
    """What one capture style of one adapter costs. Ratios are time with capture over time without.

    `problem`: why nothing was measured.
    """

    adapter: str
    capture: str
    transactions_per_second: float = 0.0
    small_ratio: float = 0.0
    bulk_ratio: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class Effort:
    """How much is run: turns of so many small transactions, and turns of one statement with so many rows."""

    turns: int = 10
    transactions: int = 60
    bulk_turns: int = 5
    bulk_rows: int = 20_000


def harnesses(wanted: Sequence[str] = ()) -> Iterator[tuple[str, str, type[Harness] | str]]:
    """Adapter, capture, and the harness or why there is none, of every adapter of this checkout."""
    for name, point in registry.available().items():
        package, _, _ = point.module.rpartition(".")
        if package.partition(".")[0] != "adapters" or (wanted and name not in wanted):
            continue
        try:
            module = import_module(f"{package}.tests.harnesses")
        except ImportError as error:
            if wanted:
                yield name, "", f"its harness is not here ({error}); run this in a checkout"
            continue
        found: Mapping[str, type[Harness]] = module.HARNESSES
        for capture, harness in found.items():
            yield name, capture, harness


def measure(adapter: str, capture: str, harness: type[Harness], effort: Effort) -> Cost:
    """The cost of one capture style; what cannot be measured says why."""
    try:
        with tempfile.TemporaryDirectory(prefix="lockstep-capture-") as directory:
            small, per_second = _small(harness, Path(directory) / "small", effort)
            bulk = _bulk(harness, Path(directory) / "bulk", effort)
    except (CaseSkipped, LockstepError) as error:
        return Cost(adapter, capture, problem=str(error))
    return Cost(adapter, capture, per_second, small, bulk)


def _small(harness: type[Harness], directory: Path, effort: Effort) -> tuple[float, float]:
    """The median ratio for small transactions, and how many a second there were without capture."""
    bank = Bank(seed=11)
    turns = [bank.script(effort.transactions) for _ in range(effort.turns)]
    plain, ratios = _turns(harness, directory, turns)
    return statistics.median(ratios), effort.transactions / statistics.median(plain)


def _bulk(harness: type[Harness], directory: Path, effort: Effort) -> float:
    """The median ratio for statements of many rows."""
    rows = effort.bulk_rows
    turns = [[Transaction((Fill(BULK.name, turn * rows, rows),))] for turn in range(effort.bulk_turns)]
    return statistics.median(_turns(harness, directory, turns)[1])


def _turns(
    harness: type[Harness], directory: Path, turns: Sequence[Sequence[Transaction]]
) -> tuple[list[float], list[float]]:
    """Seconds of each turn without capture, and the ratio of each."""
    with ExitStack() as stack:
        sources = []
        for number, name in enumerate(("plain", "captured")):
            place = directory / name
            place.mkdir(parents=True)
            source = harness(place)
            stack.callback(source.close)
            source.create((*BANK, BULK))
            if name == "captured":
                stack.enter_context(_followed(source.adapter()))
            sources.append(stack.enter_context(closing(source.writer(number))))
        plain, captured = sources
        times = [(_seconds(plain.run, turn), _seconds(captured.run, turn)) for turn in turns]
    return [without for without, _ in times], [with_ / without for without, with_ in times]


def _seconds(run: Callable[[Sequence[Transaction]], None], turn: Sequence[Transaction]) -> float:
    begin = time.perf_counter()
    run(turn)
    return time.perf_counter() - begin


@contextmanager
def _followed(adapter: Adapter) -> Iterator[None]:
    """Capture installed on all tables, and followed by a thread as a wrapper does, until the block ends."""
    with closing(adapter):
        adapter.prepare([*(table.name for table in BANK), BULK.name])
        follower = _Follower(adapter)
        follower.start()
        try:
            yield
        finally:
            follower.end()
        if follower.problem is not None:
            raise follower.problem


class _Follower(threading.Thread):
    def __init__(self, adapter: Adapter) -> None:
        super().__init__(name="follower", daemon=True)
        self.problem: BaseException | None = None
        self._adapter = adapter
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()
        self._adapter.wake()
        self.join(PATIENCE)

    def run(self) -> None:
        position = None
        while not self._ended.is_set():
            try:
                with self._adapter.snapshot() as snapshot:
                    if position is not None:
                        snapshot.changes(position)
                    position = snapshot.position
                self._adapter.acknowledge(position)
                self._adapter.wait(1.0)
            except SourceUnavailableError:
                self._ended.wait(0.01)
            except BaseException as problem:
                self.problem = problem
                return
