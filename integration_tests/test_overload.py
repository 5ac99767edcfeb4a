"""One peer asks for too much: it is refused with a reason and cheaply, and everybody else goes on."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import protos.server
from adapters.registry import create
from adapters.spi import SourceConfig
from algebra.errors import LimitExceededError, LockstepError, UnauthenticatedError
from lab.soak.deployment import wait_until
from lab.soak.proxy import Proxy
from protos.lockstep.v1 import wrapper_pb2 as pb
from protos.lockstep.v1 import wrapper_pb2_grpc
from protos.security import guard, tokens
from protos.security.limits import FailedLogins
from protos.security.settings import PLAIN, CallLimits, Connection, ServerSecurity
from protos.security.tls import open_channel
from protos.security.tokens import TokenFile
from protos.status import error_from_rpc
from protos.version import PROTOCOL_VERSION
from wrapper.server import WrapperServer

NEIGHBOUR = "127.0.0.2"


@dataclass
class Busy:
    """A wrapper with small limits, the tokens it knows, and its audit log; reached from two addresses."""

    stack: ExitStack
    server: WrapperServer
    address: str
    neighbour: str
    tokens: dict[str, str]
    audit: Path
    held: list[Any] = field(default_factory=list)

    def stub(self, token: str = "", address: str = "") -> wrapper_pb2_grpc.WrapperServiceStub:
        channel = open_channel(address or self.address, Connection(token=token), PROTOCOL_VERSION)
        return wrapper_pb2_grpc.WrapperServiceStub(self.stack.enter_context(channel))

    def begun(self) -> int:
        """How many streams it has begun to serve."""
        return sum(record["outcome"] == "begun" for record in self.records())

    def records(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]


def started(stack: ExitStack, folder: Path, names: tuple[str, ...], limits: CallLimits) -> Busy:
    with closing(sqlite3.connect(folder / "s.db")) as database:
        database.execute("CREATE TABLE r (a INTEGER)")
    file = TokenFile(folder / "tokens.json")
    made = {name: file.create(name, ["attach"]) for name in names}
    audit = folder / "audit.jsonl"
    server = WrapperServer(
        create(SourceConfig("s", "sqlite", f"sqlite:///{folder / 's.db'}")),
        "127.0.0.1:0",
        ServerSecurity(tokens=file.path if names else None, audit=audit, limits=limits),
    )
    address = server.start()
    stack.callback(server.stop, 0)
    proxy = Proxy(address, NEIGHBOUR)
    stack.callback(proxy.close)
    return Busy(stack, server, address, proxy.address, made, audit)


@pytest.fixture
def names() -> tuple[str, ...]:
    return ("ann", "bob", "mallory")


@pytest.fixture
def limits() -> CallLimits:
    return CallLimits(calls=6, streams=3, failed_logins_per_minute=5)


@pytest.fixture
def busy(tmp_path: Path, names: tuple[str, ...], limits: CallLimits) -> Iterator[Busy]:
    with ExitStack() as stack:
        yield started(stack, tmp_path, names, limits)


def hold(stub: wrapper_pb2_grpc.WrapperServiceStub) -> Any:
    """An Exchange that is begun, and says nothing: it holds a place, and a thread, until it is cancelled."""
    said_nothing = threading.Event()

    def nothing() -> Iterator[pb.ExchangeRequest]:
        said_nothing.wait(120)
        yield from ()

    call = stub.Exchange(nothing(), timeout=120)
    call.add_callback(said_nothing.set)
    return call


def refusal(call: Any) -> LockstepError:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return error_from_rpc(refused.value)


def describe(stub: wrapper_pb2_grpc.WrapperServiceStub) -> pb.DescribeSourceResponse:
    return stub.DescribeSource(pb.DescribeSourceRequest(), timeout=60)


def hold_all(busy: Busy, stub: wrapper_pb2_grpc.WrapperServiceStub, number: int) -> list[Any]:
    """So many streams, all of which the server has begun to serve."""
    before = busy.begun()
    calls = [hold(stub) for _ in range(number)]
    busy.held += calls  # gRPC cancels a call that nobody refers to
    assert wait_until(lambda: busy.begun() == before + number, 60)
    return calls


def test_streams_are_bounded_by_caller(busy: Busy) -> None:
    mallory, bob = busy.stub(busy.tokens["mallory"]), busy.stub(busy.tokens["bob"])
    first, *_ = hold_all(busy, mallory, 3)
    error = refusal(lambda: next(hold(mallory)))
    assert isinstance(error, LimitExceededError)
    assert str(error) == "token 'mallory' has 3 streams open, and may not have more"
    elsewhere = busy.stub(busy.tokens["mallory"], busy.neighbour)
    assert isinstance(refusal(lambda: next(hold(elsewhere))), LimitExceededError), "a name, not an address"
    assert describe(mallory).source == "s", "its other calls go on"
    hold_all(busy, bob, 1)
    first.cancel()

    def free_again() -> bool:
        begun = busy.begun()
        held = hold(mallory)
        return wait_until(lambda: held.done() or busy.begun() > begun, 60) and not held.done()

    assert wait_until(free_again, 60)


@pytest.mark.parametrize("limits", [CallLimits(calls=4, streams=10)])
def test_calls_are_bounded_by_caller(busy: Busy) -> None:
    mallory, bob = busy.stub(busy.tokens["mallory"]), busy.stub(busy.tokens["bob"])
    first, *_ = hold_all(busy, mallory, 4)
    error = refusal(lambda: describe(mallory))
    assert str(error) == "token 'mallory' has 4 calls under way, and may not have more"
    assert describe(bob).source == "s"
    first.cancel()

    def free_again() -> bool:
        try:
            return describe(mallory).source == "s"
        except grpc.RpcError:
            return False

    assert wait_until(free_again, 60)
    assert [r["who"] for r in busy.records() if r["outcome"] == "LIMIT_EXCEEDED"] == ["mallory"]


@pytest.mark.parametrize("limits", [CallLimits()])
def test_one_caller_cannot_take_all_threads(busy: Busy) -> None:
    """With the limits that are given by default."""
    mallory, bob = busy.stub(busy.tokens["mallory"]), busy.stub(busy.tokens["bob"])
    hold_all(busy, mallory, CallLimits().streams)
    assert isinstance(refusal(lambda: next(hold(mallory))), LimitExceededError)
    assert describe(bob).source == "s"


@pytest.mark.parametrize("names", [()])
def test_callers_without_a_name_are_bounded_by_address(busy: Busy) -> None:
    stub = busy.stub()
    hold_all(busy, stub, 3)
    assert str(refusal(lambda: next(hold(stub)))) == (
        "anonymous loopback has 3 streams open, and may not have more"
    )
    assert describe(stub).source == "s"
    hold_all(busy, busy.stub(address=busy.neighbour), 1)


def test_watches_of_health_are_bounded_by_address(busy: Busy) -> None:
    def watch(address: str) -> Any:
        channel = busy.stack.enter_context(open_channel(address, PLAIN, PROTOCOL_VERSION))
        health: Any = health_pb2_grpc.HealthStub(channel)
        call = health.Watch(health_pb2.HealthCheckRequest(), timeout=120)
        next(call)
        busy.held.append(call)
        return call

    calls = [watch(busy.address) for _ in range(3)]
    assert isinstance(refusal(lambda: watch(busy.address)), LimitExceededError)
    watch(busy.neighbour)
    channel = busy.stack.enter_context(open_channel(busy.address, PLAIN, PROTOCOL_VERSION))
    health: Any = health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=60).status
    for call in calls:
        call.cancel()

    def free_again() -> bool:
        try:
            watch(busy.address)
        except grpc.RpcError:
            return False
        return True

    assert wait_until(free_again, 60)


HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


def connected(busy: Busy) -> socket.socket:
    host, port = busy.address.rsplit(":", 1)
    return busy.stack.enter_context(socket.create_connection((host, int(port)), timeout=60))


def until_closed(peer: socket.socket) -> None:
    """Return when the server has closed the connection."""
    with suppress(ConnectionError):
        while peer.recv(4096):
            pass


@pytest.mark.parametrize("said", [b"", b"PRI", b"\x16\x03\x01\x02\0", HTTP2], ids=["0", "part", "tls", "all"])
def test_a_peer_that_connects_and_asks_nothing_is_put_out(
    said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protos.server, "_HANDSHAKE_SECONDS", 0.3)
    monkeypatch.setattr(protos.server, "_IDLE_SECONDS", 0.3)
    with ExitStack() as stack:
        busy = started(stack, tmp_path, (), CallLimits())
        peer = connected(busy)
        peer.sendall(said)
        until_closed(peer)
        assert describe(busy.stub()).relations


def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond the bound are closed at once; who was there before goes on, and others come in again."""
    monkeypatch.setattr(protos.server, "_CONNECTIONS", 8)
    with ExitStack() as stack:
        busy = started(stack, tmp_path, (), CallLimits())
        early = busy.stub()
        describe(early)
        taken = [connected(busy) for _ in range(7)]
        beyond = [connected(busy) for _ in range(20)]
        for peer in beyond:
            until_closed(peer)
        describe(early)
        for peer in taken:
            peer.close()
        late = busy.stub()
        late.DescribeSource(pb.DescribeSourceRequest(), timeout=60, wait_for_ready=True)


