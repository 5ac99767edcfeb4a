"""What a source's owner allows each mediator is enforced in the wrapper, whatever the mediator sends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from adapters.registry import create
from adapters.spi import SourceConfig
from algebra.arrow_ipc import to_ipc
from algebra.errors import ForbiddenError, LimitExceededError, LockstepError, UnauthenticatedError
from algebra.expressions import Call, ColumnRef, Literal, Operator
from algebra.local_view import EquiJoin, LocalView, Occurrence, OutputColumn
from algebra.position import ORIGIN
from protos.convert import catalog_from_proto, local_view_to_proto
from protos.lockstep.v1 import wrapper_pb2 as pb
from protos.security.settings import Connection, ServerSecurity
from protos.security.tokens import TokenFile
from protos.status import error_from_rpc
from wrapper.allow_list import MediatorPolicy, Policies
from wrapper.rate_limit import RateLimit
from wrapper.server import WrapperServer
from wrapper.tests.exchange import Mediator
from wrapper.tests.sqlite_writer import SqliteWriter

INT = pa.int64()
NARROW = MediatorPolicy({"r": frozenset({"x", "y"})}, max_rows=3)


@dataclass
class Owner:
    """A wrapper whose owner knows three mediators, and what it wrote down."""

    address: str
    tokens: dict[str, str]
    audit: Path
    stack: ExitStack = field(default_factory=ExitStack)

    def mediator(self, name: str) -> Mediator:
        connection = Connection(token=self.tokens[name])
        return self.stack.enter_context(Mediator(self.address, "s", connection=connection))


@pytest.fixture
def owner(running: Owner) -> Iterator[Owner]:
    """The running wrapper; the mediators of a test leave with it."""
    with running.stack:
        yield running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    folder = tmp_path_factory.mktemp("policies")
    file = TokenFile(folder / "tokens.json")
    tokens = {name: file.create(name, ["attach:s"]) for name in ("narrow", "wide", "stranger", "stolen")}
    with SqliteWriter(folder / "s.db") as writer, ExitStack() as stack:
        writer.commit(
            "CREATE TABLE r (x INTEGER NOT NULL, y TEXT, secret TEXT NOT NULL, PRIMARY KEY (x, secret))",
            "CREATE TABLE hidden (x INTEGER)",
            "INSERT INTO r VALUES (1, 'a', 's'), (2, 'b', 's'), (3, 'c', 's')",
        )
        server = WrapperServer(
            create(SourceConfig("s", "sqlite", f"sqlite:///{folder / 's.db'}")),
            "127.0.0.1:0",
            ServerSecurity(tokens=file.path, audit=folder / "audit.jsonl"),
            Policies({"narrow": NARROW, "wide": MediatorPolicy(), "stolen": MediatorPolicy()}),
        )
        stack.callback(server.stop, 0)
        yield Owner(server.start(), tokens, folder / "audit.jsonl")


def view(**changes: object) -> LocalView:
    made = LocalView(
        "v.s", "s", (Occurrence("r", "r"),), (), (), (OutputColumn("x", ColumnRef("r", "x"), INT),)
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def shown(column: str) -> tuple[OutputColumn, ...]:
    return (OutputColumn("x", ColumnRef("r", column), pa.string()),)


TWICE = (Occurrence("r", "r"), Occurrence("o", "r"))
FORBIDDEN = {
    "a column": (view(columns=shown("secret")), "does not show column r.secret"),
    "a column that does not exist": (view(columns=shown("nothing")), "does not show column r.nothing"),
    "a join": (
        view(occurrences=TWICE, joins=(EquiJoin(ColumnRef("r", "secret"), ColumnRef("o", "secret")),)),
        "does not show column r.secret",
    ),
    "a predicate": (
        view(predicates=(Call(Operator.EQ, (ColumnRef("r", "secret"), Literal("s", pa.string()))),)),
        "does not show column r.secret",
    ),
    "a relation": (view(occurrences=(Occurrence("r", "hidden"),)), "does not show relation 'hidden'"),
    "no relation": (view(occurrences=(Occurrence("r", "nothing"),)), "does not show relation 'nothing'"),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_is_hidden_cannot_be_asked_for_in_any_way(owner: Owner, what: str) -> None:
    bad, problem = FORBIDDEN[what]
    mediator = owner.mediator("narrow")
    mediator.expect("attached")
    with pytest.raises(grpc.RpcError) as refused:
        mediator.load(bad)
    assert str(error_from_rpc(refused.value)) == f"source 's' {problem}"
    mediator.define(bad, ORIGIN)
    error = mediator.expect("error")
    assert (error.reason, error.message) == ("REFUSED", f"source 's' {problem}")
    # ECA's queries bring a definition of their own, and rows in place of a relation.
    _, position = mediator.load(view())
    mediator.define(view(), position)
    mediator.expect("defined")
    rows = pa.table({"x": pa.array([1], INT), "_count": pa.array([1], INT)})
    substitution = pb.Substitution(occurrence="r", arrow=to_ipc(rows))
    query = pb.MaintenanceQuery(
        query_id=7,
        local_view="v.s",
        definition=local_view_to_proto(bad),
        terms=[pb.Term(sign=1, substitutions=[substitution])],
    )
    mediator.send(query=query)
    error = mediator.expect("error")
    assert (error.query_id, error.message) == (7, f"source 's' {problem}")


def test_a_hidden_column_cannot_be_guessed_by_substitution(owner: Owner) -> None:
    mediator = owner.mediator("narrow")
    mediator.expect("attached")
    _, position = mediator.load(view())
    mediator.define(view(), position)
    mediator.expect("defined")
    for column in ("secret", "nothing"):
        rows = pa.table({column: ["s"], "x": pa.array([1], INT), "_count": pa.array([1], INT)})
        term = pb.Term(sign=1, substitutions=[pb.Substitution(occurrence="r", arrow=to_ipc(rows))])
        mediator.send(
            query=pb.MaintenanceQuery(
                query_id=1, local_view="v.s", definition=local_view_to_proto(view()), terms=[term]
            )
        )
        assert mediator.expect("error").message == f"rows for 'r' do not fit column {column!r}"


def test_a_mediator_is_shown_its_part_of_the_catalog(owner: Owner) -> None:
    narrow = catalog_from_proto("s", list(owner.mediator("narrow").describe().relations))
    assert list(narrow.relations) == ["r"]
    assert [column.name for column in narrow.relation("r").columns] == ["x", "y"]
    assert narrow.relation("r").key == (), "a part of a key is no key"
    wide = catalog_from_proto("s", list(owner.mediator("wide").describe().relations))
    assert sorted(wide.relations) == ["hidden", "r"]
    assert wide.relation("r").key == ("x", "secret")


def test_a_mediator_that_the_owner_does_not_name_is_shown_nothing(owner: Owner) -> None:
    mediator = owner.mediator("stranger")
    for work in (mediator.describe, mediator.receive, lambda: mediator.load(view())):
        with pytest.raises(grpc.RpcError) as refused:
            work()
        error = error_from_rpc(refused.value)
        assert isinstance(error, ForbiddenError)
        assert str(error) == "mediator 'stranger' is not one that this source is shown to"


def test_extents_and_answers_are_bounded_in_rows(owner: Owner) -> None:
    mediator = owner.mediator("narrow")
    mediator.expect("attached")
    extent, position = mediator.load(view())
    assert len(extent) == 3
    # A self-join without a condition that binds: nine rows out of three.
    pairs = replace(
        view(occurrences=TWICE, joins=()),
        name="w.s",
        columns=(OutputColumn("x", ColumnRef("r", "x"), INT), OutputColumn("o", ColumnRef("o", "x"), INT)),
    )
    with pytest.raises(grpc.RpcError) as refused:
        mediator.load(pairs)
    error: LockstepError = error_from_rpc(refused.value)
    assert isinstance(error, LimitExceededError)
    assert str(error) == "local view 'w.s' has more than the 3 rows that this mediator may read at once"
    mediator.define(pairs, position)
    mediator.expect("defined")
    asked = mediator.ask(pairs, None)
    error_message = mediator.expect("error")
    assert (error_message.query_id, error_message.reason) == (asked, "LIMIT_EXCEEDED")


def test_a_mediator_whose_token_is_revoked_is_put_out(owner: Owner) -> None:
    mediator = owner.mediator("stolen")
    mediator.expect("attached")
    _, position = mediator.load(view())
    mediator.define(view(), position)
    mediator.expect("defined")
    TokenFile(owner.audit.with_name("tokens.json")).revoke("stolen")
    with pytest.raises(grpc.RpcError):
        mediator.receive()
    with pytest.raises(grpc.RpcError) as refused:
        mediator.describe()
    assert isinstance(error_from_rpc(refused.value), UnauthenticatedError)


def test_refusals_are_written_down(owner: Owner) -> None:
    mediator = owner.mediator("narrow")
    mediator.expect("attached")
    mediator.define(view(columns=shown("secret")), ORIGIN)
    mediator.expect("error")
    records = [json.loads(line) for line in owner.audit.read_text().splitlines()]
    found = [r for r in records if (r["who"], r["action"], r["outcome"]) == ("narrow", "define", "REFUSED")]
    assert found[-1]["detail"] == "source 's' does not show column r.secret"
    assert found[-1]["target"] == "s"


def test_who_asks_too_often_waits() -> None:
    """With a clock of its own: two at once, then two per second, and none is lost."""
    now = [100.0]
    limit = RateLimit(2.0, lambda: now[0])
    assert [limit.reserve() for _ in range(5)] == [0.0, 0.0, 0.5, 1.0, 1.5]
    now[0] += 10
    assert [limit.reserve() for _ in range(3)] == [0.0, 0.0, 0.5]
    unlimited = RateLimit(None, lambda: now[0])
    assert {unlimited.reserve() for _ in range(100)} == {0.0}
    slow = RateLimit(0.01, lambda: now[0])
    slow.admit()
    with pytest.raises(LimitExceededError):
        slow.admit()
    stopped = threading.Event()
    stopped.set()
    slow.wait(stopped)  # does not hang
