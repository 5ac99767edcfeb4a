"""Whatever comes in, the answer is a value or a LockstepError: never another exception, a hang or a crash.

The decoders of the wire, the SQL front end, the configuration and the token file. Each `@example`, and each
file of the corpus (`fuzzing.py`), was found by a longer run, or is an attack that has a name.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from algebra.arrow_ipc import from_ipc, to_ipc
from algebra.decompose import decompose
from algebra.errors import (
    ConfigurationError,
    DataError,
    LimitExceededError,
    LockstepError,
    RefusedError,
    ViewDefinitionError,
)
from algebra.expressions import MAX_DEPTH
from algebra.schema import Catalog, Column, RelationSchema
from algebra.view import LONGEST_SQL
from cli import yaml_text
from integration_tests import decoders, fuzzing
from integration_tests.decoders import CATALOGS, DECODERS, INT, LOCAL, MESSAGES, SAMPLES, TOKEN, bytes_of
from integration_tests.fuzzing import FUZZ, corpus_files, tried
from protos.convert import (
    MAX_OCCURRENCES,
    expression_from_proto,
    local_view_from_proto,
    local_view_to_proto,
)
from protos.incoming import checked_touched
from protos.lockstep.v1 import types_pb2, wrapper_pb2

pytestmark = pytest.mark.fuzz


def damaged(data: bytes, edits: list[tuple[int, int]], cut: int) -> bytes:
    """The bytes with some of them replaced, and the end cut off."""
    made = bytearray(data)
    for at, value in edits:
        made[at % len(made)] = value
    return bytes(made[: max(len(made) - cut, 0)])


EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4)
CUTS = st.one_of(st.just(0), st.integers(0, 400))

# Arrow


@FUZZ
@given(st.sampled_from(SAMPLES), EDITS, CUTS)
@example(SAMPLES[0], [(0, 0)], 0)
@example(SAMPLES[0], [], 8)
@example(SAMPLES[0], [], 10**6)
def test_damaged_arrow_is_refused_or_valid(table: pa.Table, edits: list[tuple[int, int]], cut: int) -> None:
    tried("arrow", decoders.arrow, damaged(to_ipc(table), edits, cut))


@FUZZ
@given(st.binary(max_size=300))
@example(b"")
@example(struct.pack("<iI", -1, 0))
@example(struct.pack("<iI", -1, 0x7FFFFFFF))
@example(b"ARROW1\0\0")
def test_bytes_that_are_no_arrow_are_refused(data: bytes) -> None:
    tried("arrow", decoders.arrow, data)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_arrow_is_refused_before_it_is_unpacked(codec: str) -> None:
    sink = pa.BufferOutputStream()
    bomb = pa.table({"x": pa.array([0] * 1_000_000, INT)})
    with pa.ipc.new_stream(sink, bomb.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write(bomb)
    with pytest.raises(DataError, match="compressed"):
        from_ipc(bytes(sink.getvalue()))


def test_rows_without_bytes_are_refused() -> None:
    with pytest.raises(DataError, match="cannot hold 1000000000 rows"):
        from_ipc(to_ipc(pa.table({"n": pa.nulls(10**9)})))


def test_text_that_is_not_utf8_is_refused() -> None:
    payload = to_ipc(pa.table({"s": ["abcdefgh"]})).replace(b"abcdefgh", b"\xff" * 8)
    with pytest.raises(DataError):
        from_ipc(payload)


# Protobuf


@FUZZ
@given(st.sampled_from(sorted(MESSAGES)), EDITS, CUTS)
def test_damaged_messages_are_refused_or_mean_something(
    kind: str, edits: list[tuple[int, int]], cut: int
) -> None:
    sample, _ = MESSAGES[kind]
    tried(kind, decoders.message(kind), damaged(sample.SerializeToString(), edits, cut))


def nested(depth: int) -> types_pb2.Expression:
    made = types_pb2.Expression(column=types_pb2.ColumnRef(occurrence="r", column="a"))
    for _ in range(depth):
        call = types_pb2.Call(operator=types_pb2.OPERATOR_NOT, arguments=[made])
        made = types_pb2.Expression(call=call)
    return made


def test_predicates_are_bounded_in_depth() -> None:
    expression_from_proto(nested(MAX_DEPTH))
    with pytest.raises(RefusedError, match="nested deeper"):
        expression_from_proto(nested(MAX_DEPTH + 1))


def test_long_chains_and_deep_nests_reach_the_wrapper_or_stay_at_home() -> None:
    """Found by fuzzing: a chain of 60 ORs was nested 60 deep, and protobuf reads 100 levels of messages."""
    chain = " OR ".join(f"a = {number}" for number in range(300))
    deep = "NOT (a = 1 AND " * 18 + "b = 'x'" + ")" * 18
    for condition, pushed in ((chain, 1), (deep, 0)):
        (local,) = decompose("v", f"SELECT a, b FROM s.r WHERE {condition}", CATALOGS).local_views
        assert len(local.predicates) == pushed
        request = wrapper_pb2.LoadLocalViewRequest(local_views=[local_view_to_proto(local)])
        parsed = wrapper_pb2.LoadLocalViewRequest.FromString(request.SerializeToString())
        assert local_view_from_proto(parsed.local_views[0]) == local


def test_local_views_are_bounded_in_width() -> None:
    message = local_view_to_proto(LOCAL)
    for number in range(MAX_OCCURRENCES + 1):
        message.occurrences.add(alias=f"r{number}", relation="r")
    with pytest.raises(RefusedError, match="joins more than 64"):
        local_view_from_proto(message)


@pytest.mark.parametrize("touched", [[2], [-1], [1, 0], [0, 0], [0, 2**31 - 1]])
def test_transactions_that_an_update_does_not_have_are_refused(touched: list[int]) -> None:
    with pytest.raises(LockstepError):
        checked_touched(wrapper_pb2.LocalViewDelta(local_view="v", touched=touched), 2)


# SQL

SQL_WORDS = """
    SELECT FROM WHERE AND OR NOT ( ) , . * + - / = < <> IN BETWEEN LIKE IS NULL CASE WHEN THEN END AS JOIN
    ON USING CROSS LEFT s.r t.u s.q r q u a b c d e r.a u.a 1 2.5 1e400 'x' DATE '2020-01-01' CAST :: INT ||
    % [ ] { } : ; " ` -- /* */ $1 ? @x # INTERVAL EXISTS UNION WITH VALUES LATERAL UNNEST PIVOT GROUP BY
    LIMIT OVER DISTINCT TABLESAMPLE NATURAL ASOF FULL SEMI COUNT(*) x'00' é 99999999999999999999 -> COLLATE
    EXCLUDE
