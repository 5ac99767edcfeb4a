"""A replica, whose binlog and triggers may know nothing of what it replicates."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from adapters.mariadb.tests.conftest import Source, entries, position, rows
from adapters.servers.mariadb import MariaDBServer, why_not
from algebra.errors import ConfigurationError, PositionTrimmedError

Replicate = Callable[[str], None]


@pytest.fixture
def replica() -> Iterator[Source]:
    """A database on a server that is to replicate another one."""
    if reason := why_not():
        pytest.skip(reason)
    with MariaDBServer.started(("--server-id=2",)) as server:
        source = Source(server, "shop")
        source.run("CREATE TABLE item (id INT PRIMARY KEY)")
        yield source
        source.close()


@pytest.fixture
def replicate(replica: Source) -> Iterator[Replicate]:
    """Runs a statement on the other server, and waits until the replica has done it, too."""
    with MariaDBServer.started() as first:
        first.run(
            "SET sql_log_bin = 0", "CREATE DATABASE shop", "CREATE TABLE shop.item (id INT PRIMARY KEY)"
        )
        secret = first.password.replace("'", "''")
        replica.run(
            f"CHANGE MASTER TO master_host = '{first.host}', master_port = {first.port}, "
            f"master_user = '{first.user}', master_password = '{secret}', master_use_gtid = slave_pos"
        )

        def run(statement: str) -> None:
            replica.run("START SLAVE")
            ((place,),) = first.run(statement, "SELECT @@gtid_binlog_pos", database="shop")
            assert replica.run(f"SELECT MASTER_GTID_WAIT('{place}', 60)") == ((0,),)

        yield run
        replica.run("STOP SLAVE")


def test_a_replica_whose_capture_does_not_see_what_it_replicates(
    replica: Source, replicate: Replicate, capture: str
) -> None:
    adapter, start = replica.prepared(capture, "item")
    replicate("INSERT INTO item VALUES (1)")
    for again in (adapter, replica.adapter(capture)):
        with pytest.raises(ConfigurationError, match="is a replica"):
            entries(again, start)
    with pytest.raises(ConfigurationError, match="is a replica"):
        replica.adapter(capture).prepare(["item"])
    replica.run("STOP SLAVE")
    with pytest.raises(PositionTrimmedError):
        entries(adapter, start)


def test_a_replica_whose_capture_sees_what_it_replicates(
    replica: Source, replicate: Replicate, capture: str
) -> None:
    replica.server.settings += ("--log-slave-updates", "--slave-run-triggers-for-rbr=ENFORCE")
    replica.server.restart()
    adapter, start = replica.prepared(capture, "item")
    replicate("INSERT INTO item VALUES (1)")
    assert [t.deltas["item"].to_dict() for t in entries(adapter, start)] == [{(1,): 1}]
    start = position(adapter)
    replicate("INSERT INTO item VALUES (2)")
    replicate("DELETE FROM item WHERE id = 1")
    found = entries(adapter, start)
    assert len(found) == 2 or all(t.batched for t in found)
    assert rows(adapter, "item") == [(2,)]
