"""The printed tables and the JSON file of a benchmark.

Machines are noisy, so every rate stands beside ratios to something measured in the same run: the same engine
with batches of one transaction, and DuckDB recomputing the view once per transaction.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lab.bench.meter import JVM, TOTAL
from lab.bench.peers import PeerFigure, best_peer
from lab.bench.results import Case, Freshness, Measurement, Mode, Results
from lab.bench.workload import SEED, SOURCES

NOTES = """\
backlog: all transactions are committed while the mediator is down; measured from the restarted mediator's
ready line (its engine is warm) to the last version's commit. live: writers and maintenance side by side;
measured from the first source commit to the last version's commit. A batch has at most that many
transactions; small batches run a shorter stream, rates are per transaction. × batch 1: against the same
engine and mode with batches of one. × recompute: against DuckDB recomputing the whole view for every
transaction. Every run's final view equals the recompute, and every transaction has its version, unless
batched versions are shown. CPU: mediator and wrappers, not the writers. write s: from the writers' first
commit to their last, a floor for live runs. × base: against the base tables as Parquet; the warehouse holds
every version."""


@dataclass(frozen=True)
class Group:
    """The repeats of one case."""

    case: Case
    runs: Sequence[Measurement]

    def median(self, figure: Callable[[Measurement], float]) -> float:
        """The median of one figure over the repeats."""
        return statistics.median(map(figure, self.runs))

    def spread(self, figure: Callable[[Measurement], float]) -> str:
        """The median, and the smallest and largest value if there are several runs."""
        values = [figure(run) for run in self.runs]
        text = number(statistics.median(values))
        return text if len(values) == 1 else f"{text} ({number(min(values))}-{number(max(values))})"


def groups(measurements: Iterable[Measurement]) -> list[Group]:
    """The measurements by case, repeats together, in the order of their first appearance."""
    found: dict[tuple[str, str, Mode, int, int], list[Measurement]] = {}
    for run in measurements:
        case = run.case
        found.setdefault((case.sf, case.engine, case.mode, case.batch, case.transactions), []).append(run)
    return [Group(runs[0].case, runs) for runs in found.values()]


def number(value: float) -> str:
    """A figure with three significant digits and thousands separators.

    >>> number(12345.6), number(12.345), number(0.01234), number(float("nan"))
    ('12,346', '12.3', '0.0123', '-')
    """
    if math.isnan(value):
        return "-"
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def count(value: float) -> str:
    """A whole number with thousands separators.

    >>> count(3.0), count(10_000)
    ('3', '10,000')
    """
    return f"{value:,.0f}"


def megabytes(value: float) -> str:
    """Bytes as megabytes.

    >>> megabytes(2_500_000)
    '2.50'
    """
    return number(value / 1e6)


def throughput_table(measured: Sequence[Group]) -> Table:
    """Rates, with their ratios to batches of one and to recomputing."""
    table = _table(
        "Throughput",
        "batch",
        "transactions",
        "tx/s",
        "× batch 1",
        "× recompute",
        "view rows/s",
        "CPU ms/tx",
        "batched versions",
        "write s",
        "load s",
        "recompute s",
    )
    single = {
        (group.case.sf, group.case.engine, group.case.mode): group.median(_rate)
        for group in measured
        if group.case.batch == 1
    }
    for group in measured:
        case = group.case
        of_one = single.get((case.sf, case.engine, case.mode), math.nan)
        table.add_row(
            *_case_cells(case),
            count(case.batch),
            count(case.transactions),
            group.spread(_rate),
            number(group.median(_rate) / of_one),
            number(group.median(lambda run: run.recompute_ratio)),
            group.spread(lambda run: run.view_rows_per_second),
            number(group.median(lambda run: run.cpu_milliseconds_per_transaction)),
            count(group.median(lambda run: run.batched_versions)),
            number(group.median(lambda run: run.write_seconds)),
            number(group.median(lambda run: run.load_seconds)),
            number(group.median(lambda run: run.recompute_seconds)),
        )
    return table


def wire_table(measured: Sequence[Group]) -> Table:
    """What maintenance sent and received."""
    table = _table(
        "On the wire",
        "batch",
        "batches",
        "queries/tx",
        "queries/batch",
        "received MB",
        "sent MB",
        "bytes/tx",
        "bytes/view row",
    )
    for group in measured:
        table.add_row(
            *_case_cells(group.case),
            count(group.case.batch),
            count(group.median(lambda run: run.batches)),
            number(group.median(lambda run: run.queries_per_transaction)),
            number(group.median(lambda run: run.queries_per_batch)),
            megabytes(group.median(lambda run: run.bytes_received)),
            megabytes(group.median(lambda run: run.bytes_sent)),
            number(group.median(lambda run: run.wire_bytes_per_transaction)),
            number(group.median(lambda run: (run.bytes_received + run.bytes_sent) / max(1, run.view_rows))),
        )
    return table


def resources_table(measured: Sequence[Group]) -> Table:
    """Bytes on disk and peak memory by process."""
    roles = ["mediator", JVM, *(f"wrapper {source}" for source in SOURCES), TOTAL]
    table = _table(
        "Warehouse, and peak memory by process (MB)", "batch", "warehouse", "base", "× base", *roles
    )
    for group in measured:
        table.add_row(
            *_case_cells(group.case),
            count(group.case.batch),
            megabytes(group.median(lambda run: run.warehouse_bytes)),
            megabytes(group.median(lambda run: run.base_bytes)),
            number(group.median(lambda run: run.warehouse_ratio)),
            *(megabytes(group.median(_peak(role))) for role in roles),
        )
    return table


def freshness_table(freshness: Sequence[Freshness], measured: Sequence[Group]) -> Table:
    """How soon a single transaction is visible, with the ratio to one recompute."""
    recompute = {group.case.sf: group.median(lambda run: run.recompute_seconds) for group in measured}
    table = Table(title="Freshness of a single transaction at rest", title_justify="left")
    for heading in ("SF", "engine"):
        table.add_column(heading)
    for heading in ("samples", "p50 ms", "p99 ms", "p50 × recompute"):
        table.add_column(heading, justify="right")
    for entry in freshness:
        table.add_row(
            entry.sf,
            entry.engine,
            count(len(entry.milliseconds)),
            number(entry.p50),
            number(entry.p99),
            number(entry.p50 / 1e3 / recompute.get(entry.sf, math.nan)),
        )
    return table


def peers_table(measured: Sequence[Group], peers: Sequence[PeerFigure]) -> Table | None:
    """Our backlog runs against the fastest other system on the same stream; None if no stream is shared."""
    table = _table(
        "Against the best peer", "batch", "stream", "tx/s", "peer", "its tx/s", "× peer", "rows/s × peer"
    )
    for group in measured:
        case = group.case
        peer = best_peer(peers, case.sf, case.stream)
        if peer is None or case.mode is not Mode.BACKLOG:
            continue
        rows = group.median(lambda run: run.view_rows_per_second)
        table.add_row(
            *_case_cells(case),
            count(case.batch),
            case.stream,
            number(group.median(_rate)),
            peer.label,
            number(peer.transactions_per_second),
            number(group.median(_rate) / peer.transactions_per_second),
            number(rows / (peer.view_rows_per_second or math.nan)),
        )
    return table if table.row_count else None


def print_report(results: Results, peers: Sequence[PeerFigure], console: Console) -> None:
    """Every table that has something to show, what the figures mean, and what failed."""
    measured = groups(results.measurements)
    tables = []
    if measured:
        tables += [throughput_table(measured), wire_table(measured), resources_table(measured)]
    if results.freshness:
        tables.append(freshness_table(results.freshness, measured))
    against = peers_table(measured, peers)
    if against is not None:
        tables.append(against)
    for table in tables:
        console.print(table)
        console.print()
    if measured:
        console.print(NOTES, highlight=False)
    for failure in results.failures:
        console.print(
            f"[bold red]FAILED[/] {failure.what}: {failure.problem}", highlight=False, soft_wrap=True
        )


def as_json(results: Results, peers: Sequence[PeerFigure]) -> dict[str, Any]:
    """Everything measured, derived figures included, with what is known about the machine."""
    return {
        "environment": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "load_average": os.getloadavg(),
            "seed": SEED,
        },
        "measurements": [_measurement_json(run) for run in results.measurements],
        "freshness": [{**asdict(entry), "p50": entry.p50, "p99": entry.p99} for entry in results.freshness],
        "failures": [asdict(failure) for failure in results.failures],
        "peers": [asdict(peer) for peer in peers],
    }


def write_json(path: Path, results: Results, peers: Sequence[PeerFigure]) -> None:
    """The results as a file."""
    path.write_text(json.dumps(as_json(results, peers), indent=1) + "\n", encoding="utf-8")


def _measurement_json(run: Measurement) -> dict[str, Any]:
    fields = asdict(run)
    return {
        **fields.pop("case"),
        **fields,
        "transactions_per_second": run.transactions_per_second,
        "view_rows_per_second": run.view_rows_per_second,
        "recompute_ratio": run.recompute_ratio,
        "cpu_milliseconds_per_transaction": run.cpu_milliseconds_per_transaction,
        "queries_per_transaction": run.queries_per_transaction,
        "queries_per_batch": run.queries_per_batch if run.batches else None,
        "wire_bytes_per_transaction": run.wire_bytes_per_transaction,
        "warehouse_ratio": run.warehouse_ratio,
    }


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("SF", "engine", "mode"):
        table.add_column(heading)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _case_cells(case: Case) -> tuple[str, str, str]:
    return case.sf, case.engine, case.mode


def _rate(run: Measurement) -> float:
    return run.transactions_per_second


def _peak(role: str) -> Callable[[Measurement], float]:
    return lambda run: run.peak_memory.get(role, math.nan)
