"""Malformed rows: named by file and line, refused or left out by choice."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from adapters.files.adapter import FilesAdapter
from adapters.files.folder import Folder
from adapters.files.tests.conftest import MakeAdapter
from adapters.files.tests.owner import replace_file
from adapters.files.tests.support import changes, rows, settle, start
from adapters.files.tests.workbook import workbook
from algebra.errors import DataError

CSV = {"columns": {"id": "BIGINT", "name": "VARCHAR", "day": "DATE"}, "path": "item.csv"}
GOOD = b"id,name,day\n1,a,2024-01-01\n"
LONG_AGO = b'2,"two\nlines",2024-01-02\n'

BAD_CSV = {
    "column-missing": (b"3,c\n", "3 columns expected, 2 found"),
    "column-more": (b"3,c,2024-01-03,x\n", "3 columns expected, 4 found"),
    "integer": (b"three,c,2024-01-03\n", "column 'id': 'three' is not int64"),
    "fraction": (b"3.5,c,2024-01-03\n", "column 'id': '3.5' is not int64"),
    "integer-too-large": (b"9223372036854775808,c,\n", "column 'id': '9223372036854775808' is not int64"),
    "date": (b"3,c,2024-02-30\n", "column 'day': '2024-02-30' is not date32[day]"),
    "encoding": (b"3,\xff\xfe,2024-01-03\n", "column 'name': bytes that are not utf-8"),
    "stray-quote": (b'3,5" disk,2024-01-03\n', "a quote inside a value that is not quoted"),
    "text-after-quote": (b'3,"c"d,2024-01-03\n', "text after the closing quote of a value"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD_CSV.values(), ids=BAD_CSV)
def test_a_malformed_csv_row_is_refused_with_its_line(
    make: MakeAdapter, folder: Path, bad: bytes, reason: str
) -> None:
    adapter = _csv(make)
    (folder / "item.csv").write_bytes(GOOD)
    position = start(adapter, "item")
    replace_file(folder / "item.csv", GOOD + LONG_AGO + bad + b"4,d,\n")
    with pytest.raises(DataError) as refused, adapter.snapshot():
        pass
    # The quoted value before it has two lines.
    assert str(refused.value).startswith(f"source 'shop': item.csv:5: {reason}; ")
    replace_file(folder / "item.csv", GOOD + LONG_AGO + b"4,d,\n")
    [entry] = changes(adapter, position)
    assert len(entry["item"]) == 2


@pytest.mark.parametrize(("bad", "reason"), BAD_CSV.values(), ids=BAD_CSV)
def test_a_malformed_csv_row_is_left_out_and_told(
    make: MakeAdapter, folder: Path, bad: bytes, reason: str, tmp_path: Path
) -> None:
    (folder / "item.csv").write_bytes(GOOD + LONG_AGO + bad + b"4,d,\n" + bad)
    adapter = _csv(make, malformed="quarantine")
    start(adapter, "item")
    assert sorted(row[0] for row in rows(adapter, "item")) == [1, 2, 4]
    told = _quarantine(tmp_path)
    assert [(row["file"], row["line"], row["reason"]) for row in told] == [
        ("item.csv", 5, reason),
        ("item.csv", 7, reason),
    ]
    assert told[0]["raw"] == bad.decode("utf-8", "backslashreplace").rstrip("\n")


def test_a_refused_file_is_not_read_again_while_it_stays_so(
    make: MakeAdapter, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "item.csv"
    path.write_bytes(GOOD)
    adapter = _csv(make)
    position = start(adapter, "item")
    replace_file(path, GOOD + b"x,b,\n")
    settle(path)
    opened = []
    original = Folder.open

    def count(self: Folder, file: str) -> BinaryIO:
        opened.append(file)
        return original(self, file)

    monkeypatch.setattr(Folder, "open", count)
    for _ in range(3):
        with pytest.raises(DataError, match=r"item\.csv:3: "), adapter.snapshot():
            pass
    assert len(opened) == 2, "once for its header, once for its rows"
    replace_file(path, GOOD + b"2,b,\n")
    assert changes(adapter, position) == [{"item": {(2, "b", None): 1}}]


def test_an_unclosed_quote_is_named_where_it_opens(make: MakeAdapter, folder: Path, tmp_path: Path) -> None:
    content = GOOD + b'2,"open,2024-01-02\n3,c,\n4,d,\n'
    (folder / "item.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"item\.csv:3: a quoted value that is never closed"):
        _csv(make).prepare(["item"])
    assert not list(tmp_path.glob("*shadow*")), "a refused prepare left something behind"
    adapter = _csv(make, malformed="quarantine")
    start(adapter, "item")
    # What follows may be the rest of the value: none of it is taken.
    assert [row[0] for row in rows(adapter, "item")] == [1]
    assert [row["line"] for row in _quarantine(tmp_path)] == [3]


def test_quarantine_follows_the_files(
    make: MakeAdapter, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows leave it when they are mended, the file goes with the last; other relations keep theirs."""
    (folder / "item.csv").write_bytes(b"id\n1\nx\n")
    (folder / "part.csv").write_bytes(b"id\ny\n2\n")
    settings = {name: {"columns": {"id": "BIGINT"}} for name in ("item", "part")}
    adapter = make(settings, malformed="quarantine")
    with caplog.at_level(logging.WARNING):
        position = start(adapter, "item", "part")
    assert "2 malformed rows" in caplog.text
    assert "item.csv:3" in caplog.text
    assert [(r["relation"], r["line"]) for r in _quarantine(tmp_path)] == [("item", 3), ("part", 2)]
    replace_file(folder / "item.csv", b"id\n1\n3\n")
    assert changes(adapter, position) == [{"item": {(3,): 1}}]
    assert [(r["relation"], r["line"]) for r in _quarantine(tmp_path)] == [("part", 2)]
    replace_file(folder / "part.csv", b"id\n2\n")
    assert changes(adapter, position) == [{"item": {(3,): 1}}]
    assert not list(tmp_path.glob("*quarantine*"))


