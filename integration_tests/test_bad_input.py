"""Bytes that no client of ours would send: each is refused with a reason, and the servers go on."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from adapters.registry import create
from adapters.spi import SourceConfig
from algebra.errors import LimitExceededError, LockstepError, RefusedError
from integration_tests.client import Client
from mediator.config import MediatorConfig
from mediator.server import MediatorServer
from protos.lockstep.v1 import mediator_pb2, types_pb2, wrapper_pb2
from protos.security.access import RULES
from protos.security.settings import PLAIN, REQUEST_BYTES
from protos.security.tls import open_channel
from protos.status import error_from_rpc
from protos.version import PROTOCOL_VERSION
from wrapper.server import WrapperServer

SERVICES = {
    f"/{service.full_name}/{method.name}": method
    for file in (mediator_pb2, wrapper_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class Servers:
    """A wrapper and a mediator in this process, and raw calls to them."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        with closing(sqlite3.connect(folder / "s.db")) as database:
            database.executescript("CREATE TABLE r (a INTEGER, b TEXT); INSERT INTO r VALUES (1, 'x')")
        wrapper = WrapperServer(
            create(SourceConfig("s", "sqlite", f"sqlite:///{folder / 's.db'}")), "127.0.0.1:0"
        )
        address = wrapper.start()
        stack.callback(wrapper.stop, 0)
        mediator = MediatorServer(
            MediatorConfig("127.0.0.1:0", str(folder / "warehouse"), "duckdb", {"s": address})
        )
        self.client = Client(mediator.start())
        stack.callback(mediator.stop, 0)
        stack.callback(self.client.close)
        self._channels = {
            "Wrapper": stack.enter_context(open_channel(address, PLAIN, PROTOCOL_VERSION)),
            "Mediator": stack.enter_context(open_channel(self.client.address, PLAIN, PROTOCOL_VERSION)),
        }

    def send(self, method: str, *messages: bytes) -> list[bytes]:
        """The answers to these bytes; raises RpcError."""
        channel: Any = self._channels["Wrapper" if "Wrapper" in method else "Mediator"]
        found = SERVICES[method]
        if found.client_streaming:
            return list(channel.stream_stream(method)(iter(messages), timeout=60))
        if found.server_streaming:
            return list(channel.unary_stream(method)(messages[0], timeout=60))
        return [channel.unary_unary(method)(messages[0], timeout=60)]

    def refusal(self, method: str, *messages: bytes) -> LockstepError:
        with pytest.raises(grpc.RpcError) as refused:
            self.send(method, *messages)
        return error_from_rpc(refused.value)

    def check_alive(self) -> None:
        assert self.client.query("SELECT a, b FROM v").to_pylist() == [{"a": 1, "b": "x"}]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        made = Servers(stack, tmp_path_factory.mktemp("bad-input"))
        made.client.create_view("v", "SELECT a, b FROM s.r")
        yield made


@pytest.mark.parametrize("method", sorted(SERVICES))
def test_a_message_that_is_none_is_refused(servers: Servers, method: str) -> None:
    error = servers.refusal(method, b"\xff" * 40)
    assert isinstance(error, RefusedError)
    assert "not" in str(error)
    assert method in RULES


def test_an_exchange_with_nonsense_in_it_is_ended_with_a_reason(servers: Servers) -> None:
    attach = wrapper_pb2.Attach(mediator="m", protocol_version=PROTOCOL_VERSION, source="s")
    first = wrapper_pb2.ExchangeRequest(attach=attach).SerializeToString()
    answers = servers.send("/lockstep.v1.WrapperService/Exchange", first, b"\xff" * 40)
    kinds = [wrapper_pb2.ExchangeResponse.FromString(answer) for answer in answers]
    assert kinds[0].HasField("attached")
    assert (kinds[-1].error.reason, kinds[-1].error.message) == (
        "REFUSED",
        "a message on the stream is not one of the protocol",
    )


