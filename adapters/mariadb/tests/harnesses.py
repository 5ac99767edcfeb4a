"""MariaDB databases for the conformance kit, with log capture and with trigger capture.

One server serves all cases of a process; each has a database of its own, and a user for the adapter that has
the rights which the documentation asks for, and no others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pymysql
from pymysql.constants import CLIENT

from adapters.conformance import (
    CaseSkipped,
    Disturbance,
    Harness,
    LoseCapture,
    Quirks,
    RetypeColumn,
    Sample,
    SchemaChange,
    Stored,
    Writer,
    alter_table,
    altered,
    disturb_table,
    in_process,
)
from adapters.conformance.operations import Row
from adapters.mariadb.adapter import MariaDBAdapter
from adapters.mariadb.sql import quote
from adapters.mariadb.tests.deadlocks import PatientWriter
from adapters.mariadb.tests.server import shared_server
from adapters.servers.mariadb import why_not
from adapters.spi import Adapter, SourceConfig
from algebra.schema import Column, RelationSchema

DECLARED = {
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.decimal128(18, 4): "DECIMAL(18, 4)",
    pa.decimal128(38, 10): "DECIMAL(38, 10)",
    pa.string(): "LONGTEXT",
    pa.binary(): "LONGBLOB",
    pa.bool_(): "BOOLEAN",
    pa.date32(): "DATE",
    pa.timestamp("us"): "DATETIME(6)",
    pa.timestamp("us", "UTC"): "TIMESTAMP(6)",
}

"""The server has rolled the transaction back; an application tries again."""

SECRET = "wrapper's secret"

SAMPLES = (
    Sample("tiny", pa.int8(), (0, 1, -1, 127, -128), absent=7, declared="TINYINT"),
    Sample("small", pa.int16(), (0, -1, 2**15 - 1, -(2**15)), absent=7, declared="SMALLINT"),
    Sample("medium", pa.int32(), (0, -1, 2**23 - 1, -(2**23)), absent=7, declared="MEDIUMINT"),
    Sample("int", pa.int32(), (0, -1, 2**31 - 1, -(2**31)), absent=7, declared="INT"),
    Sample("unsigned-tiny", pa.uint8(), (0, 1, 128, 255), absent=7, declared="TINYINT UNSIGNED"),
    Sample("unsigned-medium", pa.uint32(), (0, 1, 2**24 - 1), absent=7, declared="MEDIUMINT UNSIGNED"),
    Sample("unsigned-big", pa.uint64(), (0, 1, 2**63, 2**64 - 1), absent=7, declared="BIGINT UNSIGNED"),
    Sample("single", pa.float32(), (0.0, 1.5, -0.25, 16777216.0), absent=7.0, declared="FLOAT"),
    Sample(
        "fraction",
        pa.decimal128(20, 20),
        (Decimal("0." + "1234567890" * 2), Decimal("-0." + "0" * 19 + "1"), Decimal("0." + "0" * 20)),
        absent=Decimal("0.5" + "0" * 19),
        declared="DECIMAL(20, 20)",
    ),
    Sample("whole-decimal", pa.decimal128(12, 0), tuple(map(Decimal, ("-123456789012", "7", "0"))),
           absent=Decimal(9), declared="DECIMAL(12, 0)"),
    Sample("char", pa.string(), ("a", "A", "", "ä", "five5"), absent="x", declared="CHAR(5)"),
    Sample("latin", pa.string(), ("a", "A", "a ", "é", "€", "ÿ"), absent="x",
           declared="VARCHAR(300) CHARACTER SET latin1"),
    Sample("utf16", pa.string(), ("a", "A", "表", "😀"), absent="x",
           declared="VARCHAR(60) CHARACTER SET utf16"),
    Sample("unpadded", pa.string(), ("a", "a ", "A"), absent="x",
           declared="VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_nopad_ci"),
    Sample("fixed-binary", pa.binary(), (b"abc\0\0", b"\0\0\0\0\0", b"\xff\0\xff\0\xff"), absent=b"12345",
           declared="BINARY(5)"),
    Sample("year", pa.int16(), (1901, 2155, 2024, 0), absent=1999, declared="YEAR"),
    Sample("bit", pa.uint64(), (0, 1, 513, 1023), absent=5, declared="BIT(10)"),
    Sample("wide-bit", pa.uint64(), (0, 2**64 - 1, 2**63), absent=5, declared="BIT(64)"),
    Sample("enum", pa.string(), ("red", "Blue", "it's", "ä"), absent="green",
           declared="ENUM('red', 'Blue', 'it''s', 'ä')"),
    Sample("set", pa.string(), ("", "a", "a,c", "b,c", "a,b,c"), absent="b", declared="SET('a', 'b', 'c')"),
    Sample("json", pa.string(), ('{"a": [1, null]}', "[]", '"x"'), absent="{}", declared="JSON"),
    Sample("time", pa.time64("us"), (time(0), time(23, 59, 59, 999999), time(12, 30), time(1, 2, 3, 400000)),
           absent=time(5), declared="TIME(6)"),
    Sample("short-time", pa.time64("us"), (time(0), time(23, 59, 59), time(1, 2, 3)), absent=time(5),
           declared="TIME"),
    Sample("milliseconds", pa.timestamp("us"),
           (datetime(2024, 2, 29, 1, 2, 3, 456000), datetime(1000, 1, 1), datetime(9999, 12, 31, 23, 59, 59)),
           absent=datetime(2000, 1, 1), declared="DATETIME(3)"),
)  # fmt: skip


LOGGED = ("unsigned-big", "single", "latin", "unpadded", "fixed-binary", "bit", "enum", "set", "time")


class MariaDBWriter(PatientWriter):
    """An application with PyMySQL; made in the writer process."""

    placeholder = "%s"

    def __init__(self, port: int, user: str, password: str, database: str, tables: Any, mode: str) -> None:
        super().__init__(tables)
        self._connection = pymysql.connect(
            host="127.0.0.1", port=port, user=user, password=password, database=database, charset="utf8mb4",
            autocommit=True, ssl_disabled=True, client_flag=CLIENT.FOUND_ROWS,
            init_command=f"SET time_zone = '+00:00', innodb_lock_wait_timeout = 60, sql_mode = '{mode}'",
        )  # fmt: skip
        # Without a key a row is found by reading all; this way the others are not kept locked.
        self.sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def sql(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        with self._connection.cursor() as cursor:
            return int(cursor.execute(statement, tuple(parameters) or None))

    def quote(self, name: str) -> str:
        return quote(name).replace("%", "%%")

    def fill(self, relation: str, first: int, count: int) -> str:
        return f"INSERT INTO {quote(relation)} SELECT seq, seq FROM seq_{first}_to_{first + count - 1}"

    def overwrite(self, relation: str) -> Sequence[str]:
        table = self._tables[relation]
        slots = ", ".join(["%s"] * len(table.columns))
        names = [self.quote(column.name) for column in table.columns]
        updates = ", ".join(f"{name} = VALUES({name})" for name in names)
        into = f"INTO {self.quote(relation)} VALUES ({slots})"
        return [f"INSERT {into} ON DUPLICATE KEY UPDATE {updates}", f"REPLACE {into}"]

    def _one(self, relation: str, row: Row) -> tuple[str, list[Any]]:
        """A condition that picks exactly one copy of the row; text is compared by its bytes."""
        table = self._tables[relation]
        columns = [c for c in table.columns if c.name in table.key] if table.key else table.columns
        values = self._values(row)
        parts, parameters = [], []
        for column, value in zip(table.columns, values, strict=True):
            if column in columns:
                name = self.quote(column.name)
                text = pa.types.is_string(column.type) and not table.key
                parts.append(
                    f"BINARY CONVERT({name} USING utf8mb4) <=> BINARY %s" if text else f"{name} <=> %s"
                )
                parameters.append(value)
        return f"{' AND '.join(parts)} LIMIT 1", parameters

    def parameter(self, value: Any) -> Any:
        match value:
            case datetime():
                return value.replace(tzinfo=None).isoformat(sep=" ")
            case date() | time():
                return value.isoformat()
            case float():
                return repr(value) if not value.is_integer() else value
        return value

    def close(self) -> None:
        self._connection.close()


class MariaDBHarness(Harness):
    """A database of the shared server, followed by its binlog."""

    quirks = Quirks(
        stored={
            pa.float64(): Stored(
                pa.float64(),
                "MariaDB has no infinities and no NaN, and reads -0.0 as 0.0 from a statement",
                convert=lambda value: value + 0.0 if value is not None else None,
                holds=math.isfinite,
            ),
            pa.timestamp("us", "UTC"): Stored(
                pa.timestamp("us", "UTC"),
                "a MariaDB TIMESTAMP lies between 1970 and 2038",
                holds=lambda value: 1970 < value.year < 2038,
            ),
        },
        writers=3,
        case_sensitive_names=False,
        workload=40,
        patience=60.0,
        # InnoDB keeps a row of 8 kB in a page; of longer ones, text is kept elsewhere, 20 bytes stay.
        columns=190,
        samples=SAMPLES,
        skips=dict.fromkeys(
            ("ugly-table-names", "ugly-column-names"),
            "names have no characters beyond the Basic Multilingual Plane; test_names.py tries all others",
        ),
        no_trimming="the server expires its own binlog; the adapter has no history to trim",
    )
    capture = "log"
    rights: ClassVar[tuple[str, ...]] = (
        "SELECT", "REPLICATION SLAVE", "BINLOG MONITOR", "CREATE", "DROP", "INSERT", "DELETE",
    )  # fmt: skip
    server_rights: ClassVar[tuple[str, ...]] = ("REPLICATION SLAVE", "BINLOG MONITOR")
    options: ClassVar[Mapping[str, Any]] = {"trim_seconds": 0}
    mode = ""
    """The sql_mode of writers: as lenient as old applications have it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        if reason := why_not():
            raise CaseSkipped(reason)
        self.server = shared_server()
        self.database = self.server.create_database()
        self.user = f"u_{self.database}"
        self._tables: tuple[RelationSchema, ...] = ()

    def create(self, tables: Sequence[RelationSchema]) -> None:
        self._tables = tuple(tables)
        self.server.run(*(self._create_table(table) for table in tables), database=self.database)
        self.server.run(*self.grants(self.user, self.rights))

    def grants(self, user: str, rights: Sequence[str]) -> list[str]:
        """The statements that make a user with these rights and no others."""
        there = [right for right in rights if right not in self.server_rights]
        everywhere = [right for right in rights if right in self.server_rights]
        account = f"`{user}`@'%'"
        statements = [f"CREATE USER {account} IDENTIFIED BY '{SECRET.replace(chr(39), chr(39) * 2)}'"]
        if there:
            statements.append(f"GRANT {', '.join(there)} ON `{self.database}`.* TO {account}")
        if everywhere:
            statements.append(f"GRANT {', '.join(everywhere)} ON *.* TO {account}")
        return statements

    def writer(self, number: int) -> Writer:
        server = self.server
        return in_process(
            number, MariaDBWriter, server.port, server.user, server.password, self.database, self._tables,
            self.mode,
        )  # fmt: skip

    def adapter(self, relations: tuple[str, ...] | None = None) -> Adapter:
        return self.adapter_of(self.user, relations)

    def adapter_of(self, user: str, relations: tuple[str, ...] | None = None) -> Adapter:
        url = self.server.url(self.database, user, SECRET)
        return MariaDBAdapter(
            SourceConfig("shop", "mariadb", url, relations, self.capture, dict(self.options))
        )

    def objects(self) -> frozenset[str]:
        rows = self.server.run(
            "SELECT CONCAT('table ', TABLE_NAME) FROM information_schema.TABLES "
            f"WHERE TABLE_SCHEMA = '{self.database}' UNION ALL "
            "SELECT CONCAT('trigger ', TRIGGER_NAME) FROM information_schema.TRIGGERS "
            f"WHERE TRIGGER_SCHEMA = '{self.database}' UNION ALL "
            "SELECT CONCAT('routine ', ROUTINE_NAME) FROM information_schema.ROUTINES "
            f"WHERE ROUTINE_SCHEMA = '{self.database}'"
        )
        return frozenset(name for (name,) in rows)

    @contextmanager
    def restarting(self) -> Iterator[None]:
        self.server.stop()
        try:
            yield
        finally:
            self.server.start()

    def disconnect(self) -> None:
        rows = self.server.run(f"SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{self.user}'")
        for (number,) in rows:
            with closing(self.server.connect()) as connection, connection.cursor() as cursor:
                try:
                    cursor.execute(f"KILL CONNECTION {number}")
                except pymysql.err.OperationalError as error:
                    if error.args[0] != 1094:  # gone by itself
                        raise

    def alter(self, change: SchemaChange) -> None:
        self._tables = altered(self._tables, change)
        statement = alter_table(change, quote, DECLARED)
        if isinstance(change, RetypeColumn):
            declared = DECLARED[change.type]
            statement = f"ALTER TABLE {quote(change.relation)} MODIFY {quote(change.column)} {declared}"
        self.server.run(statement, database=self.database)

    def disturb(self, disturbance: Disturbance) -> None:
        if isinstance(disturbance, LoseCapture):
            statements = self.losing(disturbance.table)
        else:
            statements = disturb_table(disturbance, quote, self._create_table)
        self.server.run(*statements, database=self.database)

    def losing(self, table: RelationSchema) -> list[str]:
        """The statements that take a table out of capture: the whole of it, for the log is the server's."""
        return [f"DROP TABLE {name.partition(' ')[2]}" for name in self.objects() if " _lockstep" in name]

    def without_right(self, right: str) -> Adapter:
        user = f"{self.user}_{self.rights.index(right)}"
        self.server.run(*self.grants(user, [r for r in self.rights if r != right]))
        return self.adapter_of(user)

    def _create_table(self, table: RelationSchema) -> str:
        parts = [f"{quote(c.name)} {self._declared(table, c)}" for c in table.columns]
        if table.key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quote, table.key))})")
        return f"CREATE TABLE {quote(table.name)} ({', '.join(parts)}) ENGINE = InnoDB"

    def _declared(self, table: RelationSchema, column: Column) -> str:
        declared = self.declared.get((table.name, column.name)) or DECLARED[column.type]
        if column.name in table.key and declared == "LONGTEXT":
            declared = "VARCHAR(255)"
        return f"{declared} {'NOT NULL' if column.name in table.key else 'NULL'}"


