"""The guard before every RPC: who is calling, whether they may, and what the audit log says about it.

It is the outermost code of each call. So it is also where whatever a handler did not foresee ends: the caller
gets one line without details, the log has the trace. A message that is not what the protocol says is refused
here, before any handler sees it.

Revocation reaches open streams: a thread looks after the tokens of all calls that last, and cancels those
whose token is gone, `REVOCATION_SECONDS` after the file has changed at the latest.

What one caller may have at once, and how often an address may fail to show who it is, is bounded here too
(`limits.py`). Refusals for that reason come in floods: the first is written down at once, the others as a
number.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from algebra.errors import (
    INTERNAL_ERROR,
    LimitExceededError,
    LockstepError,
    ProtocolVersionError,
    RefusedError,
    UnauthenticatedError,
)
from protos.security.access import RULES, Rule, check
from protos.security.audit import AuditLog
from protos.security.limits import CallsUnderWay, FailedLogins, Refusal, Repetitions, host_of
from protos.security.principals import ANONYMOUS, ANONYMOUS_LOOPBACK, Principal, checked_scopes
from protos.security.settings import ServerSecurity
from protos.security.tls import AUTHORIZATION, PROTOCOL
from protos.security.tokens import TokenStore
from protos.status import abort

log = logging.getLogger(__name__)

REVOCATION_SECONDS = 2.0
_LOOK_SECONDS = 0.5
_ATTRIBUTE = "lockstep_call"

Handler = Any


@dataclass
class Call:
    """One RPC under way.

    A service sets `target` when it knows better what the call is about, and `outcome` (with `detail`) when it
    knows what came of its work: a caller that leaves does not change that.
    """

    principal: Principal
    peer: str
    action: str
    target: str = ""
    revoked: bool = False
    outcome: str = ""
    detail: str = ""
    settle: Callable[[], None] = lambda: None
    """Returns when work that goes on without the caller has ended, and `outcome` tells what came of it."""
    leave: Callable[[], None] = lambda: None
    """Gives back the caller's place; called when the handler has ended, and not before."""


_UNGUARDED = Call(ANONYMOUS_LOOPBACK, "", "")


def call_of(context: grpc.ServicerContext) -> Call:
    """The call that a handler serves; on a server without guard, one of an anonymous caller."""
    found: Call = getattr(context, _ATTRIBUTE, _UNGUARDED)
    return found


class _Malformed:
    """Stands for a request whose bytes are not a message of the protocol."""