"""
WORDS = st.sampled_from(SQL_WORDS.split())
TEXTS = st.one_of(
    st.lists(WORDS, max_size=25).map(" ".join),
    st.lists(WORDS, max_size=12).map(lambda words: "SELECT a FROM s.r WHERE " + " ".join(words)),
    st.lists(WORDS, max_size=8).map(lambda words: "SELECT " + " ".join(words) + " AS z FROM s.r"),
    st.text(max_size=60),
)


@FUZZ
@given(TEXTS, st.booleans(), st.booleans())
@example("SELECT a FROM s.r WHERE " + "(" * 3000 + "a" + ")" * 3000, False, False)
@example("SELECT a FROM s.r WHERE " + "NOT " * 5000 + "a", False, False)
@example("SELECT " + "CASE WHEN a THEN " * 500 + "a" + " END" * 500 + " AS z FROM s.r", False, False)
@example("SELECT a FROM s.r WHERE " + " AND ".join(["a = 1"] * 3000), False, False)
@example("SELECT a FROM s.r WHERE b = '\ud800'", False, False)
@example("SELECT a FROM s.r WHERE b = '\x00'", True, True)
@example('SELECT a FROM s."r"; DROP TABLE r --"', False, False)
@example("RENAME a, b FROM s.r", False, False)
def test_any_text_is_a_view_or_refused(sql: str, keys: bool, per_relation: bool) -> None:
    tried("view-sql", decoders.view_sql(keys, per_relation), bytes_of(sql))


@FUZZ
@given(TEXTS)
@example("SELECT * FROM " + "(" * 2000 + "SELECT 1" + ")" * 2000)
@example("SELECT '\ud800'")
@example("SELECT * FROM r, read_csv('/etc/passwd')")
def test_any_text_is_a_query_or_refused(sql: str) -> None:
    tried("query-sql", decoders.query_sql, bytes_of(sql))


def test_texts_are_bounded_in_length() -> None:
    with pytest.raises(ViewDefinitionError, match="at most"):
        decompose("v", "SELECT a FROM s.r --" + "x" * LONGEST_SQL, CATALOGS)


def test_texts_are_bounded_in_the_work_that_they_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these levels doubles what the parser tries."""
    monkeypatch.setattr("algebra.view.PARSING_SECONDS", 0.5)
    with pytest.raises(LimitExceededError, match="takes too long to understand"):
        decompose("v", "SELECT " + "date(" * 60 + "a" + ")" * 60 + " AS d FROM s.r", CATALOGS)


