"""Reports show medians and ratios, and failures instead of figures."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from algebra.errors import ConfigurationError
from lab.bench.peers import best_peer, read_peers
from lab.bench.report import as_json, groups, number, print_report, write_json
from lab.bench.results import Case, Failure, Freshness, Measurement, Mode, Results, percentile

CASE = Case("0.01", "duckdb", Mode.BACKLOG, 1000, 1000)
RUN = Measurement(
    case=CASE,
    seconds=2.0,
    measured_from="mediator ready",
    versions=1000,
    batched_versions=0,
    view_rows=125_000,
    final_rows=60_000,
    batches=1,
    queries=4,
    compensations=2,
    bytes_received=3_000_000,
    bytes_sent=1_000_000,
    warehouse_bytes=6_000_000,
    base_bytes=2_000_000,
    source_bytes=9_000_000,
    load_seconds=1.5,
    write_seconds=0.5,
    recompute_seconds=0.02,
    peak_memory={"mediator": 200_000_000, "wrapper a": 90_000_000, "total": 290_000_000},
    cpu_seconds={"mediator": 1.0, "total": 1.5},
)
SINGLE = replace(RUN, case=replace(CASE, batch=1, transactions=200), seconds=10.0, batches=200, queries=400)
PEERS = [
    {"label": "slow", "sf": "0.01", "stream": "k1000", "tx_per_s": 50, "verify": {"equal": True}},
    {"label": "fast", "sf": "0.01", "stream": "k1000", "tx_per_s": 90, "verify": {"equal": True}},
    {"label": "fast", "sf": "0.01", "stream": "k1000", "tx_per_s": 110, "verify": {"equal": True}}
    | {"view_rows_per_s": 12_500},
    {"label": "wrong", "sf": "0.01", "stream": "k1000", "tx_per_s": 999, "verify": {"equal": False}},
    {"label": "pg-base", "sf": "0.01", "stream": "k1000", "tx_per_s": 999, "verify": {"equal": True}},
    {"label": "broken", "sf": "0.01", "stream": "k1000", "error": "no"},
]


@pytest.fixture
def peers_file(tmp_path: Path) -> Path:
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join(map(json.dumps, PEERS)))
    return path


def test_derived_figures() -> None:
    assert RUN.transactions_per_second == 500
    assert RUN.view_rows_per_second == 62_500
    assert RUN.recompute_ratio == 10
    assert RUN.queries_per_batch == 4
    assert RUN.queries_per_transaction == 0.004
    assert RUN.wire_bytes_per_transaction == 4000
    assert RUN.warehouse_ratio == 3
    assert RUN.cpu_milliseconds_per_transaction == 1.5


def test_repeats_form_one_group_with_median_and_range() -> None:
    runs = [replace(RUN, case=replace(CASE, repeat=n), seconds=s) for n, s in enumerate((1.0, 2.0, 4.0), 1)]
    (group,) = groups(runs)
    assert group.spread(lambda run: run.transactions_per_second) == "500 (250-1,000)"


def test_the_table_shows_ratios_to_batches_of_one_and_to_recomputing(peers_file: Path) -> None:
    results = Results([SINGLE, RUN], [Freshness("0.01", "duckdb", (10.0, 20.0, 30.0))])
    text = _printed(results, peers_file)
    row = next(line for line in text.splitlines() if "1,000" in line and "500" in line)
    assert _cells(row)[3:9] == ["1,000", "1,000", "500", "25.0", "10.0", "62,500"]
    assert "p99 ms" in text
    peer = next(line for line in text.splitlines() if "fast" in line)
    assert _cells(peer)[-6:] == ["k1000", "500", "fast", "100", "5.00", "5.00"]


def test_a_failure_is_shown_without_figures(peers_file: Path) -> None:
    text = _printed(Results(failures=[Failure("SF 0.01 spark", "the view differs")]), peers_file)
    assert "FAILED SF 0.01 spark: the view differs" in text
    assert "tx/s" not in text


def test_json_holds_everything(tmp_path: Path, peers_file: Path) -> None:
    path = tmp_path / "out.json"
    results = Results([RUN], [Freshness("0.01", "duckdb", (1.0,))], [Failure("x", "y")])
    write_json(path, results, read_peers(peers_file))
    read = json.loads(path.read_text())
    assert read == json.loads(json.dumps(as_json(results, read_peers(peers_file))))
    (run,) = read["measurements"]
    assert (run["engine"], run["mode"], run["transactions_per_second"]) == ("duckdb", "backlog", 500)
    assert read["failures"] == [{"what": "x", "problem": "y"}]


def test_the_best_peer_is_verified_and_keeps_a_view(peers_file: Path) -> None:
    best = best_peer(read_peers(peers_file), "0.01", "k1000")
    assert best is not None
    assert (best.label, best.transactions_per_second, best.runs) == ("fast", 100, 2)
    assert best_peer(read_peers(peers_file), "0.1", "k1000") is None


def test_a_broken_peers_file_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("not json")
    with pytest.raises(ConfigurationError, match="not a result file"):
        read_peers(tmp_path / "x")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234.5, "1,234"), (99.96, "100.0"), (0.5, "0.500"), (1.0, "1.00"), (float("nan"), "-")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_percentiles_are_values_that_occurred() -> None:
    samples = [float(n) for n in range(1, 101)]
    assert percentile(samples, 50) == 50
    assert percentile(samples, 99) == 99
    assert percentile([5.0], 99) == 5.0


def _printed(results: Results, peers_file: Path) -> str:
    out = io.StringIO()
    print_report(results, read_peers(peers_file), Console(file=out, width=200))
    return out.getvalue()


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│ ").split("│")]