class Guard(grpc.ServerInterceptor):
    """Admits calls. `source` is the one that a wrapper serves; `version` the protocol's."""

    def __init__(self, security: ServerSecurity, audit: AuditLog, version: int, source: str = "") -> None:
        self._security = security
        self._audit = audit
        self._version = version
        self._source = source
        self._tokens = TokenStore(security.tokens) if security.tokens is not None else None
        self._certificates = {
            name: Principal(name, "certificate", frozenset(checked_scopes(scopes)))
            for name, scopes in security.certificates.items()
        }
        self._under_way = CallsUnderWay(security.limits)
        self._failed_logins = FailedLogins(security.limits.failed_logins_per_minute)
        self._repetitions = Repetitions()
        self._lock = threading.Lock()
        self._lasting: dict[int, tuple[Call, grpc.ServicerContext]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._record_repetitions(all_of_them=True)

    # Around every call

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = continuation(handler_call_details)
        if handler is None:
            return None  # gRPC answers UNIMPLEMENTED
        method = handler_call_details.method
        rule = RULES.get(method, Rule(method.rpartition("/")[2]))
        if rule.open:
            return self._open(handler)
        deserializer = _tolerant(handler.request_deserializer)
        serializer = handler.response_serializer
        lasts = rule.lasting or handler.request_streaming
        if handler.request_streaming and handler.response_streaming:
            behaviour = self._guard_stream(handler.stream_stream, method, rule, lasts)
            return grpc.stream_stream_rpc_method_handler(behaviour, deserializer, serializer)
        if handler.response_streaming:
            behaviour = self._guard_stream(handler.unary_stream, method, rule, lasts)
            return grpc.unary_stream_rpc_method_handler(behaviour, deserializer, serializer)
        if handler.request_streaming:
            guarded = self._guard_unary(handler.stream_unary, method, rule, lasts)
            return grpc.stream_unary_rpc_method_handler(guarded, deserializer, serializer)
        guarded = self._guard_unary(handler.unary_unary, method, rule, lasts)
        return grpc.unary_unary_rpc_method_handler(guarded, deserializer, serializer)

    def _open(self, handler: Any) -> Any:
        """The handler of a method that nobody needs rights for: a stream of it is counted, by address.

        What is answered at once needs no bound.
        """
        if not handler.response_streaming:
            return handler

        def bounded(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                leave = self._under_way.enter(ANONYMOUS, context.peer(), stream=True)
            except LimitExceededError as error:
                abort(context, error)
            try:
                yield from handler.unary_stream(request, context)
            finally:
                leave()

        return grpc.unary_stream_rpc_method_handler(
            bounded, handler.request_deserializer, handler.response_serializer
        )

    def _guard_unary(self, behaviour: Any, method: str, rule: Rule, lasts: bool) -> Any:
        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            call = self._admit(request, context, method, rule, lasts)
            try:
                answer = behaviour(_checked_stream(request), context)
            except Exception as error:
                self._failed(call, context, error, left=False)
            finally:
                call.leave()
            self._record_end(call, "ok")
            return answer

        return guarded

    def _guard_stream(self, behaviour: Any, method: str, rule: Rule, lasts: bool) -> Any:
        def guarded(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            call = self._admit(request, context, method, rule, lasts)
            if rule.lasting:
                self._recorded(call, "begun")
            key = id(call)
            with self._lock:
                self._lasting[key] = (call, context)
            context.add_callback(lambda: self._ended(key))
            outcome = "cancelled"
            try:
                for answer in behaviour(_checked_stream(request), context):
                    if call.revoked:
                        raise UnauthenticatedError("the token was revoked or has expired")
                    yield answer
                outcome = "ok"
            except Exception as error:
                outcome = ""  # recorded with its reason
                self._failed(call, context, error, left=not context.is_active())
            finally:
                if outcome:
                    self._record_end(call, outcome)
                call.leave()
                self._ended(key)

        return guarded

    def _ended(self, key: int) -> None:
        with self._lock:
            self._lasting.pop(key, None)

    def _admit(
        self, request: Any, context: grpc.ServicerContext, method: str, rule: Rule, lasts: bool
    ) -> Call:
        """The call, if it may go on; else it ends here."""
        target = self._source or (str(getattr(request, rule.target, "")) if rule.target else "")
        call = Call(Principal("unknown", "none", frozenset()), context.peer(), rule.action, target)
        try:
            metadata = dict(context.invocation_metadata() or ())
            call.principal = self._principal(metadata, context)
            check(call.principal, method, rule, target)
            self._check_version(metadata)
            if isinstance(request, _Malformed):
                raise RefusedError(f"the request is not a message of {method}")
            call.leave = self._under_way.enter(call.principal, call.peer, lasts)
        except LimitExceededError as error:
            if self._repetitions.is_first(Refusal(call.principal, host_of(call.peer), call.action)):
                self._recorded(call, error.reason, error.message)
            abort(context, error)
        except LockstepError as error:
            self._recorded(call, error.reason, error.message)
            abort(context, error)
        setattr(context, _ATTRIBUTE, call)
        return call

    def _principal(self, metadata: dict[str, Any], context: grpc.ServicerContext) -> Principal:
        given = metadata.get(AUTHORIZATION) if self._tokens is not None else None
        shown: Mapping[str, Any] = context.auth_context()
        names = [name.decode("utf-8", "replace") for name in shown.get("x509_common_name", ())]
        known = self._known(given, names, context.peer())
        if known is not None:
            return known
        with self._failed_logins.attempt(host_of(context.peer())):
            return self._logged_in(given, names)

    def _known(self, given: Any, names: Sequence[str], peer: str) -> Principal | None:
        """Who is calling, if that can be told without effort; never an error."""
        if given is not None and self._tokens is not None:
            return self._tokens.recognised(_bearer(given))
        for name in names:
            if name in self._certificates:
                return self._certificates[name]
        if self._security.knows_callers:
            return None
        if names:
            return Principal(names[0], "certificate", ANONYMOUS.scopes)
        local = peer.startswith(("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "unix:"))
        return ANONYMOUS_LOOPBACK if local else ANONYMOUS

    def _logged_in(self, given: Any, names: Sequence[str]) -> Principal:
        """Who is calling, by a token that is checked now; UnauthenticatedError if there is none that is
        valid."""
        if given is not None and self._tokens is not None:
            token = _bearer(given)
            if not token:
                raise UnauthenticatedError("the authorization is not `Bearer TOKEN`")
            return self._tokens.authenticate(token)
        who = f"the certificate of {names[0]!r} is not known here" if names else "no token was sent"
        raise UnauthenticatedError(
            f"{who}; give one with LOCKSTEP_TOKEN, or `connect.token` in a mediator's file"
        )

    def _check_version(self, metadata: dict[str, Any]) -> None:
        """A caller that names its version must speak ours; tools that do not know of it are let through."""
        theirs = metadata.get(PROTOCOL)
        if theirs is not None and theirs != str(self._version):
            raise ProtocolVersionError(
                f"the caller speaks protocol version {str(theirs)[:20]}, this server {self._version}: "
                "upgrade the older one"
            )

    def _failed(self, call: Call, context: grpc.ServicerContext, error: Exception, *, left: bool) -> None:
        """End a call whose handler raised; an abort of its own has set the status already.

        `left`: it may have raised because its caller is gone.
        """
        if context.code() is not None:  # type: ignore[attr-defined]
            details = context.details()  # type: ignore[attr-defined]
            text = details.decode("utf-8", "replace") if isinstance(details, bytes) else str(details)
            reason = _reason(context)
            self._record_end(call, reason, text)
            raise error
        if isinstance(error, grpc.RpcError) or left:
            self._record_end(call, "cancelled")
            raise error
        if not isinstance(error, LockstepError):
            log.exception("%s failed unexpectedly", call.action)
            error = LockstepError(INTERNAL_ERROR)
        self._record_end(call, error.reason, error.message)
        abort(context, error)

    def _record_end(self, call: Call, outcome: str, detail: str = "") -> None:
        """Write down what came of a call: by its own word if there is one, else as it looks from here.

        One whose token was revoked was written down when it was ended for that.
        """
        call.settle()
        if call.revoked:
            return
        if call.outcome:
            outcome, detail = call.outcome, call.detail
        self._recorded(call, outcome, detail)

    def _recorded(self, call: Call, outcome: str, detail: str = "") -> None:
        self._audit.record(call.principal, call.peer, call.action, call.target, outcome, detail)

    # Beside the calls

    def _look_after(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            if self._tokens is not None:
                self._end_revoked(self._tokens)
            self._record_repetitions()

    def _end_revoked(self, tokens: TokenStore) -> None:
        with self._lock:
            lasting = list(self._lasting.values())
        for call, context in lasting:
            if call.principal.kind == "token" and not call.revoked:
                call.revoked = not tokens.still_valid(call.principal)
                if call.revoked:
                    log.warning("%s is no longer valid: its %s ends", call.principal.title, call.action)
                    self._recorded(call, UnauthenticatedError.reason, "the token was revoked or has expired")
                    with suppress(Exception):  # it may be ending by itself
                        context.cancel()

    def _record_repetitions(self, all_of_them: bool = False) -> None:
        for refusal, count in self._repetitions.due(all_of_them):
            detail = f"{count} more like the one before"
            self._audit.record(
                refusal.principal, refusal.host, refusal.action, "", LimitExceededError.reason, detail
            )


def _bearer(given: Any) -> str:
    """The token of an `authorization`; empty if it is of another kind."""
    kind, _, token = str(given).partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _reason(context: grpc.ServicerContext) -> str:
    from google.rpc import error_details_pb2, status_pb2

    for key, value in context.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            info = error_details_pb2.ErrorInfo()
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info):
                    return str(info.reason)
    return "INTERNAL"


def _tolerant(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """The deserializer, except that bytes which are no message are told apart instead of ending in gRPC."""
    if deserialize is None:
        return None

    def tolerant(data: bytes) -> Any:
        try:
            return deserialize(data)
        except (DecodeError, ValueError):
            return _Malformed()

    return tolerant


def _checked_stream(request: Any) -> Any:
    """A stream of requests that raises RefusedError at one that is no message; a single request as it is."""
    return _checked(request) if isinstance(request, Iterator) else request


def _checked(requests: Iterator[Any]) -> Iterator[Any]:
    for request in requests:
        if isinstance(request, _Malformed):
            raise RefusedError("a message on the stream is not one of the protocol")
        yield request