class MariaDBTriggerHarness(MariaDBHarness):
    """The same, followed by triggers."""

    quirks = replace(
        MariaDBHarness.quirks,
        # Logs are read as tables are; what needs a decoder of its own in the binlog is not tried again.
        samples=tuple(sample for sample in SAMPLES if sample.name in LOGGED),
        no_trimming="",
        no_drift={
            "drop-column": "MariaDB refuses writes to a table whose triggers name a column that is gone; "
            "owners remove capture before they drop one"
        },
    )
    capture = "trigger"
    rights = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "TRIGGER", "PROCESS")
    server_rights: ClassVar[tuple[str, ...]] = ("PROCESS",)

    def losing(self, table: RelationSchema) -> list[str]:
        found = self.server.run(
            f"SHOW TRIGGERS FROM {self.database} WHERE `Table` = '{table.name}'", database=self.database
        )
        return [f"DROP TRIGGER {quote(row[0])}" for row in found]

    def history_size(self) -> int:
        logs = self.server.run(
            "SELECT TABLE_NAME FROM information_schema.TABLES "
            f"WHERE TABLE_SCHEMA = '{self.database}' AND TABLE_NAME LIKE '\\_lockstep\\_log\\_%'"
        )
        return sum(
            int(self.server.run(f"SELECT COUNT(*) FROM {name}", database=self.database)[0][0])
            for (name,) in logs
        )


HARNESSES = {"log": MariaDBHarness, "trigger": MariaDBTriggerHarness}
"""By capture style, for `lockstep bench capture`."""