@pytest.fixture
def logins_at_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """All attempts to log in come at the same time, however long they take: no pause ends in between."""
    monkeypatch.setattr(guard, "FailedLogins", partial(FailedLogins, clock=lambda: 0.0))


@pytest.mark.usefixtures("logins_at_one_moment")
def test_guessing_of_tokens_is_refused_without_hashing(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = 0
    real = tokens._hash

    def counted(secret: str, salt: bytes) -> bytes:
        nonlocal hashed
        hashed += 1
        return real(secret, salt)

    ann = busy.stub(busy.tokens["ann"])
    assert describe(ann).source == "s"
    monkeypatch.setattr(tokens, "_hash", counted)
    guesses = 300
    outcomes: Counter[type[LockstepError]] = Counter()
    prefix, bob, _ = busy.tokens["bob"].split("_", 2)
    for number in range(guesses):
        guess = busy.stub(f"{prefix}_{bob}_{number}")
        outcomes[type(refusal(lambda guess=guess: describe(guess)))] += 1
    assert outcomes == {UnauthenticatedError: 5, LimitExceededError: guesses - 5}
    assert hashed == 5
    assert describe(ann).source == "s", "who was verified before goes on, from the same address too"
    assert isinstance(refusal(lambda: describe(busy.stub(busy.tokens["bob"]))), LimitExceededError)
    assert describe(busy.stub(busy.tokens["bob"], busy.neighbour)).source == "s", "nor does another address"
    busy.server.stop(0)
    refused = [r for r in busy.records() if r["who"] == "unknown"]
    assert len(refused) <= outcomes[UnauthenticatedError] + 10, "the disk is not filled either"
    counts = [re.match(r"(\d+) more like", r["detail"]) for r in refused if r["outcome"] == "LIMIT_EXCEEDED"]
    told = sum(int(found[1]) if found else 1 for found in counts)
    assert told == outcomes[LimitExceededError] + 1, "and yet every one is accounted for"


def test_calls_without_a_token_are_not_listened_to_for_long(busy: Busy) -> None:
    stub = busy.stub()
    found = [type(refusal(lambda: describe(stub))) for _ in range(50)]
    assert found[:5] == [UnauthenticatedError] * 5
    assert found.count(LimitExceededError) > 25
