"""Datasets are found where somebody put them and generated where nobody did."""

from __future__ import annotations

from pathlib import Path

import pytest

from algebra.errors import ConfigurationError, MissingExtraError
from lab.bench.baseline import recompute
from lab.bench.check import check_versions, check_view, difference
from lab.bench.dataset import existing_dataset, generated_dataset, tpch_generator
from lab.bench.errors import BenchmarkError
from lab.bench.sources import build_sources, read_tables
from lab.bench.tests.tiny import arrow_table, tiny_base, tiny_dataset
from lab.bench.workload import VIEW_COLUMNS


@pytest.mark.parametrize("layout", ["sftiny", "data/sftiny"])
def test_existing_data_is_found_below_its_root(tmp_path: Path, layout: str) -> None:
    tiny_dataset(tmp_path / layout)
    assert existing_dataset(tmp_path, "tiny").directory == tmp_path / layout
    assert existing_dataset(tmp_path / layout, "tiny").directory == tmp_path / layout


def test_missing_data_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="of scale factor"):
        existing_dataset(tmp_path, "0.01")


def test_the_shortest_stream_that_is_long_enough_is_used(tmp_path: Path) -> None:
    dataset = tiny_dataset(tmp_path)
    for name in ("k10000.jsonl", "k1000.jsonl", "knot.jsonl"):
        (tmp_path / name).touch()
    assert dataset.stream(200).name == "k1000.jsonl"
    assert dataset.stream(1001).name == "k10000.jsonl"
    with pytest.raises(ConfigurationError, match="10001 transactions"):
        dataset.stream(10_001)


def test_generated_data_is_complete_and_kept(tmp_path: Path) -> None:
    try:
        tpch_generator()
    except MissingExtraError:
        pytest.skip("tpchgen-cli is not installed")
    dataset = generated_dataset(tmp_path, "0.001", 50)
    stream = dataset.stream(50).read_bytes()
    assert len(stream.splitlines()) == 50
    written = dataset.base("lineitem").stat().st_mtime_ns
    assert generated_dataset(tmp_path, "0.001", 20) == dataset
    assert dataset.base("lineitem").stat().st_mtime_ns == written
    tables = read_tables(build_sources(dataset, tmp_path / "sources", {}))
    assert tables["customer"].num_rows == 150
    # Every line has its order, customer, supplier, nation and region, so the view has one row for each.
    assert recompute(tables, repeats=1).view.num_rows == tables["lineitem"].num_rows


def test_a_recompute_has_the_views_columns() -> None:
    tables = {name: arrow_table(name, rows) for name, rows in tiny_base().items()}
    view = recompute(tables, repeats=1).view
    assert tuple(view.column_names) == VIEW_COLUMNS
    assert not difference(view, view)


def test_views_are_compared_as_bags() -> None:
    tables = {name: arrow_table(name, rows) for name, rows in tiny_base().items()}
    view = recompute(tables, repeats=1).view
    twice = type(view).from_batches([*view.to_batches(), *view.slice(0, 1).to_batches()])
    found = difference(twice, view.slice(2))
    assert (found.surplus, found.missing) == (3, 0)
    with pytest.raises(BenchmarkError, match="2 missing"):
        check_view(view.slice(2), view, "its recompute")


def test_every_transaction_needs_its_version_unless_some_are_batched() -> None:
    check_versions(10, 10, batched=0)
    check_versions(8, 10, batched=1)
    for versions, batched in ((9, 0), (11, 0), (11, 1)):
        with pytest.raises(BenchmarkError):
            check_versions(versions, 10, batched)
