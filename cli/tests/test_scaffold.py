"""`lockstep adapter new`: what it writes installs, registers, and passes the conformance kit as it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import scaffold
from cli.main import app

ROOT = Path(__file__).resolve().parents[2]

LEFT_OUT = "not many and not 100-000 and not large-transactions"
"""All of the kit but what only takes time."""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A fresh environment that also sees what is installed for these tests; returns its interpreter."""
    home = tmp_path / "environment"
    venv.create(home, symlinks=True)
    (site,) = (home / "lib").glob("python*/site-packages")
    # The installed packages, and this checkout, whose own metadata may be older than its sources.
    (site / "installed.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    return home / "bin" / "python"


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_package_installs_registers_and_keeps_the_contract(tmp_path: Path, environment: Path) -> None:
    project = tmp_path / "project"
    result = CliRunner().invoke(app, ["adapter", "new", "my-crm", "--directory", str(project)])
    assert result.exit_code == 0, result.output
    run(sys.executable, "-m", "ruff", "check", "--no-cache", ".", cwd=project)
    run(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".", cwd=project)

    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", ".")
    run(environment, *install, cwd=project)
    listed = json.loads(run(environment, "-m", "cli.main", "adapter", "list", "--json", cwd=tmp_path))
    (entry,) = [entry for entry in listed if entry["adapter"] == "my-crm"]
    assert entry["class"] == "lockstep_my_crm.adapter:MyCrmAdapter"
    assert entry["problem"] == ""

    plugin = ("-p", "adapters.pytest_plugin") if not _plugin_is_installed() else ()
    options = ("-q", "-p", "no:cacheprovider", "--strict-markers", "--conformance-report", *plugin)
    told = run(environment, "-m", "pytest", *options, "-k", LEFT_OUT, cwd=project)
    assert re.search(r"TestMyCrm: keeps (8\d|9\d) cases, \d+ do not apply", told), told
    assert "type-date: no date32[day]: JSON has no dates" in told


def _plugin_is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.value == "adapters.pytest_plugin" for point in entry_points(group="pytest11"))


@pytest.mark.parametrize("name", ["My Crm", "1st", "-x", "a--b", "", "class", "a" * 41, "../x"])
def test_bad_names_are_one_clear_line(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["adapter", "new", "--directory", str(tmp_path / "new"), "--", name])
    assert result.exit_code == 1
    assert "is no name for an adapter" in result.output
    assert not (tmp_path / "new").exists()


def test_names_that_are_taken_and_directories_that_are_full_are_refused(tmp_path: Path) -> None:
    taken = CliRunner().invoke(app, ["adapter", "new", "sqlite", "--directory", str(tmp_path / "new")])
    assert "there is an adapter 'sqlite' already" in taken.output
    (tmp_path / "mine").write_text("something")
    full = CliRunner().invoke(app, ["adapter", "new", "my-crm", "--directory", str(tmp_path)])
    assert "not an empty directory" in full.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_every_placeholder_is_known() -> None:
    for template in scaffold.TEMPLATES.rglob("*"):
        if template.is_file():
            assert template.suffix == scaffold.SUFFIX
            assert scaffold._PLACEHOLDER.sub("", template.read_text()).count("@stem") == 0
