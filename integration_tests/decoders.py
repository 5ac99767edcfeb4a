"""Everything that takes bytes or text from outside, each as a function of bytes.

Whatever comes in, it returns or raises LockstepError with words. Anything else is a bug, and what fuzzing is
for.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from algebra.arrow_ipc import from_ipc, to_ipc
from algebra.decompose import decompose
from algebra.schema import Catalog, Column, RelationSchema
from cli import config
from mediator.warehouse.query import views_in
from protos.convert import (
    catalog_from_proto,
    expression_from_proto,
    global_transaction_from_proto,
    local_view_from_proto,
    local_view_to_proto,
    position_from_proto,
)
from protos.incoming import checked_delta, checked_touched, decoded_answer
from protos.lockstep.v1 import types_pb2, wrapper_pb2
from protos.security.tokens import TokenFile
from wrapper.localized_processor import keys_of

INT, TEXT = pa.int64(), pa.string()
CATALOGS = {
    "s": Catalog(
        "s",
        {
            "r": RelationSchema("r", (Column("a", INT), Column("b", TEXT), Column("d", pa.date32())), ("a",)),
            "q": RelationSchema("q", (Column("a", INT), Column("c", pa.float64()))),
        },
    ),
    "t": Catalog("t", {"u": RelationSchema("u", (Column("a", INT), Column("e", TEXT)), ("a",))}),
}
LOCAL = decompose("v", "SELECT a, b FROM s.r WHERE b = 'x'", CATALOGS).local_views[0]
ROWS = pa.table(
    {
        **{field.name: pa.array([], field.type) for field in LOCAL.arrow},
        "_tx": pa.array([], pa.int32()),
        "_count": pa.array([], INT),
    }
)

SAMPLES = [
    pa.table({"x": pa.array([1, None, 3], INT), "s": ["a", None, "ccc"]}),
    pa.table({"d": pa.array(["a", "b", "a"]).dictionary_encode()}),
    pa.table({"l": pa.array([[1], None, [2, 3]]), "t": pa.array([1, 2, 3], pa.timestamp("us", "UTC"))}),
    pa.table(
        {"n": pa.nulls(3), "b": [True, False, None], "z": pa.array([b"", b"\xff", None], pa.large_binary())}
    ),
]

MESSAGES: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "local-view": (local_view_to_proto(LOCAL), local_view_from_proto),
    "expression": (local_view_to_proto(LOCAL).predicates[0], expression_from_proto),
    "position": (types_pb2.Position(ordinal=5, token="x"), position_from_proto),
    "global-transaction": (
        types_pb2.GlobalTransaction(id="x", participants=["s"]),
        lambda message: global_transaction_from_proto([message]),
    ),
    "relation": (
        types_pb2.Relation(name="r", arrow_schema=to_ipc(SAMPLES[0].slice(0, 0)), key=["x"]),
        lambda message: catalog_from_proto("s", [message]),
    ),
    "delta": (
        wrapper_pb2.LocalViewDelta(local_view="v", arrow=to_ipc(ROWS), touched=[0, 1]),
        lambda message: checked_delta([from_ipc(message.arrow)], LOCAL, checked_touched(message, 2)),
    ),
    "answer": (
        wrapper_pb2.QueryResult(query_id=1, arrow=to_ipc(ROWS.select(["a", "b"])), last=True),
        lambda message: decoded_answer(message.arrow, LOCAL.arrow, "v"),
    ),
    "keys": (
        wrapper_pb2.MaintenanceQuery(
            query_id=1,
            local_view="v",
            key_columns=["a"],
            arrow=to_ipc(pa.table({"a": pa.array([1, 2], INT)})),
        ),
        lambda message: keys_of(message, LOCAL),
    ),
}
"""A good message of each kind that has a decoder of its own, and the decoder."""

TOKEN: Mapping[str, Any] = {
    "id": "0123456789ab",
    "name": "ann",
    "scopes": ["read"],
    "salt": "A" * 22 + "==",
    "hash": "A" * 43 + "=",
    "created_at": "2026-01-01T00:00:00+00:00",
    "expires_at": None,
}
"""A good entry of a token file."""


def arrow(data: bytes) -> None:
    found = from_ipc(data)
    found.validate(full=True)
    to_ipc(found.combine_chunks())


def message(kind: str) -> Callable[[bytes], None]:
    """The decoder of a kind of message. Bytes that are no protobuf at all are the guard's business."""
    sample, decode = MESSAGES[kind]

    def decoded(data: bytes) -> None:
        try:
            parsed = type(sample).FromString(data)
        except DecodeError:
            return
        decode(parsed)

    return decoded


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def view_sql(keys: bool, per_relation: bool) -> Callable[[bytes], None]:
    def decoded(data: bytes) -> None:
        decompose("v", text_of(data), CATALOGS, allow_cross_join=True, keys=keys, per_relation=per_relation)

    return decoded


def query_sql(data: bytes) -> None:
    views_in(text_of(data), ["r", "u"])


def configuration(data: bytes) -> None:
    with tempfile.NamedTemporaryFile("wb", suffix=".yaml") as file:
        file.write(data)
        file.flush()
        config.load(Path(file.name), {"X": "value"})


def token_file(data: bytes) -> None:
    with tempfile.NamedTemporaryFile("wb") as file:
        file.write(data)
        file.flush()
        TokenFile(Path(file.name)).entries()


DECODERS: Mapping[str, tuple[Callable[[bytes], None], ...]] = {
    "arrow": (arrow,),
    **{kind: (message(kind),) for kind in MESSAGES},
    "view-sql": tuple(view_sql(keys, each) for keys, each in itertools.product((False, True), repeat=2)),
    "query-sql": (query_sql,),
    "configuration": (configuration,),
    "token-file": (token_file,),
}
"""By the name of its folder in the corpus, in all ways that it is called."""