def test_hostile_identifiers_are_names_and_nothing_more() -> None:
    hostile = 'a"; DROP TABLE r; --'
    catalog = Catalog("s", {hostile: RelationSchema(hostile, (Column(hostile, INT),))})
    quoted = '"' + hostile.replace('"', '""') + '"'
    found = decompose("v", f"SELECT {quoted} AS x FROM s.{quoted}", {"s": catalog})
    assert found.local_views[0].occurrences[0].relation == hostile
    assert local_view_from_proto(local_view_to_proto(found.local_views[0])) == found.local_views[0]


# YAML

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BOMB, "its aliases stand for more than"),
        ("a: &a {b: *a}", "refers to itself"),
        ("a: &a [*a]", "refers to itself"),
        ("[" * 1500, "is nested deeper than"),
        ("x: " + "{a: " * 60 + "1" + "}" * 60, "is nested deeper than"),
        ("x: " + "y" * (yaml_text.LARGEST_TEXT + 1), "is larger than"),
        ("x: 2020-13-45", "a value that its YAML type does not allow"),
        ("x: !!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("x: !!int " + "9" * 5000, "a value that its YAML type does not allow"),
    ],
)
def test_yaml_that_stands_for_too_much_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as refused:
        yaml_text.parse(text, "f.yaml")
    assert str(refused.value).startswith("f.yaml")


def test_anchors_that_stand_for_little_are_welcome() -> None:
    assert yaml_text.parse("a: &x {k: 1}\nb: *x\nc: {<<: *x, l: 2}", "f")["c"] == {"k": 1, "l": 2}


YAML_WORDS = """
    mediator: sources: views: listen: engine: duckdb url: adapter: sqlite tls: tokens: connect: token: ${X}
    certificates: mediators: relations: max_rows: options: sql: {a:1} [1,2] &a *a <<: !!str !!binary !!set
    !!timestamp !!omap - ? | > ' " # % @ ` ~ null true 1 -1 1.5e9 .nan .inf 0x1F 2020-01-01 10:20:30 --- ...
"""
YAML_PARTS = st.sampled_from(YAML_WORDS.split())


@FUZZ
@given(
    st.one_of(
        st.lists(st.tuples(st.integers(0, 4), st.lists(YAML_PARTS, max_size=4)), max_size=12).map(
            lambda lines: "\n".join(" " * depth + " ".join(words) for depth, words in lines)
        ),
        st.text(max_size=120),
    )
)
@example("!!omap [1]")
@example("sources: {s: {adapter: 1, url: {}, connect: [], options: {password: 1}}}")
@example("sources: [1]")
@example("? {a: 1}\n: 2")
@example("1: 2")
@example("mediator: {tls: {certificate: 1}, certificates: {a: b}}")
@example("x: !!timestamp abc")
@example("x: !!float abc")
def test_any_text_is_a_configuration_or_refused(text: str) -> None:
    tried("configuration", decoders.configuration, bytes_of(text))


# Token files

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner)),
    max_leaves=8,
)


@FUZZ
@given(EDITS, CUTS)
def test_damaged_token_files_are_refused_or_fine(edits: list[tuple[int, int]], cut: int) -> None:
    tried(
        "token-file",
        decoders.token_file,
        damaged(json.dumps({"format": 1, "tokens": [TOKEN]}).encode(), edits, cut),
    )


@FUZZ
@given(st.sampled_from(sorted(TOKEN)), JSON)
def test_any_value_in_a_token_file_is_refused_or_fine(field: str, value: object) -> None:
    changed = {"format": 1, "tokens": [{**TOKEN, field: value}]}
    tried("token-file", decoders.token_file, json.dumps(changed).encode())


# The corpus


@pytest.mark.parametrize("path", corpus_files(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_or_thought_of_before_is_refused_or_fine(path: Path) -> None:
    for decode in DECODERS[path.parent.name]:
        tried(path.parent.name, decode, path.read_bytes())


def test_the_corpus_is_small_and_has_something_for_every_decoder() -> None:
    files = corpus_files()
    assert {path.parent.name for path in files} == DECODERS.keys()
    assert len(files) < 150
    assert sum(path.stat().st_size for path in files) < 500_000


def test_what_a_long_run_finds_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same failure, found with less, replaces what was kept of it; another one is kept beside it."""

    def broken(data: bytes) -> None:
        if b"x" in data:
            raise ValueError(data)
        if b"y" in data:
            raise KeyError(data)

    monkeypatch.setattr(fuzzing, "CORPUS", tmp_path)
    monkeypatch.setattr(fuzzing, "_MANY", 1)
    tried("arrow", broken, b"fine")
    for data, problem in {b"axa": ValueError, b"x": ValueError, b"y": KeyError}.items():
        with pytest.raises(problem) as found:
            tried("arrow", broken, data)
        assert "kept as" in found.value.__notes__[0]
    assert sorted(path.read_bytes() for path in (tmp_path / "arrow").iterdir()) == [b"x", b"y"]
