from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import Result

from cli.tests.conftest import Run
from cli.tests.fake_mediator import ROWS, FakeMediator
from protos.lockstep.v1 import mediator_pb2 as pb


def output(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def test_view_create_shows_progress_and_result(ask: Run, fake: FakeMediator) -> None:
    result = ask("view", "create", "v", "--sql", "SELECT 1", "--max-batch", "5", "--allow-cross-join")
    expected = "view v is maintained: 3,456 rows at version 12, strong by nested-sweep\n"
    assert output(result) == expected
    assert result.stderr.splitlines() == [
        "view v: planning",
        "view v: reading the sources: v_shop, 10 of about 500 rows",
        "view v: joining",
    ]
    spec = fake.requests[0].view
    assert (spec.sql, spec.maintenance, spec.max_batch, spec.allow_cross_join) == (
        "SELECT 1",
        "",
        5,
        True,
    )
    assert (spec.consistency, spec.force) == ("", False)


def test_view_create_with_an_algorithm_and_a_level(ask: Run, fake: FakeMediator) -> None:
    options = ("--sql", "SELECT 1", "--maintenance", "strobe", "--consistency", "strong", "--force")
    created = json.loads(output(ask("view", "create", "v", *options, "--json")))
    spec = pb.ViewSpec(name="v", sql="SELECT 1", maintenance="strobe", consistency="strong", force=True)
    assert fake.requests[0].view == spec
    assert (created["maintenance"], created["maintenance_named"]) == ("nested-sweep", False)
    assert (created["consistency"], created["asked_consistency"]) == ("strong", "weak")
    result = ask("view", "create", "v", "--sql", "SELECT 1", "--consistency", "perfect")
    assert result.exit_code != 0
    assert "convergent" in result.output


def test_view_create_from_a_file(ask: Run, fake: FakeMediator, tmp_path: Path) -> None:
    (tmp_path / "v.sql").write_text("SELECT 2")
    options = ("--file", tmp_path / "v.sql", "--maintenance", "sweep-published", "--json")
    assert json.loads(output(ask("view", "create", "v", *options)))["rows"] == 3456
    assert (fake.requests[0].view.sql, fake.requests[0].view.maintenance) == ("SELECT 2", "sweep-published")


def test_an_error_of_the_mediator_is_one_line(ask: Run, fake: FakeMediator) -> None:
    result = ask("view", "drop", "nobody", "--yes")
    assert (result.exit_code, result.stderr) == (1, "error: there is no view 'nobody'\n")
    fake.down = True
    result = ask("view", "create", "v", "--sql", "SELECT 1")
    assert (result.exit_code, result.stderr) == (1, "error: source 'shop' does not answer\n")


def test_view_list(ask: Run) -> None:
    lines = output(ask("view", "list")).splitlines()
    assert [line.split()[:4] for line in lines if "maintained" in line] == [
        ["order_book", "maintained", "12", "3,456"],
        ["stock", "maintained", "12", "3,456"],
    ]
    assert all(re.search(r"crm, shop +nested-sweep +strong ", line) for line in lines if "maintained" in line)
    listed = json.loads(output(ask("view", "list", "--json")))
    assert [view["name"] for view in listed] == ["order_book", "stock"]
    assert listed[0]["vector"] == {"shop": {"ordinal": 120}}
    assert listed[0]["columns"] == [{"name": "name", "type": "string"}, {"name": "qty", "type": "int64"}]
    assert listed[0]["committed_at"] == "2026-01-02T12:00:00Z"


def test_view_show(ask: Run) -> None:
    shown = output(ask("view", "show", "stock"))
    for expected in ("stock", "SELECT 1 FROM t", "shop@120", "name string, qty int64", "v_crm ON cust = id"):
        assert expected in shown
    assert "maintenance nested-sweep\n" in shown
    assert "consistency strong (weak was asked for)\n" in shown
    assert json.loads(output(ask("view", "show", "stock", "--json")))["explanation"]["queries_per_batch"] == 2


def test_view_show_of_a_view_that_is_not_maintained(ask: Run) -> None:
    shown = output(ask("view", "show", "waiting"))
    assert "maintenance not known while it is not maintained" in shown
    assert "local views" not in shown
    assert json.loads(output(ask("view", "show", "waiting", "--json")))["maintenance"] is None


def test_view_drop_refresh_compact(ask: Run) -> None:
    assert output(ask("view", "drop", "v", "-y")) == "view v is dropped\n"
    assert output(ask("view", "refresh", "v")) == "view v is refreshed: 1 row changed, version 13\n"
    assert json.loads(output(ask("view", "refresh", "v", "--json")))["changed_rows"] == 1
    assert (
        output(ask("view", "compact", "v")) == "view v is compacted at version 12: 20 files before, 1 after\n"
    )
    assert json.loads(output(ask("view", "compact", "v", "--json")))["files_after"] == 1


def test_view_verify(ask: Run, fake: FakeMediator) -> None:
    assert output(ask("view", "verify", "v")) == "view v is right: version 12 equals the recompute, 3 rows\n"
    fake.wrong = True
    result = ask("view", "verify", "v")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "view v is WRONG at version 12: 2 rows of 3 differ; + has too much, - has too little",
        "  - Ada | 1",
        "  + Ben | 2  (×2)",
    ]
    result = ask("view", "verify", "v", "--limit", "1")
    assert result.stdout.splitlines()[-1] == "  … and 1 more (--limit 0 shows all)"
    result = ask("view", "verify", "v", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["right"] is False
    assert found["differences"][1] == {"name": "Ben", "qty": 2, "_count": 2}


def test_view_verify_tells_of_hidden_columns(ask: Run, fake: FakeMediator) -> None:
    fake.wrong_keys = 2
    result = ask("view", "verify", "v")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "view v is WRONG at version 12: 0 rows of 3 differ; + has too much, - has too little",
        "  2 further rows in hidden columns alone",
    ]
    assert json.loads(ask("view", "verify", "v", "--json").stdout)["right"] is False


