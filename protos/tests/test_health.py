"""Health is told to whoever asks, and nobody who watches it can hold up the server."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from algebra.errors import LimitExceededError
from protos.health import MOST_WATCHES, Health
from protos.status import error_from_rpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVICES = ("", "a", "b")


class Served:
    """A health service on a real socket, and clients of it."""

    def __init__(self, stack: ExitStack) -> None:
        self.health = Health()
        self.health.set(dict.fromkeys(SERVICES, SERVING))
        self._stack = stack
        self._server = grpc.server(stack.enter_context(futures.ThreadPoolExecutor(MOST_WATCHES + 8)))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        stack.callback(lambda: self._server.stop(0).wait())

    def stub(self) -> Any:
        channel = grpc.insecure_channel(f"127.0.0.1:{self._port}", [("grpc.use_local_subchannel_pool", 1)])
        return health_pb2_grpc.HealthStub(self._stack.enter_context(channel))

    def set(self, *statuses: int) -> None:
        """Set one status after the other, in a thread of its own that must come to its end."""
        done = threading.Event()

        def run() -> None:
            for status in statuses:
                self.health.set(dict.fromkeys(SERVICES, status))
            done.set()

        threading.Thread(target=run, daemon=True).start()
        assert done.wait(60), "a watcher holds up who sets the status"


@pytest.fixture
def served() -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(stack)


def request(service: str = "") -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


def test_check_and_list_tell_the_status(served: Served) -> None:
    stub = served.stub()
    assert stub.Check(request("a"), timeout=60).status == SERVING
    served.health.set({"a": NOT_SERVING})
    assert stub.Check(request("a"), timeout=60).status == NOT_SERVING
    everything: Any = health_pb2.HealthListRequest()  # type: ignore[attr-defined]
    listed = stub.List(everything, timeout=60).statuses
    assert {name: answer.status for name, answer in listed.items()} == {
        "": SERVING,
        "a": NOT_SERVING,
        "b": SERVING,
    }
    with pytest.raises(grpc.RpcError) as unknown:
        stub.Check(request("nothing"), timeout=60)
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_watch_tells_each_change_and_ends_with_the_server(served: Served) -> None:
    call = served.stub().Watch(request("a"), timeout=60)
    assert next(call).status == SERVING
    served.set(NOT_SERVING)
    assert next(call).status == NOT_SERVING
    served.set(SERVING)
    assert next(call).status == SERVING
    served.health.close()
    assert [answer.status for answer in call] == [NOT_SERVING]
    served.set(SERVING)
    assert served.stub().Check(request("a"), timeout=60).status == NOT_SERVING


def test_a_watch_of_an_unknown_service_waits_for_it(served: Served) -> None:
    call = served.stub().Watch(request("later"), timeout=60)
    assert next(call).status == UNKNOWN
    served.health.set({"later": SERVING})
    assert next(call).status == SERVING


def test_a_watcher_that_does_not_read_holds_up_nobody(served: Served) -> None:
    deaf = [served.stub().Watch(request(), timeout=120) for _ in range(4)]
    reads = served.stub().Watch(request(), timeout=120)
    assert next(reads).status == SERVING
    served.set(*[NOT_SERVING, SERVING] * 5000, NOT_SERVING)
    assert any(answer.status == NOT_SERVING for answer in reads), "the newest reaches who reads"
    for call in deaf:
        call.cancel()


def test_watchers_that_leave_at_any_moment_hold_up_nobody(served: Served) -> None:
    """The moment at which the servicer of gRPC stops for ever: a watch ends while a status is sent to it."""

    def come_and_go(chance: random.Random) -> None:
        stub = served.stub()
        for _ in range(100):
            call = stub.Watch(request(chance.choice(SERVICES)), timeout=120)
            if chance.random() < 0.5:
                assert next(call).status in (SERVING, NOT_SERVING)
            call.cancel()

    with futures.ThreadPoolExecutor(4) as threads:
        visits = [threads.submit(come_and_go, random.Random(seed)) for seed in range(4)]
        while not all(visit.done() for visit in visits):
            served.set(*[NOT_SERVING, SERVING] * 5)
        for visit in visits:
            visit.result()
    served.set(NOT_SERVING)
    assert served.stub().Check(request(), timeout=60).status == NOT_SERVING


def test_watches_are_bounded_and_their_places_come_back(served: Served) -> None:
    stub = served.stub()
    calls = [stub.Watch(request(), timeout=120) for _ in range(MOST_WATCHES)]
    for call in calls:
        assert next(call).status == SERVING
    with pytest.raises(grpc.RpcError) as refused:
        next(stub.Watch(request(), timeout=60))
    assert isinstance(error_from_rpc(refused.value), LimitExceededError)
    served.set(NOT_SERVING)
    for call in calls:
        assert next(call).status == NOT_SERVING
        call.cancel()

    def refused_again() -> bool:
        try:
            return bool(next(stub.Watch(request(), timeout=60)).status != NOT_SERVING)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    while refused_again():  # the server learns of a cancelled call a moment later
        pass
