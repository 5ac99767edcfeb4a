"""The documentation check finds what it is for."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import typer
import typer.main

ROOT = Path(__file__).resolve().parents[1]


def toy_cli() -> typer.Typer:
    app, view = typer.Typer(), typer.Typer()

    @app.callback()
    def root(debug: bool = False, address: str = "") -> None: ...

    @app.command()
    def query(sql: str, as_of: int = 0) -> None: ...

    @view.command()
    def create(name: str) -> None: ...

    app.add_typer(view, name="view")
    return app


@pytest.fixture
def checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, looking at an empty repository with a small command line."""
    spec = importlib.util.spec_from_file_location("check_docs", ROOT / "docs" / "check_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check_docs", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "_cli", lambda: typer.main.get_command(toy_cli()))
    (tmp_path / "docs").mkdir()
    (tmp_path / "test_sample.py").write_text("def test_something() -> None: ...\n")
    (tmp_path / "Makefile").write_text("test: setup ## Run\n\ttrue\n")
    return module


@pytest.fixture
def problems_of(checker: ModuleType, tmp_path: Path) -> Callable[[str], list[str]]:
    def problems(text: str) -> list[str]:
        (tmp_path / "README.md").write_text(text)
        return [str(problem) for problem in checker.problems()]

    return problems


@pytest.mark.parametrize(
    "text",
    [
        "[web](https://example.org/a) [mail](mailto:a@b.c) `[not](a-link.md)`",
        "# What it *is*: a `view`\n[there](#what-it-is-a-view) [file](Makefile)",
        "```text\n[not](a-link.md)\n```",
        "```console\n$ lockstep --address host:1 query 'SELECT 1' --as-of 3 | head\nrow\n```",
        "```console\n$ LOCKSTEP_ADDRESS=x lockstep --debug \\\n    view create v\n```",
        "```console\n$ make test ARGS=x  # quick\n```",
        "```console\n$ lockstep query --help\n```",
        "```bash\nlockstep nonsense\n```",
        "shown by `test_something`, run by `pytest -k test_nothing`",
        "see https://example.org/home/page and ./work/x and {}/tmp/x",
    ],
)
def test_what_is_true_passes(problems_of: Callable[[str], list[str]], text: str) -> None:
    assert problems_of(text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("shown by `test_nothing_at_all`", "README.md:1: names test_nothing_at_all, which is no test"),
        ("[gone](docs/gone.md)", "README.md:1: link to docs/gone.md, which does not exist"),
        ("\n[out](../other.md)", "README.md:2: link to ../other.md, which does not exist"),
        ("# One\n[two](#two)", "README.md:2: link to #two, but there is no such heading"),
        ("[ref]\n\n[ref]: gone.md", "README.md:3: link to gone.md, which does not exist"),
        ("```console\n$ lockstep vanish\n```", "README.md:2: 'lockstep' has no command vanish"),
        ("```console\n$ lockstep view made v\n```", "README.md:2: 'lockstep view' has no command made"),
        ("```console\n$ lockstep query x --of 3\n```", "README.md:2: 'lockstep query' has no option --of"),
        ("```console\n$ make tests\n```", "README.md:2: there is no make target tests"),
        ("in " + "/" + "home/ann/lockstep", "README.md:1: names a path of one machine: " + "/" + "home/ann"),
    ],
)
def test_what_is_not_true_is_named(problems_of: Callable[[str], list[str]], text: str, problem: str) -> None:
    assert problems_of(text) == [problem]


def test_a_table_of_adapters_that_is_not_theirs_is_found(checker: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "adapters.md"
    page.write_text((ROOT / "docs" / "adapters.md").read_text().replace("**complete**", "**strong**", 1))
    (problem,) = checker.check_adapter_table(page)
    assert "make adapter-table" in problem.text
    page.write_text("no marks")
    assert "cannot be made" in next(iter(checker.check_adapter_table(page))).text
    page.write_text((ROOT / "docs" / "adapters.md").read_text())
    assert list(checker.check_adapter_table(page)) == []
