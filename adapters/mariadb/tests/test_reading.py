"""Catalog, fetch and types: what the kit does not know of MariaDB."""

from __future__ import annotations

import struct
from functools import partial

import pyarrow as pa
import pytest

from adapters.conformance.queries import whole
from adapters.mariadb import fetch
from adapters.mariadb.adapter import MariaDBSnapshot
from adapters.mariadb.tests.conftest import Source, entries, rows
from adapters.mariadb.wire import row_packets
from algebra.errors import ConfigurationError, DataError, SourceUnavailableError
from algebra.local_view import Keys


def test_generated_and_invisible_columns_are_shown_like_others(source: Source, capture: str) -> None:
    source.run(
        "CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(20), size INT AS (LENGTH(name)) VIRTUAL, "
        "twice INT AS (LENGTH(name) * 2) STORED, hidden INT INVISIBLE DEFAULT 7)"
    )
    adapter, start = source.prepared(capture, "item")
    source.run(
        "INSERT INTO item (id, name) VALUES (1, 'abc'), (2, NULL)", "UPDATE item SET name = 'x' WHERE id = 1"
    )
    shown = rows(adapter, "item")
    assert shown == [(1, "x", 1, 2, 7), (2, None, None, None, 7)]
    total: dict[object, int] = {}
    for entry in entries(adapter, start):
        for row, count in entry.deltas["item"].to_dict().items():
            total[row] = total.get(row, 0) + count
    assert {row for row, count in total.items() if count} == set(shown)


def test_zero_dates_are_an_error_that_names_the_column(source: Source, capture: str) -> None:
    source.run("CREATE TABLE item (id INT PRIMARY KEY, day DATE, moment DATETIME, stamp TIMESTAMP NULL)")
    adapter, start = source.prepared(capture, "item")
    for column, zero in (("day", "0000-00-00"), ("moment", "0000-00-00"), ("day", "2024-02-00")):
        source.run("SET sql_mode = ''", f"REPLACE INTO item (id, {column}) VALUES (1, '{zero}')")
        with pytest.raises(DataError, match=rf"shop\.item\.{column}: "):
            rows(adapter, "item")
    with pytest.raises(DataError, match=r"shop\.item\.\w+: "):
        entries(adapter, start)


def test_a_number_in_a_boolean_is_an_error_that_says_what_to_do(source: Source, capture: str) -> None:
    source.run("CREATE TABLE item (id INT PRIMARY KEY, flag BOOLEAN)")
    adapter, start = source.prepared(capture, "item")
    source.run("INSERT INTO item VALUES (1, 2)")
    for attempt in (lambda: rows(adapter, "item"), lambda: entries(adapter, start)):
        with pytest.raises(DataError, match=r"item\.flag: 2 is no boolean .*booleans: false") as caught:
            attempt()
        assert caught.value.message == "shop.item.flag has a value that is no bool", "others read no value"
    assert rows(source.adapter(capture, booleans=False), "item") == [(1, 2)]


def test_times_outside_of_a_day_are_an_error(source: Source, capture: str) -> None:
    source.run("CREATE TABLE item (id INT PRIMARY KEY, at TIME)")
    adapter, start = source.prepared(capture, "item")
    source.run("INSERT INTO item VALUES (1, '-01:00:00')")
    for attempt in (lambda: rows(adapter, "item"), lambda: entries(adapter, start)):
        with pytest.raises(DataError, match=r"shop\.item\.at: "):
            attempt()


@pytest.mark.parametrize(
    ("declared", "problem"),
    [("POINT", "type point"), ("DECIMAL(65, 30)", r"type decimal\(65,30\)")],
)
def test_types_that_cannot_be_shown_can_be_excluded(source: Source, declared: str, problem: str) -> None:
    source.run(
        f"CREATE TABLE item (id INT PRIMARY KEY, odd {declared} NULL)", "INSERT INTO item (id) VALUES (1)"
    )
    with pytest.raises(ConfigurationError, match=rf"shop\.item\.odd has {problem}.*`exclude` as item\.odd"):
        source.adapter().catalog()
    assert rows(source.adapter(exclude=["item.odd"]), "item") == [(1,)]


def test_engines_without_snapshots_are_refused(source: Source) -> None:
    source.run("CREATE TABLE item (id INT PRIMARY KEY) ENGINE = MyISAM")
    with pytest.raises(ConfigurationError, match="engine MyISAM, which has no snapshots"):
        source.adapter().catalog()


@pytest.mark.parametrize(
    "declared", ["VARCHAR(40)", "VARCHAR(40) CHARACTER SET latin1", "VARBINARY(40)", "BIGINT"]
)
def test_keys_are_looked_up_by_an_index(source: Source, declared: str) -> None:
    source.run(
        f"CREATE TABLE item (id INT PRIMARY KEY, code {declared}, KEY (code))",
        "INSERT INTO item SELECT seq, seq FROM seq_1_to_3000",
        "ANALYZE TABLE item",
    )
    adapter = source.adapter()
    query = whole(adapter.catalog(), "item")
    kind = query.columns[1].type
    values = [17, 18] if kind == pa.int64() else [b"17", b"18"] if kind == pa.binary() else ["17", "18"]
    keys = Keys(("o1",), pa.table({"o1": pa.array(values, kind)}))
    with adapter.snapshot() as snapshot:
        assert isinstance(snapshot, MariaDBSnapshot)
        select = fetch.select_of(snapshot.tables, query, keys)
        packets = list(snapshot.connection.packets("EXPLAIN " + select.sql, select.parameters))
        plan = [value for packet in packets for value in packet.columns(10)[5].to_pylist()]
        assert snapshot.fetch(query, keys).read_all().num_rows == 2
    assert b"code" in plan


