from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner, Result

from cli import build
from cli.config import load
from cli.main import app
from lab.transcript import Transcript

SHOP = """
PRAGMA journal_mode = WAL;
CREATE TABLE "order details" (
    "Order №" INTEGER PRIMARY KEY, "select" INTEGER NOT NULL, placed DATE, total DECIMAL(10,2), parent INTEGER
);
CREATE TABLE log (k INTEGER, message TEXT);
"""

CRM = """
CREATE TABLE "a ""quoted"" one" (
    id INTEGER PRIMARY KEY, "it's" VARCHAR NOT NULL, since TIMESTAMP, seen TIMESTAMPTZ, vip BOOLEAN,
    rate DECIMAL(6,3), picture BLOB, level UTINYINT
);
"""

CONFIGURATION = """
sources:
  shop: {adapter: sqlite, url: "sqlite:///shop.db"}
  crm: {adapter: duckdb, url: "duckdb:///crm.duckdb"}
  gone: {adapter: sqlite, url: "sqlite:///nowhere.db"}
  far: {address: "127.0.0.1:1"}
views:
  ugly: &ugly
    sql: |
      -- Orders with the orders they belong to.
      SELECT o."Order №" AS n, c."it's", o.placed, c.rate * 2 AS twice, p.total AS "parent's  total"
      FROM shop."order details" o
      JOIN shop."order details" p ON p."Order №" = o.parent
      JOIN crm."a ""quoted"" one" c ON c.id = o."select"
      WHERE o.placed >= '2024-03-01' AND o.total BETWEEN 1.50 AND 99.99
        AND (c.since > '2024-01-01 12:00:00' OR c.vip OR c."it's" = 'a  b')
  wrong: {<<: *ugly, maintenance: ivma, force: true}
  unforced: {<<: *ugly, maintenance: ivma}
  strong: {<<: *ugly, consistency: strong}
  keyless:
    sql: SELECT l.message FROM shop.log l JOIN crm."a ""quoted"" one" c ON c.id = l.k
    maintenance: strobe
  one: {sql: SELECT l.message FROM shop.log l, maintenance: eca}
  unreachable: {sql: SELECT t.a FROM gone.t t}
  remote: {sql: SELECT t.a FROM far.t t}
  unknown: {sql: SELECT t.a FROM store.t t}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.executescript(SHOP)
    with duckdb.connect(str(tmp_path / "crm.duckdb")) as crm:
        crm.execute(CRM)
    found = tmp_path / "lockstep.yaml"
    found.write_text(CONFIGURATION, encoding="utf-8")
    return found


def check(file: Path, view: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["lab", "check", str(file), "--view", view, *arguments])


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_view_is_complete_and_its_sources_stay_as_they_are(file: Path) -> None:
    before = digests(file.parent)
    done = check(file, "ugly", "--schedules", "42", "--faults")
    assert done.exit_code == 0, done.output
    assert "promised complete, required complete" in done.output
    assert "sweep gives complete consistency for source-local transactions" in done.output
    assert "source crm tells every transaction from the next" in done.output
    assert "schedules that change the view: 42" in done.output
    assert digests(file.parent) == before


@pytest.mark.parametrize("maintenance", ["nested-sweep", "psweep", "t-strobe", "c-tstrobe", "copies"])
def test_every_kind_of_algorithm_keeps_what_it_promises(file: Path, maintenance: str) -> None:
    file.write_text(
        CONFIGURATION.replace("maintenance: ivma, force: true", f"maintenance: {maintenance}"), "utf-8"
    )
    done = check(file, "wrong", "--schedules", "21", "--json")
    facts = json.loads(done.output)
    assert done.exit_code == 0, facts
    assert facts["algorithm"] == maintenance
    assert facts["below_required"] == 0


def test_the_same_seed_gives_the_same_runs(file: Path) -> None:
    def levels(seed: int) -> str:
        facts = json.loads(check(file, "wrong", "--schedules", "42", "--seed", str(seed), "--json").output)
        return f"{facts['levels']} {facts['messages_per_update']}"

    assert levels(1) == levels(1)
    assert levels(1) != levels(2)


def test_ivma_is_shown_by_a_small_counterexample(file: Path, tmp_path: Path) -> None:
    saved = tmp_path / "wrong.txt"
    done = check(file, "wrong", "--schedules", "42", "--scenario", "single", "--save", str(saved))
    assert done.exit_code == 1
    assert "promised none, required convergent" in done.output
    text = saved.read_text(encoding="utf-8")
    assert text in done.output
    transcript = Transcript.parse(text)
    assert transcript.scenario.transactions == 2
    assert sum(len(source.rows) for source in transcript.scenario.sources) <= 2
    assert "level: none, promised: none" in text
    replayed = CliRunner().invoke(app, ["lab", "replay", str(saved)])
    assert replayed.exit_code == 0, replayed.output


def test_below_what_is_declared_is_exit_code_1(file: Path) -> None:
    kept = json.loads(check(file, "strong", "--schedules", "21", "--json").output)
    assert (kept["algorithm"], kept["declared"], kept["promised"]) == ("nested-sweep", "strong", "strong")
    done = check(file, "strong", "--schedules", "63", "--scenario", "global", "--json")
    facts = json.loads(done.output)
    assert (facts["promised"], facts["required"]) == ("weak", "strong")
    assert facts["levels"]["weak"] > 0
    assert done.exit_code == 1


def test_an_algorithm_over_one_source(file: Path) -> None:
    assert check(file, "one", "--schedules", "21").exit_code == 0


@pytest.mark.parametrize(
    ("view", "arguments", "message"),
    [
        ("nix", [], "there is no view 'nix'; views: ugly, wrong"),
        (
            "keyless",
            [],
            "it needs a key of every relation, and shop.log has none; algorithms that can: sweep",
        ),
        ("unforced", [], "it is wrong when updates are concurrent, and has to be forced"),
        ("unreachable", [], "nowhere.db"),
        ("remote", [], "the wrapper of source 'far' at 127.0.0.1:1 does not answer"),
        ("unknown", [], "unknown source 'store'; configured sources: crm, far, gone, shop"),
        ("one", ["--scenario", "global"], "has one source only, and global transactions span several"),
    ],
)
def test_refusals_are_one_line(file: Path, view: str, arguments: list[str], message: str) -> None:
    done = check(file, view, *arguments)
    assert done.exit_code == 1
    (line,) = done.output.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_source_with_an_address_is_described_by_its_wrapper(file: Path) -> None:
    server = build.wrapper_server(load(file), "shop", None)
    address = server.start()
    try:
        text = CONFIGURATION.replace(
            '{adapter: sqlite, url: "sqlite:///shop.db"}', f'{{address: "{address}"}}'
        )
        file.write_text(text, encoding="utf-8")
        done = check(file, "ugly", "--schedules", "7")
    finally:
        server.stop(1.0)
    assert done.exit_code == 0, done.output
