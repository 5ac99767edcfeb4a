"""The connection to one wrapper: its settings, and the questions outside of the ordered stream.

A connection whose other end has gone without a word (half-open) is noticed by gRPC's keepalive: after
`keepalive_seconds` of silence a ping is sent, and after as many again without an answer the stream breaks.

Certificates are looked at again before each attempt to attach, so that replaced ones are used from then on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from algebra.errors import LockstepError, ProtocolVersionError, SourceUnavailableError, StorageError
from algebra.local_view import LocalView
from algebra.schema import Catalog
from protos.convert import PROTOCOL_VERSION, catalog_from_proto, local_view_to_proto
from protos.lockstep.v1 import types_pb2, wrapper_pb2_grpc
from protos.lockstep.v1 import wrapper_pb2 as pb
from protos.security.settings import Connection
from protos.security.tls import channel_files, open_channel
from protos.security.tls_files import TlsMaterial
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


@dataclass
class _Link:
    """A gRPC channel, and the certificates that it was opened with; `calls` run on it beside the Exchange."""

    channel: grpc.Channel
    stub: wrapper_pb2_grpc.WrapperServiceStub
    material: TlsMaterial | None
    calls: int = 0
    retired: bool = False


class WrapperConnection:
    """A gRPC channel to the wrapper of one source; it connects, and again, when it is needed."""

    def __init__(self, source: str, address: str, keepalive_seconds: float, connection: Connection) -> None:
        self._source = source
        self._address = address
        self._connection = connection
        self._files = channel_files(connection)
        self._options = (*keepalive_options(keepalive_seconds), *_RECONNECT)
        self._lock = threading.Lock()
        self._link = self._open()

    def close(self) -> None:
        self._link.channel.close()

    def _open(self) -> _Link:
        material = self._files.current() if self._files is not None else None
        channel = open_channel(self._address, self._connection, PROTOCOL_VERSION, self._options, material)
        return _Link(channel, wrapper_pb2_grpc.WrapperServiceStub(channel), material)

    def renew(self) -> None:
        """Connect anew if the certificates were replaced: a gRPC channel keeps those that it began with.

        Calls that still run on the old channel (a long load) finish there.
        """
        if self._files is None or self._files.current() is self._link.material:
            return
        made = self._open()
        with self._lock:
            old, self._link = self._link, made
            old.retired = True
        self._close_if_done(old)

    @contextmanager
    def _call(self) -> Iterator[wrapper_pb2_grpc.WrapperServiceStub]:
        """The stub for one call, whose channel stays open until the call has ended."""
        with self._lock:
            link = self._link
            link.calls += 1
        try:
            yield link.stub
        finally:
            with self._lock:
                link.calls -= 1
            self._close_if_done(link)

    def _close_if_done(self, link: _Link) -> None:
        with self._lock:
            done = link.retired and not link.calls
        if done:
            link.channel.close()

    def describe(self, timeout: float) -> SourceDescription:
        """The source's catalog, as its wrapper shows it now."""
        try:
            with self._call() as stub:
                response = stub.DescribeSource(
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
            with self._call() as stub:
                call = stub.LoadLocalView(request)
                try:
                    yield from call
                finally:
                    call.cancel()
        except grpc.RpcError as error:
            raise self._unavailable(error) from None

    def exchange(self, requests: Iterator[pb.ExchangeRequest]) -> Any:
        """A new ordered stream: a call that yields what the wrapper sends."""
        return self._link.stub.Exchange(requests)

    def wait_ready(self, stopped: threading.Event) -> None:
        """Return when the connection is up; gives up soon, and at once when `stopped` is set."""
        ready = grpc.channel_ready_future(self._link.channel)
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
        # A full disk is that of the wrapper, not ours.
        if isinstance(found, SourceUnavailableError | StorageError) or type(found) is LockstepError:
            return SourceUnavailableError(
                f"the wrapper of source {self._source!r} at {self._address} does not answer: {found.message}"
            )
        return found


def check_version(source: str, theirs: int) -> None:
    """Raise unless the wrapper speaks our version."""
    if theirs != PROTOCOL_VERSION:
        raise ProtocolVersionError(
            f"the wrapper of source {source!r} speaks protocol version {theirs}, "
            f"this mediator {PROTOCOL_VERSION}: upgrade the older one"
        )