def test_text_compares_by_its_bytes_with_and_without_an_index(source: Source) -> None:
    words = ["a", "A", "á", "a ", "b", "ß", "ss"]
    values = ", ".join(f"({i}, '{word}', '{word}')" for i, word in enumerate(words))
    source.run(
        "CREATE TABLE item (id INT PRIMARY KEY, bare VARCHAR(9), found VARCHAR(9), KEY (found)) "
        "COLLATE utf8mb4_general_ci",
        f"INSERT INTO item VALUES {values}",
    )
    adapter = source.adapter()
    for i, word in enumerate(words):
        for column in ("bare", "found"):
            assert [row[0] for row in rows(adapter, "item", {column: [word]})] == [i]
    assert len(rows(adapter, "item", {"found": words, "bare": words})) == len(words)


def test_a_statement_that_takes_too_long_is_given_up(source: Source) -> None:
    source.run(
        "CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(9), KEY (name))",
        "INSERT INTO item SELECT seq, 'x' FROM seq_1_to_200000",
    )
    adapter = source.adapter(statement_timeout=0.001)
    with pytest.raises(SourceUnavailableError, match="statement_timeout"):
        rows(adapter, "item", {"name": ["x"]})
    assert len(rows(source.adapter(), "item", {"name": ["x"]})) == 200_000


def test_rows_larger_than_a_packet_come_whole(source: Source, capture: str) -> None:
    source.run("CREATE TABLE item (id INT PRIMARY KEY, data LONGBLOB)")
    adapter, start = source.prepared(capture, "item")
    size = (1 << 24) + 10
    source.run(
        "INSERT INTO item VALUES (1, 'before')",
        f"INSERT INTO item VALUES (2, REPEAT('0123456789', {size // 10}))",
        "INSERT INTO item VALUES (3, 'after')",
    )
    shown = {row[0]: row[1] for row in rows(adapter, "item")}
    assert shown == {1: b"before", 2: b"0123456789" * (size // 10), 3: b"after"}
    logged = {row[0]: row[1] for t in entries(adapter, start) for row in t.deltas["item"].to_dict()}
    assert logged == shown


def _never(payload: bytes) -> None:
    raise AssertionError(payload)


def test_packets_are_taken_apart_wherever_the_network_cuts_them() -> None:
    payloads = [b"\x01a\xfb", b"\x00\x02bc", b"\xfc\x00\x01" + b"x" * 256 + b"\x01y"]
    stream = b"".join(struct.pack("<I", len(p))[:3] + b"\1" + p for p in [*payloads, b"\xfe\0\0\2\0"])
    for step in (1, 2, 3, 7, 100, 1000):
        pieces = [stream[i : i + step] for i in range(0, len(stream), step)]
        found = [r.columns(2) for r in row_packets(partial(next, iter(pieces)), _never)]
        assert [v for columns in found for v in columns[0].to_pylist()] == [b"a", b"", b"x" * 256]
        assert [v for columns in found for v in columns[1].to_pylist()] == [None, b"bc", b"y"]


def test_wrong_urls_and_options_are_told_without_the_password(source: Source) -> None:
    from adapters.mariadb.options import parse
    from adapters.spi import SourceConfig

    def problem(url: str, capture: str | None = None, **options: object) -> str:
        with pytest.raises(ConfigurationError) as caught:
            parse(SourceConfig("shop", "mariadb", url, None, capture, options))
        return str(caught.value)

    good = "mariadb://me:hidden@host:3307/shop"
    parsed = parse(SourceConfig("shop", "mariadb", good.replace("hidden", "p%40ss%2Fword"))).server
    assert (parsed.host, parsed.port, parsed.user, parsed.database) == ("host", 3307, "me", "shop")
    assert parsed.password == "p@ss/word"
    assert "p@ss" not in repr(parsed)
    given = SourceConfig("shop", "mariadb", "mariadb://me@host/shop", options={"password": "p%/@"})
    assert parse(given).server.password == "p%/@"
    for url in ("mysql://me:hidden@host/shop", "mariadb://me:hidden@host", "mariadb://me:hidden@host:x/shop"):
        assert "hidden" not in problem(url)
    assert "'diff'" in problem(good, "diff")
    assert "'speed'" in problem(good, speed=1)
    assert "exclude" in problem(good, exclude="item.odd")
    assert "trim_rows" in problem(good, trim_rows=-1)


def test_a_wrong_password_is_told_without_it(source: Source) -> None:
    with pytest.raises(ConfigurationError, match="Access denied") as caught:
        source.adapter(user="nobody", password="hidden").catalog()
    assert "hidden" not in str(caught.value)
