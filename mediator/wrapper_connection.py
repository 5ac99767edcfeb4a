"""The connection to one wrapper: its settings, and the questions outside of the ordered stream.

A connection whose other end has gone without a word (half-open) is noticed by gRPC's keepalive: after
`keepalive_seconds` of silence a ping is sent, and after as many again without an answer the stream breaks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from algebra.errors import LockstepError, ProtocolVersionError, SourceUnavailableError
from algebra.local_view import LocalView
from algebra.schema import Catalog
from protos.convert import PROTOCOL_VERSION, catalog_from_proto, local_view_to_proto
from protos.lockstep.v1 import types_pb2, wrapper_pb2_grpc
from protos.lockstep.v1 import wrapper_pb2 as pb
from protos.security.settings import Connection
from protos.security.tls import open_channel
from protos.server import keepalive_options
from protos.status import error_from_rpc

CONNECT_SECONDS = 5.0
KEEPALIVE_SECONDS = 5.0

_RECONNECT = (
    # gRPC's own pauses between attempts to connect, which grow to two minutes unless told otherwise, and how
    # long one attempt may take where nothing answers.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


@dataclass(frozen=True)
class SourceDescription:
    """A source's catalog and what its capture can do."""

    catalog: Catalog
    capabilities: types_pb2.Capabilities


class WrapperConnection:
    """A gRPC channel to the wrapper of one source; it connects, and again, when it is needed."""

    def __init__(self, source: str, address: str, keepalive_seconds: float, connection: Connection) -> None:
        self._source = source
        self._address = address
        options = [*keepalive_options(keepalive_seconds), *_RECONNECT]
        self._channel = open_channel(address, connection, PROTOCOL_VERSION, options)
        self._stub = wrapper_pb2_grpc.WrapperServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def describe(self, timeout: float) -> SourceDescription:
        """The source's catalog, as its wrapper shows it now."""
        try:
            response = self._stub.DescribeSource(
                pb.DescribeSourceRequest(), timeout=timeout, wait_for_ready=False
            )
        except grpc.RpcError as error:
            raise self._unavailable(error) from None
        if response.source != self._source:
            raise SourceUnavailableError(
                f"the wrapper at {self._address} serves source {response.source!r}, not {self._source!r}"
            )
        check_version(self._source, response.protocol_version)
        return SourceDescription(
            catalog_from_proto(self._source, list(response.relations)), response.capabilities
        )

    def load(self, views: Sequence[LocalView]) -> Iterator[pb.LoadLocalViewResponse]:
        """The extents of local views, all in one snapshot, chunk by chunk."""
        request = pb.LoadLocalViewRequest(local_views=[local_view_to_proto(view) for view in views])
        try:
            yield from self._stub.LoadLocalView(request)
        except grpc.RpcError as error:
            raise self._unavailable(error) from None

    def exchange(self, requests: Iterator[pb.ExchangeRequest]) -> Any:
        """A new ordered stream: a call that yields what the wrapper sends."""
        return self._stub.Exchange(requests)

    def wait_ready(self, stopped: threading.Event) -> None:
        """Return when the connection is up; gives up soon, and at once when `stopped` is set."""
        ready = grpc.channel_ready_future(self._channel)
        deadline = time.monotonic() + CONNECT_SECONDS
        while not stopped.is_set():
            try:
                ready.result(timeout=0.2)
                return
            except grpc.FutureTimeoutError:
                if time.monotonic() > deadline:
                    break
        ready.cancel()
        raise SourceUnavailableError(f"nothing answers at {self._address}")

    def _unavailable(self, error: grpc.RpcError) -> LockstepError:
        found = error_from_rpc(error)
        if isinstance(found, SourceUnavailableError) or type(found) is LockstepError:
            return SourceUnavailableError(
                f"the wrapper of source {self._source!r} at {self._address} does not answer: {found.message}"
            )
        return found


def check_version(source: str, theirs: int) -> None:
    """Raise unless the wrapper speaks our version; one that does not say so is from before versions were
    told."""
    if theirs not in (0, PROTOCOL_VERSION):
        raise ProtocolVersionError(
            f"the wrapper of source {source!r} speaks protocol version {theirs}, "
            f"this mediator {PROTOCOL_VERSION}: upgrade the older one"
        )
