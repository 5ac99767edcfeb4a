"""What a mediator is told when something goes wrong in the source: no values, and nothing that is hidden."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from adapters.memory import MemoryAdapter, MemoryDatabase
from adapters.registry import create
from adapters.spi import Changes, Snapshot, SourceConfig
from algebra.errors import INTERNAL_ERROR, DataError, LockstepError, ProtocolVersionError, RefusedError
from algebra.expressions import Call, ColumnRef, Literal, Operator
from algebra.local_view import Keys, LocalView, Occurrence, OutputColumn
from algebra.position import Position
from protos.lockstep.v1 import wrapper_pb2 as pb
from protos.status import BY_REASON, error_from_rpc, error_of
from wrapper import query_processor
from wrapper.allow_list import EVERYONE_ELSE, UNRESTRICTED, MediatorPolicy, Policies
from wrapper.localized_processor import localize
from wrapper.message_queue import OrderMessageQueue
from wrapper.query_processor import QueryProcessor
from wrapper.server import WrapperServer
from wrapper.session import Arrival, Session
from wrapper.tests.exchange import Mediator
from wrapper.tests.sqlite_writer import SqliteWriter

INT = pa.int64()
SSN = "123-45-6789"
NAMES_ONLY = MediatorPolicy({"people": frozenset({"name"})})
NAMES = LocalView(
    "v",
    "f",
    (Occurrence("o", "people"),),
    (),
    (),
    (OutputColumn("name", ColumnRef("o", "name"), pa.string()),),
)


@contextmanager
def attached(config: SourceConfig, policy: MediatorPolicy) -> Iterator[Mediator]:
    """A mediator with that policy, attached to a wrapper of that source."""
    server = WrapperServer(create(config), "127.0.0.1:0", policies=Policies({EVERYONE_ELSE: policy}))
    try:
        with Mediator(server.start(), config.name) as mediator:
            mediator.expect("attached")
            yield mediator
    finally:
        server.stop(0)


def refused_load(mediator: Mediator, view: LocalView) -> LockstepError:
    with pytest.raises(grpc.RpcError) as refused:
        mediator.load(view)
    return error_from_rpc(refused.value)


TOLD = {
    "narrow": (
        NAMES_ONLY,
        "source 'f': it holds a value or a row that does not fit its declaration; "
        "the log of its wrapper tells more",
    ),
    "wide": (UNRESTRICTED, "relation f.people has more than one row with the same key"),
}


@pytest.mark.parametrize("who", TOLD)
def test_values_of_a_key_stay_at_the_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    policy, expected = TOLD[who]
    people = tmp_path / "people.csv"
    people.write_text(f"ssn,name\n{SSN},ann\n222-22-2222,bob\n")
    options = {"relations": {"people": {"key": ["ssn"]}}}
    with attached(SourceConfig("f", "files", f"files:///{tmp_path}", options=options), policy) as mediator:
        _, position = mediator.load(NAMES)
        mediator.define(NAMES, position)
        mediator.expect("defined")
        mediator.credit()
        people.write_text(f"ssn,name\n{SSN},ann\n222-22-2222,bob\n{SSN},eve\n")
        error = mediator.expect("error")
        assert (error.reason, error.message) == ("DATA", expected)
        assert str(refused_load(mediator, NAMES)) == expected
    written = {record.name for record in caplog.records if SSN in record.getMessage()}
    assert written == {"wrapper.query_processor", "wrapper.service"}, "the owner reads which, both times"


DRIFT = {
    "narrow": (
        MediatorPolicy({"r": None}),
        "source 's': a relation of it has changed, and has to be prepared again; "
        "the log of its wrapper tells more",
    ),
    "wide": (UNRESTRICTED, "relation s.payroll has to be prepared again: its columns changed"),
}


@pytest.mark.parametrize("who", DRIFT)
def test_a_hidden_relation_that_changes_is_not_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    policy, expected = DRIFT[who]
    view = LocalView(
        "v", "s", (Occurrence("r", "r"),), (), (), (OutputColumn("x", ColumnRef("r", "x"), INT),)
    )
    config = SourceConfig("s", "sqlite", f"sqlite:///{tmp_path / 's.db'}")
    with SqliteWriter(tmp_path / "s.db") as writer:
        writer.commit("CREATE TABLE r (x INTEGER)", "CREATE TABLE payroll (ssn TEXT, pay INTEGER)")
        owner = create(config)
        owner.prepare(["payroll"])
        owner.close()
        with attached(config, policy) as mediator:
            _, position = mediator.load(view)
            mediator.define(view, position)
            mediator.expect("defined")
            mediator.credit()
            writer.commit("ALTER TABLE payroll RENAME COLUMN pay TO salary")
            error = mediator.expect("error")
    assert error.reason == "SCHEMA_CHANGED"
    assert error.message.startswith(expected)
    (written,) = [r.getMessage() for r in caplog.records if "reporting of v failed" in r.getMessage()]
    assert "relation s.payroll" in written, "the owner is told which"


def test_whatever_a_source_says_a_mediator_with_a_list_is_not_told() -> None:
    secret = "column payroll.ssn of 123-45-6789"
    for reason, kind in BY_REASON.items():
        error = error_of(reason, secret)
        assert UNRESTRICTED.told(error, "s") is error
        told = NAMES_ONLY.told(error, "s")
        if issubclass(kind, RefusedError | ProtocolVersionError):
            assert told is error, "that is about what it sent"
        else:
            assert told.reason == reason
            assert "payroll" not in told.message
            assert told.message.startswith("source 's': ")


def test_words_of_an_exception_stay_at_the_source(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(query_processor, "RETRY_SECONDS", 0.0)
    database = MemoryDatabase("troubles")
    adapter = MemoryAdapter(SourceConfig("m", "memory", f"memory:///{database.name}"))
    processor = QueryProcessor(adapter)
    session = Session("test", OrderMessageQueue(1 << 20))
    attach = pb.ExchangeRequest(attach=pb.Attach(mediator="test", source="m"))
    processor.messages.put(Arrival(session, attach))

    def broken() -> Snapshot:
        processor.stop()
        raise ValueError(f"odd value {SSN}")

    monkeypatch.setattr(adapter, "snapshot", broken)
    processor.run()
    errors = [response.error for response in session.queue if response.HasField("error")]
    assert [(error.reason, error.message) for error in errors] == [("INTERNAL", INTERNAL_ERROR)]
    assert SSN in caplog.text, "the owner reads what happened"


class OneRow(Snapshot):
    """Shows one row, whatever is asked."""

    position = Position(1)

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        raise NotImplementedError

    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        return pa.table({"name": [SSN]}).to_reader()


def test_a_predicate_that_cannot_be_decided_tells_no_value() -> None:
    predicate = Call(Operator.EQ, (ColumnRef("o", "name"), Literal(1, INT)))
    view = LocalView(NAMES.name, NAMES.source, NAMES.occurrences, (), (predicate,), NAMES.columns)
    with pytest.raises(DataError) as caught:
        list(localize(view, None).answer(OneRow()))
    assert str(caught.value) == "local view 'v': its predicates cannot be decided for some row"