def test_query_as_a_table(ask: Run, fake: FakeMediator) -> None:
    result = ask("query", "SELECT * FROM order_book", "--as-of", "0")
    assert output(result).splitlines() == [
        "name    qty",
        "──────  ───",
        "Ada       1",
        "B|en\\n   22",
        "NULL      3",
    ]
    assert result.stderr == "3 rows (order_book at version 12)\n"
    assert fake.requests[0].as_of == 0
    assert fake.requests[0].HasField("as_of")


def test_query_as_csv(ask: Run, fake: FakeMediator) -> None:
    rows = list(csv.reader(io.StringIO(output(ask("query", "SELECT 1", "--format", "csv")))))
    assert rows == [["name", "qty"], ["Ada", "1"], ["B|en\n", "22"], ["", "3"]]
    assert not fake.requests[0].HasField("as_of")


def test_query_as_json(ask: Run) -> None:
    assert json.loads(output(ask("query", "SELECT 1", "-f", "json"))) == ROWS.to_pylist()


def test_query_as_arrow(ask: Run, tmp_path: Path) -> None:
    result = ask("query", "SELECT 1", "-f", "arrow")
    assert pa.ipc.open_stream(result.stdout_bytes).read_all().equals(ROWS)
    assert output(ask("query", "SELECT 1", "-f", "arrow", "-o", tmp_path / "a.arrows")) == ""
    with pa.OSFile(str(tmp_path / "a.arrows")) as file:
        assert pa.ipc.open_stream(file).read_all().equals(ROWS)


def test_query_into_a_folder_that_is_not_there(ask: Run, tmp_path: Path) -> None:
    result = ask("query", "SELECT 1", "-o", tmp_path / "no" / "a.csv")
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


def test_history(ask: Run, fake: FakeMediator) -> None:
    shown = output(ask("history", "order_book", "--limit", "0"))
    lines = [line for line in shown.splitlines() if line.strip()]
    assert lines[-3].split()[:4] == ["2", "shop", "20", "2"]
    assert lines[-3].rstrip().endswith("batched")
    assert "250 ms" in lines[-2]
    assert "crm@7 shop@10" in lines[-2]
    assert lines[-1].split()[:2] == ["0", "(load)"]
    assert fake.requests[0].limit == 0
    listed = json.loads(output(ask("history", "order_book", "--json")))
    assert [version["version"] for version in listed] == [2, 1, 0]
    assert listed[0]["lag_seconds"] == pytest.approx(0.25)
    assert (listed[2]["source"], listed[2]["position"]) == (None, None)


def test_watch(ask: Run, fake: FakeMediator) -> None:
    lines = output(ask("watch", "order_book", "--after", "0")).splitlines()
    assert lines[0].startswith("version 1  shop@10  ")
    assert lines[1:4] == ["    name | qty", "  - Ada | 1", "  + Ben | 2  (×2)"]
    assert lines[4].startswith("version 2  crm@20  ")
    assert lines[4].endswith("batched")
    assert lines[5] == "  no row changed"
    assert fake.requests[0].after == 0
    assert fake.requests[0].HasField("after")


def test_watch_a_number_of_versions_as_json(ask: Run) -> None:
    lines = output(ask("watch", "order_book", "--max-versions", "1", "--json")).splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["changes"][1] == {"name": "Ben", "qty": 2, "_count": 2}


def test_status(ask: Run) -> None:
    shown = output(ask("status"))
    for expected in ("engine duckdb", "connected", "1,234", "exact where known", "order_book", "250 ms"):
        assert expected in shown
    assert "problem" not in shown
    document = json.loads(output(ask("status", "--json")))
    assert document["sources"][0]["capabilities"]["capture"] == "trigger"
    assert document["views"][0]["lag_seconds"] == 0.25


def test_explain(ask: Run, fake: FakeMediator) -> None:
    shown = output(ask("explain", "order_book"))
    for expected in (
        "  algorithm       nested-sweep (chosen)",
        "  consistency     strong\n    nested-sweep gives strong consistency\n    source shop tells",
        "  message cost    at most n-1 (n = 1)",
        "  needs           one local view per source",
        "  hidden columns  _key_o_id",
        "v_shop at shop",
        "    FROM orders o",
        "SELECT * FROM v_shop JOIN v_crm",
        "    1. v_crm ON cust = id",
        "  2. v_crm -> v_shop",
        "queries per update  1",
        "at most 2",
    ):
        assert expected in shown
    ask("explain", "SELECT 1 FROM a.b", "--allow-cross-join")
    assert fake.requests[0] == pb.ExplainRequest(view="order_book")
    spec = pb.ViewSpec(name="explained", sql="SELECT 1 FROM a.b", allow_cross_join=True)
    assert fake.requests[1].spec == spec
    explained = json.loads(output(ask("explain", "v", "--json")))
    assert explained["batched_hops"][0] == "v_shop -> v_crm"
    assert explained["maintenance"]["needs"] == ["one local view per source"]


def test_explain_under_another_algorithm(ask: Run, fake: FakeMediator) -> None:
    ask("explain", "SELECT 1 FROM a.b", "--maintenance", "ivma", "--force")
    spec = pb.ViewSpec(name="explained", sql="SELECT 1 FROM a.b", maintenance="ivma", force=True)
    assert fake.requests[0].spec == spec
    ask("explain", "order_book", "--consistency", "strong")
    spec = pb.ViewSpec(name="order_book", sql="SELECT 1\n  FROM t", consistency="strong")
    assert fake.requests[1].spec == spec
