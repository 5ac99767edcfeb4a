"""The table of rights: no RPC is missing, and no scope opens more than it says."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from algebra import errors
from algebra.errors import ConfigurationError, ForbiddenError
from protos.lockstep.v1 import mediator_pb2, wrapper_pb2
from protos.security.access import RULES, check
from protos.security.loopback import is_loopback
from protos.security.principals import Principal
from protos.security.settings import Connection, ServerSecurity, ServerTls
from protos.security.tls import check_exposed, open_channel
from protos.status import STATUS, error_of

FILES = (mediator_pb2, wrapper_pb2, health_pb2, reflection_pb2)
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def test_every_rpc_that_is_served_has_a_rule() -> None:
    assert RULES.keys() == METHODS.keys()


def test_a_rule_names_a_field_of_its_request() -> None:
    for name, rule in RULES.items():
        if rule.target:
            assert rule.target in METHODS[name].input_type.fields_by_name, name


def test_only_health_is_open() -> None:
    opened = {name for name, rule in RULES.items() if rule.open}
    assert opened == {name for name in METHODS if name.startswith("/grpc.health.v1.")}
    for name, rule in RULES.items():
        assert rule.open or rule.needs, f"{name} is for nobody"


def short(method: str) -> str:
    return method.rpartition("/")[2]


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        ({"read"}, {"ListViews", "GetView", "GetHistory", "GetStatus", "Explain", "Query", "WatchView"}),
        (
            {"manage"},
            {"CreateView", "DropView", "RefreshView", "CompactView", "ListViews", "GetView", "GetHistory",
             "GetStatus", "Explain"},
        ),
        ({"attach"}, {"DescribeSource", "LoadLocalView", "Exchange"}),
        ({"read:other"}, {"ListViews", "GetStatus", "Explain", "Query"}),
        ({"attach:other"}, set()),
        (set(), set()),
    ],
)  # fmt: skip
def test_a_scope_allows_what_it_says_and_nothing_else(scopes: set[str], allowed: set[str]) -> None:
    principal = Principal("p", "token", frozenset(scopes))
    found = set()
    for method, rule in RULES.items():
        on_source = "WrapperService" in method
        try:
            check(principal, method, rule, "v" if rule.target or on_source else "")
        except ForbiddenError:
            continue
        found.add(short(method))
    assert found - {"ServerReflectionInfo", "Check", "Watch", "List"} == allowed


def test_every_error_has_a_status_and_comes_back_as_itself() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.LockstepError)]
    assert set(kinds) == set(STATUS)
    assert len({kind.reason for kind in kinds}) == len(kinds)
    for kind in kinds:
        assert type(error_of(kind.reason, "m")) is kind
    assert STATUS[errors.UnauthenticatedError] is grpc.StatusCode.UNAUTHENTICATED
    assert STATUS[errors.ForbiddenError] is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1:1", True), ("127.9.9.9:1", True), ("[::1]:1", True), ("LOCALHOST:1", True),
     ("0.0.0.0:1", False), ("[::]:1", False), ("localhost.lan:1", False), ("127.0.0.1.nip.io:1", False),
     ("192.0.2.1:1", False), (":1", False)],
)  # fmt: skip
def test_what_counts_as_this_machine(address: str, local: bool) -> None:
    assert is_loopback(address) is local


def test_a_server_that_others_reach_must_be_protected() -> None:
    tls = ServerTls(Path("c"), Path("k"))
    check_exposed("127.0.0.1:0", ServerSecurity())
    check_exposed("0.0.0.0:0", ServerSecurity(insecure=True))
    check_exposed("0.0.0.0:0", ServerSecurity(tls=tls, tokens=Path("t")))
    check_exposed("0.0.0.0:0", ServerSecurity(tls=ServerTls(Path("c"), Path("k"), Path("ca"))))
    for refused in (ServerSecurity(), ServerSecurity(tokens=Path("t")), ServerSecurity(tls=tls)):
        with pytest.raises(ConfigurationError, match=r"other machines reach 0\.0\.0\.0:0"):
            check_exposed("0.0.0.0:0", refused)


def test_a_token_is_not_sent_in_plain_text_to_another_machine() -> None:
    secret = "lst_0123456789ab_canarycanary"
    with pytest.raises(ConfigurationError, match="a token is not sent in plain text") as refused:
        open_channel("192.0.2.1:7000", Connection(token=secret), 1)
    assert secret not in str(refused.value)
    with pytest.raises(ConfigurationError, match="plain text is for this machine alone"):
        open_channel("192.0.2.1:7000", Connection(), 1)
    open_channel("192.0.2.1:7000", Connection(insecure=True), 1).close()
    open_channel("127.0.0.1:7000", Connection(token=secret), 1).close()
    assert secret not in repr(Connection(token=secret))
