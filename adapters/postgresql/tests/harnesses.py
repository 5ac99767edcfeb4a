"""The conformance kit's view of PostgreSQL, for each capture, with users that have the least rights.

Usable without pytest: the server is started with the first case of a process, and stopped at its end. A
database is used by one case after the other, emptied in between.
"""

from __future__ import annotations

import atexit
import functools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow as pa

from adapters.conformance import (
    Disturbance,
    Harness,
    LoseCapture,
    Quirks,
    Sample,
    SchemaChange,
    SqlWriter,
    Writer,
    alter_table,
    altered,
    disturb_table,
    in_process,
)
from adapters.conformance.case import CaseSkipped
from adapters.postgresql.adapter import PostgresAdapter
from adapters.servers.postgresql import ORDERLY, PostgresServer, why_not
from adapters.spi import Adapter, SourceConfig
from algebra.schema import RelationSchema

DECLARED = {
    pa.int64(): "int8",
    pa.float64(): "float8",
    pa.decimal128(18, 4): "numeric(18, 4)",
    pa.decimal128(38, 10): "numeric(38, 10)",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.bool_(): "bool",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
}

OWNER = "shop_owner"
"""The role that owns the tables and writes to them."""

SAMPLES = (
    Sample("smallint", pa.int16(), (0, -1, 32767, -32768), absent=7, declared="int2"),
    Sample("int", pa.int32(), (0, -1, 2**31 - 1, -(2**31)), absent=7, declared="int4"),
    Sample("real", pa.float32(), (1.5, -0.5, 2.0**100, float("inf")), absent=7.5, declared="float4"),
    Sample(
        "uuid", pa.string(), ("00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        absent="a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12", declared="uuid",
    ),
    Sample("varchar", pa.string(), ("a", "A", "a ", "ä", ""), absent="b", declared="varchar(20)"),
    Sample("char", pa.string(), ("a", "A", "", "äö"), absent="b", declared="char(5)"),
    Sample("json", pa.string(), ('{"a":  1}', "[]", "null", '"x\\"y"'), absent="{}", declared="json"),
    Sample("jsonb", pa.string(), ('{"a": 1, "b": [1, 2]}', "[]", "null"), absent="{}", declared="jsonb"),
    Sample("array", pa.string(), ("{1,2,3}", "{}", "{NULL}", "{{1,2},{3,4}}"), absent="{7}",
           declared="int4[]"),
    Sample("text-array", pa.string(), ('{a,"b,c","d\\"e"}', '{""}', "{}"), absent="{z}", declared="text[]"),
    Sample("interval", pa.string(), ("1 day", "24:00:00", "-1 mons", "1 year 02:03:04.5"), absent="7 days",
           declared="interval"),
    Sample("inet", pa.string(), ("10.0.0.1", "10.0.0.0/8", "::1"), absent="10.0.0.2", declared="inet"),
    Sample("range", pa.string(), ("[1,5)", "empty", "(,)"), absent="[7,8)", declared="int4range"),
    Sample("enum", pa.string(), ("red", "Red", "dark blue"), absent="green", declared="public.colour"),
    Sample("domain", pa.int32(), (1, 5, 99), absent=7, declared="public.positive"),
)  # fmt: skip


class PostgresWriter(SqlWriter):
    """An application, connected as the tables' owner."""

    placeholder = "%s"
    row_id = "ctid"

    def __init__(
        self, url: str, tables: Sequence[RelationSchema], declared: dict[tuple[str, str], str]
    ) -> None:
        super().__init__(tables)
        self._connection = psycopg.connect(url, autocommit=True)
        self._declared = declared

    def sql(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        return self._connection.execute(statement.encode(), list(parameters) or None).rowcount

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""').replace("%", "%%") + '"'

    def execute(self, operation: Any) -> None:
        super().execute(operation)

    def overwrite(self, relation: str) -> Sequence[str]:
        table = self._tables[relation]
        names = [self.quote(column.name) for column in table.columns]
        key = ", ".join(self.quote(name) for name in table.key)
        sets = ", ".join(f"{name} = EXCLUDED.{name}" for name in names)
        slots = ", ".join(["%s"] * len(names))
        return [
            f"INSERT INTO {self.quote(relation)} VALUES ({slots}) ON CONFLICT ({key}) DO UPDATE SET {sets}"
        ]

    def close(self) -> None:
        self._connection.close()


@functools.cache
def server() -> PostgresServer:
    """The process's server."""
    reason = why_not()
    if reason:
        raise CaseSkipped(reason)
    stack = ExitStack()
    started = stack.enter_context(PostgresServer.started())
    atexit.register(stack.close)
    with started.connect() as connection:
        connection.execute(f"CREATE ROLE {OWNER} LOGIN")
        connection.execute("CREATE ROLE log_user LOGIN REPLICATION")
        connection.execute(f"GRANT {OWNER} TO log_user")
        connection.execute("CREATE ROLE trigger_user LOGIN")
    return started


_free: list[str] = []


class PostgresHarness(Harness):
    """A database of its own on the process's server."""

    quirks = Quirks(
        workload=40,
        samples=SAMPLES,
        skips={"bag-of-json": "json has no equality in PostgreSQL, so no row is found by its value"},
    )
    capture: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    user: ClassVar[str]
    grants: ClassVar[dict[str, str]]
    """Right -> the statement that grants it to {user}, for database {db}; all are granted to the adapter's
    user."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._server = server()
        self._tables: tuple[RelationSchema, ...] = ()
        self.database = ""

    def create(self, tables: Sequence[RelationSchema]) -> None:
        self._tables = tuple(tables)
        self.database = _free.pop() if _free else self._server.create_database()
        with self._server.connect(self.database) as connection:
            connection.execute(f"GRANT ALL ON SCHEMA public TO {OWNER}")
            connection.execute(f"GRANT CREATE ON DATABASE {self.database} TO {OWNER}")
            connection.execute("CREATE TYPE public.colour AS ENUM ('red', 'Red', 'dark blue', 'green')")
            connection.execute("CREATE DOMAIN public.positive AS int4 CHECK (value > 0)")
        with self._server.connect(self.database, OWNER) as connection:
            for table in tables:
                connection.execute(self._create_table(table).encode())
        self._grant(self.user, self.grants)

    def _create_table(self, table: RelationSchema) -> str:
        parts = [
            f"{quote(c.name)} {self.declared.get((table.name, c.name)) or DECLARED[c.type]}"
            for c in table.columns
        ]
        if table.key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quote, table.key))})")
        return f"CREATE TABLE {quote(table.name)} ({', '.join(parts)})"

    def writer(self, number: int) -> Writer:
        url = self._server.url(self.database, OWNER)
        return in_process(number, PostgresWriter, url, self._tables, dict(self.declared))

    def adapter(self, relations: tuple[str, ...] | None = None) -> Adapter:
        return self._adapter(self.user, relations)

    def _adapter(self, user: str, relations: tuple[str, ...] | None = None) -> Adapter:
        url = self._server.url(self.database, user)
        # Trim at once: the kit acknowledges a handful of entries and looks at what became of them.
        options = {"trim_seconds": 0, **self.options}
        return PostgresAdapter(SourceConfig("shop", "postgresql", url, relations, self.capture, options))

    def _grant(self, user: str, grants: dict[str, str]) -> None:
        with self._server.connect(self.database) as connection:
            for statement in grants.values():
                connection.execute(statement.format(user=user, db=self.database).encode())

    def objects(self) -> frozenset[str]:
        with self._server.connect(self.database) as connection:
            rows = connection.execute(OBJECTS).fetchall()
        return frozenset(name for (name,) in rows)

    @contextmanager
    def restarting(self) -> Iterator[None]:
        self._server.stop(ORDERLY)
        try:
            yield
        finally:
            self._server.start()

    def disconnect(self) -> None:
        with self._server.connect(self.database) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = %s AND application_name LIKE 'lockstep%%'",
                [self.database],
            )

    def alter(self, change: SchemaChange) -> None:
        self._tables = altered(self._tables, change)
        with self._server.connect(self.database, OWNER) as connection:
            connection.execute(alter_table(change, quote, DECLARED).encode())

    def disturb(self, disturbance: Disturbance) -> None:
        if isinstance(disturbance, LoseCapture):
            with self._server.connect(self.database) as connection:
                connection.execute(self.losing(disturbance.table).encode())
            return
        with self._server.connect(self.database, OWNER) as connection:
            for statement in disturb_table(disturbance, quote, self._create_table):
                connection.execute(statement.encode())
        self._grant(self.user, self.grants)

    @abstractmethod
    def losing(self, table: RelationSchema) -> str:
        """The statement that takes a table out of capture."""

    def without_right(self, right: str) -> Adapter:
        user = f"without_{right.replace(' ', '_')}_{self.capture}"
        with self._server.connect(self.database) as connection:
            exists = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [user]).fetchone()
            if exists is None:
                connection.execute(f"CREATE ROLE {user} LOGIN".encode())
        self._grant(user, {name: grant for name, grant in self.grants.items() if name != right})
        return self._adapter(user)

    def history_size(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """Empty the database for the next case."""
        if not self.database:
            return
        with self._server.connect(self.database) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <>"
                " pg_backend_pid()",
                [self.database],
            )
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = current_database() AND NOT temporary"
            )
            connection.execute("DROP PUBLICATION IF EXISTS _lockstep")
            connection.execute("DROP SCHEMA IF EXISTS _lockstep CASCADE")
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        _free.append(self.database)
        self.database = ""


class LogHarness(PostgresHarness):
    """Followed by logical decoding, as a member of the role that owns the tables."""

    capture = "log"
    user = "log_user"
    rights = ("replication", "owner")
    grants: ClassVar[dict[str, str]] = {
        "replication": "ALTER ROLE {user} REPLICATION",
        "owner": f"GRANT {OWNER} TO {{user}}",
        "create": "GRANT CREATE ON DATABASE {db} TO {user}; GRANT USAGE, CREATE ON SCHEMA public TO {user}",
        "select": "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}",
    }

    def losing(self, table: RelationSchema) -> str:
        return f"ALTER PUBLICATION _lockstep DROP TABLE {quote(table.name)}"

    def history_size(self) -> int:
        with self._server.connect(self.database) as connection:
            row = connection.execute(
                "SELECT (pg_current_wal_insert_lsn() - confirmed_flush_lsn)::int8 FROM pg_replication_slots"
                " WHERE database = current_database() AND NOT temporary"
            ).fetchone()
        assert row is not None
        return int(row[0])


class TriggerHarness(PostgresHarness):
    """Followed by triggers, as a user with grants on the tables."""

    capture = "trigger"
    options: ClassVar[dict[str, Any]] = {"notify": True}
    user = "trigger_user"
    rights = ("select", "trigger", "create on database", "create on schema")
    grants: ClassVar[dict[str, str]] = {
        "usage": "GRANT USAGE ON SCHEMA public TO {user}",
        "select": "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}",
        "trigger": "GRANT TRIGGER ON ALL TABLES IN SCHEMA public TO {user}",
        "create on database": "GRANT CREATE ON DATABASE {db} TO {user}",
        "create on schema": "GRANT CREATE ON SCHEMA public TO {user}",
    }

    def losing(self, table: RelationSchema) -> str:
        return f"ALTER TABLE {quote(table.name)} DISABLE TRIGGER USER"

    def history_size(self) -> int:
        with self._server.connect(self.database) as connection:
            row = connection.execute("SELECT count(*) FROM _lockstep.commits").fetchone()
        assert row is not None
        return int(row[0])


HARNESSES = {"log": LogHarness, "trigger": TriggerHarness}

OBJECTS = """
    SELECT 'relation ' || n.nspname || '.' || c.relname || ' ' || c.relkind::text
           || ' ' || c.relreplident::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname !~ '^pg_'
    UNION ALL SELECT 'trigger ' || tgname || ' on ' || tgrelid::regclass FROM pg_trigger WHERE NOT
    tgisinternal UNION ALL SELECT 'function ' || p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON
    n.oid = p.pronamespace
              WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    UNION ALL SELECT 'publication ' || pubname FROM pg_publication
    UNION ALL SELECT 'published ' || prrelid::regclass FROM pg_publication_rel
    UNION ALL SELECT 'slot ' || slot_name FROM pg_replication_slots
              WHERE database = current_database() AND NOT temporary
"""


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
