"""Writes the first files of the fuzz corpus: attacks that have a name, and damage of every kind.

`python -m integration_tests.corpus_seeds`. The files in the repository are what counts: Arrow's own bytes may
differ between its versions, and what was found by long runs is not made here.
"""

from __future__ import annotations

import json
import struct

import pyarrow as pa

from algebra.arrow_ipc import to_ipc
from integration_tests.decoders import CATALOGS, INT, LOCAL, MESSAGES, ROWS, SAMPLES, TOKEN, bytes_of
from integration_tests.fuzzing import CORPUS
from protos.lockstep.v1 import types_pb2, wrapper_pb2

Seeds = dict[str, bytes]


def _compressed(codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    bomb = pa.table({"x": pa.array([0] * 100_000, INT)})
    with pa.ipc.new_stream(sink, bomb.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write(bomb)
    return bytes(sink.getvalue())


def _nested_type(depth: int) -> pa.DataType:
    made: pa.DataType = INT
    for _ in range(depth):
        made = pa.list_(made)
    return made


def _arrow() -> Seeds:
    plain, dictionary = to_ipc(SAMPLES[0]), to_ipc(SAMPLES[1])
    offsets = bytearray(to_ipc(pa.table({"s": ["abcdefgh", "ijkl"]})))
    at = bytes(offsets).index(struct.pack("<iii", 0, 8, 12))
    return {
        "empty": b"",
        "good": plain,
        "cut-in-the-schema": plain[:40],
        "cut-in-the-rows": plain[:-60],
        "twice": plain + plain,
        "file-format": b"ARROW1\0\0" + plain,
        "length-beyond-the-end": struct.pack("<iI", -1, 0x7FFFFFFF),
        "length-negative": struct.pack("<ii", -1, -8),
        "offsets-go-back": bytes(offsets[:at] + struct.pack("<iii", 0, 12, 4) + offsets[at + 12 :]),
        "offsets-negative": bytes(offsets[:at] + struct.pack("<iii", -8, 8, 12) + offsets[at + 12 :]),
        "offsets-beyond-the-end": bytes(
            offsets[:at] + struct.pack("<iii", 0, 8, 1 << 30) + offsets[at + 12 :]
        ),
        "text-not-utf8": bytes(offsets).replace(b"abcdefgh", b"\xff" * 8),
        "dictionary-index-beyond-the-end": dictionary.replace(
            struct.pack("<iii", 0, 1, 0), struct.pack("<iii", 0, 99, 0)
        ),
        "rows-without-bytes": to_ipc(pa.table({"n": pa.nulls(10**9)})),
        "compressed-lz4": _compressed("lz4"),
        "compressed-zstd": _compressed("zstd"),
        "types-nested-deep": to_ipc(pa.table({"l": pa.array([], _nested_type(60))})),
        "many-columns": to_ipc(pa.table({f"c{number}": pa.array([], pa.null()) for number in range(300)})),
        "same-name-twice": to_ipc(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])),
    }


def _expression(depth: int) -> bytes:
    """NOT of NOT of …, put together as bytes: protobuf makes no message that it would refuse to read."""
    arguments = types_pb2.Call.DESCRIPTOR.fields_by_name["arguments"].number
    call = types_pb2.Expression.DESCRIPTOR.fields_by_name["call"].number
    operator = types_pb2.Call(operator=types_pb2.OPERATOR_NOT).SerializeToString()
    made = types_pb2.Expression(column=types_pb2.ColumnRef(occurrence="r", column="a")).SerializeToString()
    for _ in range(depth):
        made = _field(call, operator + _field(arguments, made))
    return made


def _field(number: int, data: bytes) -> bytes:
    length, size = bytearray(), len(data)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + data