def test_random_bytes_hurt_nobody(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """An exception that nobody foresaw would be in the log, as the guard puts it there."""
    caplog.clear()
    rng = random.Random(7)
    methods = sorted(SERVICES)
    for _ in range(150):
        method = rng.choice(methods)
        data = rng.randbytes(rng.randrange(1, 60))
        with suppress(grpc.RpcError):
            servers.send(method, data)
    assert not [record.getMessage() for record in caplog.records if record.exc_info]
    servers.check_alive()


def test_a_message_that_is_too_large_is_refused_unread(servers: Servers) -> None:
    request = mediator_pb2.QueryRequest(sql="x" * (REQUEST_BYTES + 1)).SerializeToString()
    error = servers.refusal("/lockstep.v1.MediatorService/Query", request)
    assert isinstance(error, LimitExceededError)
    assert "a message is larger than the receiver takes" in str(error)
    servers.check_alive()


HOSTILE: dict[str, Any] = {
    "a name that is a path": mediator_pb2.ViewSpec(name="../../x", sql="SELECT a FROM s.r"),
    "a name that is none": mediator_pb2.ViewSpec(name="", sql="SELECT a FROM s.r"),
    "a name with a line break": mediator_pb2.ViewSpec(name="a\nb", sql="SELECT a FROM s.r"),
    "a name that is too long": mediator_pb2.ViewSpec(name="a" * 1000, sql="SELECT a FROM s.r"),
    "no text": mediator_pb2.ViewSpec(name="w", sql=""),
    "an unknown relation": mediator_pb2.ViewSpec(name="w", sql="SELECT a FROM s.nothing"),
    "an unknown source": mediator_pb2.ViewSpec(name="w", sql="SELECT a FROM nobody.r"),
    "two statements": mediator_pb2.ViewSpec(name="w", sql="SELECT a FROM s.r; DROP TABLE s.r"),
    "an endless text": mediator_pb2.ViewSpec(name="w", sql="SELECT a FROM s.r WHERE " + "(" * 9000),
    "an unknown algorithm": mediator_pb2.ViewSpec(name="w", sql="SELECT a FROM s.r", maintenance="magic"),
    "a negative batch": mediator_pb2.ViewSpec(name="w", sql="SELECT a FROM s.r", max_batch=-5),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_view_that_cannot_be_is_refused(servers: Servers, what: str) -> None:
    request = mediator_pb2.CreateViewRequest(view=HOSTILE[what]).SerializeToString()
    error = servers.refusal("/lockstep.v1.MediatorService/CreateView", request)
    assert error.reason != "INTERNAL", str(error)
    assert len(str(error).splitlines()) == 1
    assert [
        view.spec.name for view in servers.client.stub.ListViews(mediator_pb2.ListViewsRequest()).views
    ] == ["v"]


def test_values_are_data_whatever_they_look_like(servers: Servers) -> None:
    hostile = "x'; DROP TABLE r; --"
    sql = f"""SELECT a FROM s.r WHERE b = '{hostile.replace("'", "''")}' OR a = 1"""
    servers.client.create_view("hostile_value", sql)
    assert servers.client.query("SELECT * FROM hostile_value").to_pylist() == [{"a": 1}]
    servers.client.stub.DropView(mediator_pb2.DropViewRequest(name="hostile_value"))
    servers.check_alive()


def test_a_position_that_was_never_given_out_is_refused(servers: Servers) -> None:
    attach = wrapper_pb2.Attach(mediator="m", protocol_version=PROTOCOL_VERSION, source="s")
    requests = [
        wrapper_pb2.ExchangeRequest(attach=attach),
        wrapper_pb2.ExchangeRequest(
            acknowledge=wrapper_pb2.Acknowledge(position=types_pb2.Position(ordinal=2**62, token="nonsense"))
        ),
        wrapper_pb2.ExchangeRequest(credit=wrapper_pb2.Credit(rows=-(2**62))),
        wrapper_pb2.ExchangeRequest(),
        wrapper_pb2.ExchangeRequest(drop=wrapper_pb2.DropLocalView(local_view="nothing")),
    ]
    answers = servers.send(
        "/lockstep.v1.WrapperService/Exchange", *(request.SerializeToString() for request in requests)
    )
    assert wrapper_pb2.ExchangeResponse.FromString(answers[0]).HasField("attached")
    servers.check_alive()
