"""What nobody has thought of: an error outside of the taxonomy costs one stream, or ends the process."""

import random

import pytest

from adapters.registry import create
from adapters.spi import SourceConfig
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.query_processor import QueryProcessor
from wrapper.server import WrapperServer
from wrapper.tests.follower import Follower, World


def test_what_is_behind_a_message_that_fails_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be of another stream, which is not closed and would wait in vain."""
    follower = Follower(World(random.Random(1)), 1000)
    processor, old = follower.processor, follower.session
    define = processor._define
    try:

        def fail(*_: object) -> None:
            raise RuntimeError("unexpected")

        monkeypatch.setattr(processor, "_define", fail)
        follower.define("two", 0)
        follower._send(credit=pb.Credit(rows=1))
        follower.attach()
        with pytest.raises(RuntimeError, match="unexpected"):
            processor._turn()
        assert old.credit == 0
        monkeypatch.setattr(processor, "_define", define)
        follower.settle()
        assert processor._session is follower.session
        assert follower.followed["two"].at == follower.world.position.ordinal
    finally:
        follower.close()


def test_a_server_without_its_query_processor_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be asked for ever, and never answer; whoever keeps services running sees that it has ended."""
    world = World(random.Random(1))
    adapter = create(SourceConfig("s", "memory", f"memory:///{world.database.name}"))

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(QueryProcessor, "_turn", fail)
    monkeypatch.setattr(QueryProcessor, "_fail_session", fail)
    server = WrapperServer(adapter, "127.0.0.1:0")
    server.start()
    try:
        assert server._done.wait(60)
        server.wait()
    finally:
        server.stop(0)