def test_a_file_of_nothing_but_malformed_rows_is_refused_beyond_the_limit(
    make: MakeAdapter, folder: Path
) -> None:
    (folder / "item.csv").write_bytes(b"id\n" + b"canary\n" * 21)
    settings = {"item": {"columns": {"id": "BIGINT"}}}
    adapter = make(settings, malformed="quarantine", quarantine_limit=20)
    with pytest.raises(DataError, match="more than 20 malformed rows") as caught:
        adapter.prepare(["item"])
    assert "canary" in str(caught.value)
    assert "canary" not in caught.value.message


def test_removing_capture_removes_the_quarantine(make: MakeAdapter, folder: Path, tmp_path: Path) -> None:
    (folder / "item.csv").write_bytes(b"id\n1\nx\n")
    adapter = make({"item": {"columns": {"id": "BIGINT"}}}, malformed="quarantine")
    before = set(tmp_path.iterdir())
    adapter.prepare(["item"])
    planned = adapter.remove(dry_run=True)
    assert len(planned) == 2
    assert _quarantine(tmp_path)
    assert adapter.remove() == planned
    assert set(tmp_path.iterdir()) == before


BAD_JSON = {
    "no-json": (b'{"id": 3', "not valid JSON"),
    "two-objects": (b'{"id": 3} {"id": 4}', "not valid JSON"),
    "list": (b"[1, 2]", "a JSON array, not an object"),
    "null": (b"null", "a JSON null, not an object"),
    "text-for-number": (b'{"id": "3"}', "column 'id': a JSON string, not a number"),
    "fraction": (b'{"id": 3.5}', "3.5 is not int64"),
    "number-for-text": (b'{"id": 3, "name": 4}', "column 'name': a JSON number, not a string"),
    "date": (b'{"id": 3, "day": "2024-02-30"}', "column 'day': "),
    "twice": (b'{"id": 3, "id": 4}', "JSON parse error: Column(/id) was specified twice"),
    "encoding": (b'{"id": 3, "name": "\xff"}', "bytes that are not utf-8"),
    "surrogate": (b'{"id": 3, "name": "\\ud800"}', "not valid JSON"),
    "unknown-key": (b'{"id": 3, "more": 4}', "key 'more' is no column of the relation"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD_JSON.values(), ids=BAD_JSON)
def test_a_malformed_json_line_is_left_out_and_told(
    make: MakeAdapter, folder: Path, tmp_path: Path, bad: bytes, reason: str
) -> None:
    (folder / "item.jsonl").write_bytes(b'{"id": 1}\n\n' + bad + b'\n{"name": "x", "id": 4}\n')
    settings = {"item": {"columns": {"id": "BIGINT", "name": "VARCHAR", "day": "DATE"}}}
    adapter = make(settings, malformed="quarantine")
    start(adapter, "item")
    assert sorted(rows(adapter, "item"), key=str) == [(1, None, None), (4, "x", None)]
    [told] = _quarantine(tmp_path)
    assert (told["file"], told["line"]) == ("item.jsonl", 3)
    assert told["reason"].startswith(reason)


def test_a_malformed_excel_row_is_named_by_sheet_and_row(make: MakeAdapter, folder: Path) -> None:
    sheet: list[Any] = [["id", "name"], [1, "a"], [None, None], [2.5, "b"], [3, "c"]]
    (folder / "item.xlsx").write_bytes(workbook(Stock=sheet, Other=[["x"]]))
    settings: dict[str, Any] = {"item": {"columns": {"id": "BIGINT"}}}
    with pytest.raises(DataError, match=r"item\.xlsx\[Stock\]:4: column 'id': 2\.5 is not int64"):
        make(settings).prepare(["item"])
    adapter = make(settings, malformed="quarantine")
    start(adapter, "item")
    assert sorted(rows(adapter, "item")) == [(1, "a"), (3, "c")]


@pytest.mark.parametrize("text", ["1e999", "-1e999"])
def test_a_number_too_large_for_its_type_is_no_infinity(make: MakeAdapter, folder: Path, text: str) -> None:
    (folder / "item.csv").write_text(f"x\n1.5\ninf\n{text}\n")
    settings = {"item": {"columns": {"x": "DOUBLE"}}}
    with pytest.raises(DataError, match=rf"item\.csv:4: column 'x': '{text}' does not fit double") as caught:
        make(settings).prepare(["item"])
    assert "item.csv:4 is malformed" in caught.value.message
    assert text not in caught.value.message, "who reads at a distance is told no value"


def test_a_key_without_value_is_malformed_and_one_that_occurs_twice_is_refused(
    make: MakeAdapter, folder: Path
) -> None:
    settings = {"item": {"columns": {"id": "BIGINT"}, "key": "id"}}
    (folder / "item.csv").write_bytes(b"id,name\n1,a\n,b\n")
    with pytest.raises(DataError, match=r"item\.csv:3: column 'id' is of the key and has no value"):
        make(settings).prepare(["item"])
    (folder / "item.csv").write_bytes(b"id,name\n1,a\n1,b\n")
    with pytest.raises(DataError, match="more than one row with id = 1"):
        make(settings).prepare(["item"])
    (folder / "item.csv").write_bytes(b"id,name\n1,a\n")
    adapter = make(settings)
    position = start(adapter, "item")
    replace_file(folder / "item.csv", b"id,name\n1,a\n1,b\n")
    with pytest.raises(DataError, match="more than one row with id = 1"), adapter.snapshot():
        pass
    replace_file(folder / "item.csv", b"id,name\n1,b\n")
    assert changes(adapter, position) == [{"item": {(1, "a"): -1, (1, "b"): 1}}]


def test_many_malformed_rows_among_many_good_ones_are_all_found(
    make: MakeAdapter, folder: Path, tmp_path: Path
) -> None:
    lines = [b"x%d\n" % i if i % 997 == 0 else b"%d\n" % i for i in range(2, 50_000)]
    (folder / "item.csv").write_bytes(b"id\n" + b"".join(lines))
    adapter = make({"item": {"columns": {"id": "BIGINT"}}}, malformed="quarantine")
    start(adapter, "item")
    assert sum(rows(adapter, "item").values()) == len(lines) - 50
    assert [row["line"] for row in _quarantine(tmp_path)] == [i for i in range(2, 50_000) if i % 997 == 0]


def _csv(make: MakeAdapter, **options: Any) -> FilesAdapter:
    return make({"item": CSV}, **options)


def _quarantine(directory: Path) -> list[dict[str, Any]]:
    [file] = directory.glob("*.quarantine.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]