def _messages() -> dict[str, Seeds]:
    found: dict[str, Seeds] = {}
    for kind, (sample, _) in MESSAGES.items():
        good: bytes = sample.SerializeToString()
        found[kind] = {"good": good}
        if len(good) > 50:
            found[kind]["cut"] = good[: len(good) // 2]
    good = found["local-view"]["good"]
    found["local-view"]["unknown-fields"] = good + b"\xfa\x07\x03abc\xf8\x3f\x01"
    found["local-view"]["length-beyond-the-end"] = good + b"\x0a\xff\xff\xff\xff\x07"
    found["local-view"]["empty"] = b""
    view = types_pb2.LocalView.FromString(found["local-view"]["good"])
    for number in range(70):
        view.occurrences.add(alias=f"r{number}", relation="r")
    found["local-view"]["wide"] = view.SerializeToString()
    hostile = types_pb2.LocalView.FromString(found["local-view"]["good"])
    hostile.name = hostile.occurrences[0].relation = 'r"; DROP TABLE r; --'
    found["local-view"]["hostile-names"] = hostile.SerializeToString()
    found["expression"]["deep"] = _expression(33)
    found["expression"]["deeper-than-protobuf-reads"] = _expression(200)
    found["expression"]["no-operator"] = types_pb2.Expression(call=types_pb2.Call()).SerializeToString()
    found["position"]["negative"] = types_pb2.Position(ordinal=-1).SerializeToString()
    found["position"]["largest"] = types_pb2.Position(ordinal=2**63 - 1, token="x" * 5000).SerializeToString()
    found["global-transaction"]["nobody"] = types_pb2.GlobalTransaction(id="x").SerializeToString()
    found["relation"]["key-of-no-column"] = types_pb2.Relation(
        name="r", arrow_schema=to_ipc(SAMPLES[0].slice(0, 0)), key=["nothing"]
    ).SerializeToString()
    for name, touched in {"back": [1, 0], "none-such": [2], "negative": [-1]}.items():
        found["delta"][f"transactions-{name}"] = wrapper_pb2.LocalViewDelta(
            local_view="v", arrow=to_ipc(ROWS), touched=touched
        ).SerializeToString()
    found["answer"]["other-columns"] = wrapper_pb2.QueryResult(arrow=to_ipc(SAMPLES[1])).SerializeToString()
    found["keys"]["other-types"] = wrapper_pb2.MaintenanceQuery(
        local_view="v", key_columns=[LOCAL.columns[0].name], arrow=to_ipc(pa.table({"a": ["text"]}))
    ).SerializeToString()
    return found


def _sql() -> tuple[Seeds, Seeds]:
    where = "SELECT a FROM s.r WHERE "
    long = {
        "parentheses": where + "(" * 3000 + "a" + ")" * 3000,
        "nots": where + "NOT " * 5000 + "a",
        "cases": "SELECT " + "CASE WHEN a THEN " * 500 + "a" + " END" * 500 + " AS z FROM s.r",
        "ands": where + " AND ".join(["a = 1"] * 3000),
        "ors": where + " OR ".join(f"a = {number}" for number in range(1000)),
        "sums": where + "+".join(["a"] * 3000) + " = 1",
        "minuses": where + "-" * 2000 + "1 = a",
        "columns": "SELECT " + ", ".join(f"a AS c{number}" for number in range(2000)) + " FROM s.r",
        "joins": "SELECT x0.a FROM s.r x0"
        + "".join(f" JOIN s.r x{n} ON x{n}.a = x0.a" for n in range(1, 40)),
        "text-not-closed": where + "b = '" + "x" * 1000,
    }
    views = {
        **long,
        "good": "SELECT r.a, u.e FROM s.r JOIN t.u ON r.a = u.a WHERE r.b LIKE 'x%'",
        "empty": "",
        "null-byte": where + "b = '\x00'",
        "surrogate": where + "b = '\ud800'",
        "second-statement": 'SELECT a FROM s."r"; DROP TABLE r --"',
        "rename": "RENAME a, b FROM s.r",
        "number-beyond-float": where + "a = 1e400",
        "number-beyond-int": where + "a = 99999999999999999999999",
        "date-that-is-none": where + "d = DATE '2020-13-45'",
        "relation-named-as-sql": f'SELECT 1 FROM {next(iter(CATALOGS))}."r; --"',
        "with-recursive": "WITH RECURSIVE x AS (SELECT a FROM x) SELECT a FROM x",
    }
    queries = {
        "good": "SELECT r.a FROM r JOIN u USING (a)",
        "nested": "SELECT * FROM " + "(" * 2000 + "SELECT 1" + ")" * 2000,
        "surrogate": "SELECT '\ud800'",
        "reads-a-file": "SELECT * FROM r, read_csv('/etc/passwd')",
        "reads-a-file-by-name": "SELECT * FROM '/etc/passwd'",
        "copies": "COPY r TO 'x.db'",
        "attaches": "ATTACH 'x.db' AS y",
        "two-statements": "SELECT 1; SELECT 2",
        "with-recursive": "WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT * FROM x) SELECT * FROM x",
    }
    return {k: bytes_of(v) for k, v in views.items()}, {k: bytes_of(v) for k, v in queries.items()}


def _yaml() -> Seeds:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    texts = {
        "bomb": bomb,
        "itself": "a: &a {b: *a}",
        "nested-lists": "[" * 1500,
        "nested-mappings": "x: " + "{a: " * 60 + "1" + "}" * 60,
        "python-object": "x: !!python/object/apply:os.system [true]",
        "long-number": "x: !!int " + "9" * 5000,
        "key-that-is-a-mapping": "? {a: 1}\n: 2",
        "merge-of-itself": "a: &a {<<: *a}",
        "null-byte": "x: \0",
        "reference-in-reference": "mediator: {listen: '${X}${X}'}",
        "good": "sources: {s: {adapter: sqlite, url: 'sqlite:///s.db'}}",
    }
    return {name: bytes_of(text) for name, text in texts.items()} | {"not-utf8": b"x: \xff\xfe"}


def _tokens() -> Seeds:
    def file(**changes: object) -> bytes:
        return json.dumps({"format": 1, "tokens": [{**TOKEN, **changes}]}).encode()

    return {
        "good": file(),
        "nested": b"[" * 20_000,
        "format-of-the-future": b'{"format": 2, "tokens": []}',
        "time-without-zone": file(expires_at="2026-01-01T00:00:00"),
        "scopes-as-text": file(scopes="read"),
        "salt-as-number": file(salt=1),
        "salt-that-is-no-base64": file(salt="A"),
        "unknown-scope": file(scopes=["root:all"]),
        "unknown-field": file(admin=True),
    }


def seeds() -> dict[str, Seeds]:
    """Every seed, by decoder and name."""
    views, queries = _sql()
    return {
        "arrow": _arrow(),
        **_messages(),
        "view-sql": views,
        "query-sql": queries,
        "configuration": _yaml(),
        "token-file": _tokens(),
    }


if __name__ == "__main__":
    for decoder, named in seeds().items():
        (CORPUS / decoder).mkdir(parents=True, exist_ok=True)
        for name, data in named.items():
            (CORPUS / decoder / name).write_bytes(data)
