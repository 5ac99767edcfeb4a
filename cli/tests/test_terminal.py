"""Whatever a server, a row or a file holds, it cannot steer the terminal that it is shown on."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
import typer.main

from algebra.arrow_ipc import to_ipc
from algebra.errors import DataError
from cli import group, logs, main, output, text
from cli.logs import LogFormat, LogLevel
from cli.tests import fake_mediator
from cli.tests.conftest import Run
from cli.tests.fake_mediator import FakeMediator
from protos.lockstep.v1 import mediator_pb2 as pb

HOSTILE = "a\x1b[2Jb\x9b31mc\x7f\u2028d"
SHOWN = r"a\x1b[2Jb\x9b31mc\x7f\u2028d"
STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def test_a_cell_is_one_line_of_visible_characters() -> None:
    assert text.cell(HOSTILE) == SHOWN
    assert text.cell("a\tb\nc\r\x00\u00e9") == r"a\tb\nc\r\x00" + "\u00e9"


def test_tables_show_what_would_steer(capsys: pytest.CaptureFixture[str]) -> None:
    output.console().print(output.table(["problem"], [[HOSTILE]]))
    shown = capsys.readouterr().out
    assert SHOWN in shown
    assert not STEERING.search(shown)


def test_json_means_the_same_and_steers_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_json({"problem": HOSTILE, "name": "\u00e9"})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"problem": HOSTILE, "name": "\u00e9"}
    assert not STEERING.search(shown)
    assert "\u00e9" in shown


def test_an_error_of_a_server_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    group.report(DataError(f"cannot convert '{HOSTILE}'"))
    # It ends a line for Python, and so it is another one.
    assert capsys.readouterr().err == r"error: cannot convert 'a\x1b[2Jb\x9b31mc\x7f" + "\nerror: d'\n"


def test_an_unexpected_error_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(app: object) -> None:
        raise ValueError(HOSTILE)

    monkeypatch.setattr(sys, "argv", ["lockstep", "status"])
    monkeypatch.delenv("LOCKSTEP_DEBUG", raising=False)
    monkeypatch.setattr(typer.main, "get_command", broken)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(SystemExit):
        main.main()
    shown = capsys.readouterr().err
    assert r"\x1b[2Jb\x9b31mc" in shown
    assert not STEERING.search(shown)


@pytest.mark.parametrize("form", list(LogFormat))
def test_a_log_record_and_its_trace_are_shown(capsys: pytest.CaptureFixture[str], form: LogFormat) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logs.configure(LogLevel.INFO, debug=True, form=form)
        try:
            raise ValueError(HOSTILE)
        except ValueError as error:
            logging.getLogger("a").exception("%s", HOSTILE)
            logs.redacted_trace(type(error), error, None)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    shown = capsys.readouterr().err
    assert "31mc" in shown
    assert not STEERING.search(shown)


COMMANDS = (
    ["status"],
    ["view", "show", "v"],
    ["view", "list"],
    ["explain", "v"],
    ["watch", "v", "--max-versions", "1"],
    ["query", "SELECT 1"],
)


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The address of a mediator whose answers would steer a terminal."""
    view = fake_mediator.view("v")
    view.problem, view.state, view.spec.sql = HOSTILE, HOSTILE, HOSTILE
    status = pb.GetStatusResponse(engine="spark", problem=HOSTILE)
    status.views.add(view="v", state=HOSTILE, problem=HOSTILE)
    explanation = pb.Explanation(local_views=[pb.ExplainedLocalView(name=HOSTILE, source="s", sql=HOSTILE)])
    change = pb.WatchViewResponse(
        version=fake_mediator.version(1, HOSTILE),
        arrow=to_ipc(pa.table({HOSTILE: [HOSTILE], "_count": pa.array([1], pa.int64())})),
    )
    answers = {
        "GetStatus": status,
        "GetView": pb.GetViewResponse(view=view, explanation=explanation),
        "ListViews": pb.ListViewsResponse(views=[view]),
        "Explain": pb.ExplainResponse(explanation=explanation),
        "WatchView": iter([change]),
        "Query": iter([pb.QueryResponse(arrow=change.arrow, versions={HOSTILE: 1})]),
    }
    for method, answer in answers.items():
        monkeypatch.setattr(FakeMediator, method, lambda self, request, context, answer=answer: answer)
    fake: FakeMediator = request.getfixturevalue("fake")
    return fake.address


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_a_mediator_answers_is_shown(run: Run, hostile: str, command: list[str]) -> None:
    result = run(*command, "--address", hostile)
    assert result.exit_code == 0, result.output
    assert "31mc" in result.output
    assert not STEERING.search(result.output)


def test_a_name_in_a_configuration_is_shown(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text('sources: {"a\\e[31m\\x9b2J": {adapter: sqlite}}')
    result = run("up", tmp_path / "a.yaml")
    assert r"sources.a\x1b[31m\x9b2J: " in result.stderr
    assert not STEERING.search(result.stderr)


@pytest.mark.parametrize(
    "command", [["prepare", "--dry-run"], ["prepare"], ["check"], ["remove", "--dry-run"]], ids=" ".join
)
def test_names_in_a_source_are_shown(run: Run, tmp_path: Path, command: list[str]) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute(f'CREATE TABLE "{HOSTILE}" (id INTEGER PRIMARY KEY, "{HOSTILE}" TEXT)')
    file = tmp_path / "a.yaml"
    file.write_text("sources: {shop: {adapter: sqlite, url: 'sqlite:///shop.db'}}")
    if command[0] == "remove":
        assert run("adapter", "prepare", file, "--source", "shop").exit_code == 0
    result = run("adapter", *command, file, "--source", "shop")
    assert result.exit_code == 0, result.output
    assert SHOWN in result.output
    assert not STEERING.search(result.output)


def test_the_views_of_a_copy_are_shown(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mediator.warehouse.backup.backup", lambda *_: {HOSTILE: 1})
    (tmp_path / "a.yaml").write_text("")
    result = run("backup", tmp_path / "a.yaml", tmp_path / "copy")
    assert f"view {SHOWN} at version 1\n" in result.output
    assert not STEERING.search(result.output)
