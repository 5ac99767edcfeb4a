"""The format's number: written, checked, and older ones are brought up to date, also if that is cut off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from algebra.errors import ConfigurationError
from mediator.warehouse import Warehouse
from mediator.warehouse import format as formats
from mediator.warehouse.tests.builders import SCHEMA, at, change, counted, row
from mediator.warehouse.tests.test_faults import Broken, Fault


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Warehouse(tmp_path / "w", durable=False) as warehouse:
        warehouse.create_view("v", {}, SCHEMA, counted({(1, "a"): 1}), row(0))
    return tmp_path / "w"


def test_a_new_warehouse_carries_its_format(root: Path) -> None:
    assert json.loads((root / "format.json").read_text()) == {"format": formats.FORMAT}


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_format_is_refused_and_left_alone(root: Path, read_only: bool) -> None:
    (root / "format.json").write_text('{"format": 99}')
    with pytest.raises(ConfigurationError, match=r"has format 99, .* up to 2: use the newer Lockstep"):
        Warehouse(root, read_only)
    assert json.loads((root / "format.json").read_text()) == {"format": 99}


def test_a_format_that_cannot_be_read_is_named(root: Path) -> None:
    (root / "format.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"format\.json cannot be read"):
        Warehouse(root)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_is_no_warehouse(tmp_path: Path, read_only: bool) -> None:
    file = tmp_path / "w"
    file.touch()
    with pytest.raises(ConfigurationError, match=f"^the warehouse {file} is a file; name a folder$"):
        Warehouse(file, read_only)
    with pytest.raises(
        ConfigurationError, match=f"^{file}, above the warehouse sub, is a file; name a folder$"
    ):
        Warehouse(file / "sub", read_only)


def test_a_folder_with_something_else_is_no_warehouse(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigurationError, match=r"is not empty and no warehouse \(it holds thesis\.tex\)"):
        Warehouse(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_new_warehouse_may_be_at_the_top_of_a_disk(tmp_path: Path) -> None:
    for name in ("lost+found", ".Trash-0"):
        (tmp_path / name).mkdir()
    for name in (".lock", "format.tmp"):  # of a first start that was killed
        (tmp_path / name).touch()
    Warehouse(tmp_path, durable=False).close()
    assert formats.format_of(tmp_path) == formats.FORMAT


def test_a_warehouse_without_a_number_is_the_first_one(root: Path) -> None:
    (root / "format.json").unlink()
    with Warehouse(root, read_only=True) as warehouse:
        assert at(warehouse, "v") == {(1, "a"): 1}
    with Warehouse(root, durable=False) as warehouse:
        warehouse.install([change("v", 1, {(2, "b"): 1})])
        assert at(warehouse, "v") == {(1, "a"): 1, (2, "b"): 1}
    assert formats.format_of(root) == formats.FORMAT


def test_upgrades_run_one_after_the_other_and_go_on_where_they_were_cut_off(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "format.json").unlink()
    ran: list[int] = []
    monkeypatch.setattr(formats, "FORMAT", 3)
    upgrades = {number: lambda _, number=number: ran.append(number) for number in range(3)}
    monkeypatch.setattr(formats, "UPGRADES", upgrades)
    with pytest.raises(Broken):
        Warehouse(root, durable=False, fault=Fault("after format.upgrade 2"))
    assert (ran, formats.format_of(root)) == ([0, 1], 1)
    Warehouse(root, durable=False).close()
    assert (ran, formats.format_of(root)) == ([0, 1, 1, 2], 3), "the step that was not recorded ran again"
