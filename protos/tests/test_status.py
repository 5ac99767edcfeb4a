"""An error arrives with its reason, whatever its text is, and whatever a peer sends is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from algebra.errors import LockstepError, NotFoundError, ViewDefinitionError
from protos.status import abort, error_from_rpc

Fail = Callable[[LockstepError], LockstepError]


@pytest.fixture
def fail() -> Iterator[Fail]:
    """Has a server end a call with an error, and tells which one its caller gets."""
    errors: list[LockstepError] = []

    def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
        abort(context, errors.pop())

    with ExitStack() as stack:
        server = grpc.server(stack.enter_context(futures.ThreadPoolExecutor(1)))
        handler: Any = grpc.unary_unary_rpc_method_handler(handle)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Fail": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        stack.callback(lambda: server.stop(0).wait())
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}"))
        method: Any = channel.unary_unary("/test/Fail")

        def failed(error: LockstepError) -> LockstepError:
            errors.append(error)
            with pytest.raises(grpc.RpcError) as caught:
                method(b"", timeout=30)
            return error_from_rpc(caught.value)

        yield failed


@pytest.mark.parametrize(
    "error", [NotFoundError("there is no view 'x'"), ViewDefinitionError("ä % \U0001f600")]
)
def test_an_error_arrives_as_it_is(fail: Fail, error: LockstepError) -> None:
    assert (type(fail(error)), str(fail(error))) == (type(error), str(error))


@pytest.mark.parametrize("character", ["a", "%", "ä", "\U0001f600"])
@pytest.mark.parametrize("length", [2_000, 3_100, 4_500, 7_000, 20_000, 100_000])
def test_an_error_with_a_long_text_arrives_with_its_reason(fail: Fail, character: str, length: int) -> None:
    """gRPC's limit is a soft one: it refuses more of what is beyond it the longer it is."""
    for _ in range(5):
        found = fail(NotFoundError("no view: " + character * length))
        assert isinstance(found, NotFoundError), found
        assert str(found).startswith("no view: " + character * 200)
