from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cli.tests.conftest import Run


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A configuration with a real SQLite file beside it."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(
            "PRAGMA journal_mode = WAL;"
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL);"
            "CREATE TABLE lineitem (ord INTEGER NOT NULL, qty INTEGER);"
            "INSERT INTO orders VALUES (1, 'Ada'), (2, 'Ben');"
            "INSERT INTO lineitem VALUES (1, 5), (1, 5), (2, NULL);"
        )
    file = tmp_path / "shop.yaml"
    file.write_text("sources: {shop: {adapter: sqlite, url: 'sqlite:///shop.db', listen: '127.0.0.1:0'}}")
    return file


def objects(file: Path) -> set[str]:
    with closing(sqlite3.connect(file.parent / "shop.db")) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def test_list(run: Run) -> None:
    result = run("adapter", "list")
    assert result.exit_code == 0
    assert {"sqlite", "duckdb"} <= {line.split()[0] for line in result.stdout.splitlines() if line.strip()}
    listed = {item["adapter"]: item for item in json.loads(run("adapter", "list", "--json").stdout)}
    assert listed["sqlite"]["problem"] == ""
    assert listed["sqlite"]["package"] == "lockstep"
    captures = {capture["capture"]: capture for capture in listed["duckdb"]["captures"]}
    assert list(captures) == ["trigger", "diff"]
    assert captures["trigger"]["strongest_level"] == "complete"
    assert captures["diff"]["strongest_level"] == "strong"
    assert re.search(r"diff +batched +strong", result.stdout)


def test_check(run: Run, shop: Path) -> None:
    before = objects(shop)
    result = run("adapter", "check", shop)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("shop (sqlite)\n  ok")
    assert "FAIL" not in result.stdout
    checks = json.loads(run("adapter", "check", shop, "--source", "shop", "--json").stdout)[0]["checks"]
    assert all(check["ok"] for check in checks)
    assert before <= objects(shop)


def test_check_names_what_is_wrong(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("sources: {a: {adapter: oracle, url: x}}")
    result = run("adapter", "check", file)
    assert result.exit_code == 1
    assert "sources.a.adapter: unknown adapter 'oracle'" in result.stderr
    assert "no source 'b'" in run("adapter", "check", file, "--source", "b").stderr


def test_prepare_and_remove(run: Run, shop: Path) -> None:
    before = objects(shop)
    result = run("adapter", "prepare", shop, "--source", "shop", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "CREATE" in result.stdout
    assert objects(shop) == before

    result = run("adapter", "prepare", shop, "--source", "shop")
    assert result.stdout.endswith("shop: capture is installed\n")
    assert objects(shop) > before

    steps = json.loads(run("adapter", "remove", shop, "--source", "shop", "--dry-run", "--json").stdout)
    assert steps["dry_run"] is True
    assert steps["steps"]
    assert objects(shop) > before

    result = run("adapter", "remove", shop, "--source", "shop")
    assert result.stdout.endswith("shop: capture is removed\n")
    assert objects(shop) == before
