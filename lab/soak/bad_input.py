"""What strangers send to open ports: noise, broken HTTP/2, messages that are none, and calls out of turn.

Each attempt must be refused, or ignored, without harm; the run itself shows that the
process still serves.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import grpc

from protos.lockstep.v1 import mediator_pb2 as m
from protos.lockstep.v1 import wrapper_pb2 as w

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SECONDS = 5.0
_WRAPPER, _MEDIATOR = "/lockstep.v1.WrapperService/", "/lockstep.v1.MediatorService/"


def attempts(chance: random.Random) -> Sequence[tuple[str, Callable[[str], None]]]:
    """Everything there is to try: a name, and a function of an address."""
    noise = chance.randbytes(chance.randrange(1, 4096))
    return (
        ("noise", lambda address: _raw(address, noise)),
        ("http", lambda address: _raw(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")),
        ("broken http/2", lambda address: _raw(address, _PREFACE + noise)),
        ("half a preface", lambda address: _raw(address, _PREFACE[:10])),
        ("no protobuf", lambda address: _call(address, _MEDIATOR + "Query", noise)),
        ("no protobuf on a stream", lambda address: _stream(address, [noise])),
        ("no such method", lambda address: _call(address, _MEDIATOR + "Nothing", b"")),
        ("bad sql", lambda address: _call(address, _MEDIATOR + "Query", _query(chance))),
        ("no attach", lambda address: _stream(address, [w.ExchangeRequest(credit=w.Credit(rows=1))])),
        ("wrong protocol", lambda address: _stream(address, [_attach(99)])),
        ("wrong source", lambda address: _stream(address, [_attach(1)])),
        ("unknown relation", lambda address: _call(address, _WRAPPER + "LoadLocalView", _load())),
        (
            "huge message",
            lambda address: _call(address, _MEDIATOR + "GetView", b"\x0a" + b"\xff" * (1 << 20)),
        ),
    )


def _query(chance: random.Random) -> bytes:
    sql = chance.choice(
        [
            "DROP TABLE x",
            "SELECT * FROM read_csv('/etc/passwd')",
            "SELECT 1; SELECT 2",
            "'",
            "SELECT * FROM nobody",
        ]
    )
    return m.QueryRequest(sql=sql).SerializeToString()


def _attach(version: int) -> w.ExchangeRequest:
    return w.ExchangeRequest(
        attach=w.Attach(mediator="a stranger", protocol_version=version, source="not this one")
    )


def _load() -> bytes:
    request = w.LoadLocalViewRequest()
    view = request.local_views.add(name="x", source="x")
    view.occurrences.add(alias="a", relation="sqlite_master")
    return request.SerializeToString()


def _raw(address: str, data: bytes) -> None:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=_SECONDS) as connection:
        connection.sendall(data)
        connection.settimeout(0.2)
        connection.recv(4096)


def _call(address: str, method: str, data: bytes) -> None:
    with suppress(grpc.RpcError), grpc.insecure_channel(address) as channel:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(method)
        for _ in call(data, timeout=_SECONDS):
            pass


def _stream(address: str, messages: Sequence[bytes | w.ExchangeRequest]) -> None:
    def requests() -> Iterator[bytes]:
        for message in messages:
            yield message if isinstance(message, bytes) else message.SerializeToString()

    with suppress(grpc.RpcError), grpc.insecure_channel(address) as channel:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(_WRAPPER + "Exchange")
        for _ in call(requests(), timeout=_SECONDS):
            break
