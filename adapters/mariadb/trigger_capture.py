"""Trigger capture: change logs inside the source, put into an order by what snapshots see.

Problem: from log rows that triggers wrote, tell what was committed since the last snapshot, in an order that
is the same whenever it is read again.

Wrong ways:
- The numbers of the log rows: drawn when a statement runs. A transaction with small numbers may commit after
  one with large ones, so "all after number n" loses it.
- The largest number seen, with a list of gaps to look at again: rolled back work leaves gaps that never fill,
  and nothing without further rights tells them from work that is still open.
- Transaction ids: `information_schema.INNODB_TRX` is a cache that is a tenth of a second old.

Chosen way: a log row has a column `batch`, NULL until a snapshot sees the row. Opening one, the adapter
reads which rows it shows with `batch` NULL; these are exactly the transactions that have committed since the
last snapshot, each as a whole. In a second, short transaction it writes the next batch number into them, and
notes the batch. So an order once told is stored, whoever asks again; a row whose transaction is open stays
NULL, however small its number, until a later snapshot sees it.

Two adapters on one source must not number side by side: the batch in which a snapshot believes to be the last
is compared under a lock. Whoever comes second drops the snapshot and takes a new one.

A batch is one entry. Within it, the order of commits is not known. Where the server writes a binlog, log rows
carry a name of their transaction; an entry whose rows all have the same one is exact, any other is marked as
batched.

TRUNCATE fires no trigger. It is noticed by the table's internal number, which takes the right PROCESS to see;
`prepare` refuses to go without. Who promises that nobody truncates (`truncate: never`) is spared that right;
then only a counter that went back, of a table with AUTO_INCREMENT, tells of a promise that was not kept.

Nor does ALTER TABLE fire one, and it may leave new values under old names: a column that is dropped and added
again, two that change places. Where the table is rebuilt, it has another number. Where it is not (instant
alterations), nothing that can be asked of the table itself is another but the second in which its definition
was written, as it is when an index is added; and the server counts its instant alterations, of all tables
together. If both have moved between two looks, the table may have been altered so.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adapters.global_marks import MARKER
from adapters.mariadb import trigger_layout as layout
from adapters.mariadb.catalog import SourceTable, SourceTables
from adapters.mariadb.connection import Connection
from adapters.mariadb.fetch import ResultColumn, Select, batches
from adapters.mariadb.history import (
    MAY_DROP,
    META,
    RELATIONS,
    SNAPSHOT,
    Capture,
    Followed,
    Installed,
    Prepared,
    drift,
    is_replica,
    listing,
    read_installed,
    relation_row,
    removal,
    set_fact,
)
from adapters.mariadb.options import TRIGGER
from adapters.mariadb.trigger_history import INTEGER, TEXT, Batch, TriggerHistory
from adapters.spi import Boundaries, Capabilities, CaptureProfile
from algebra.errors import ConfigurationError, LockstepError, SourceUnavailableError
from algebra.position import Position

_TRIES = 20
_RANGES = 500
"""Ranges of log rows in one statement."""
_TRUNCATED = "truncated"


def _named_in_file(part: str) -> str:
    """SQL: the name that a part of a file's name stands for."""
    return f"CONVERT(CONVERT(CAST({part} AS BINARY) USING filename) USING utf8mb4)"


_TABLE_FILE = "SUBSTRING_INDEX(SUBSTRING_INDEX(SUBSTRING_INDEX(NAME, '/', -1), '#P#', 1), '#p#', 1)"
_NUMBERS = f"""
    SELECT {_named_in_file(_TABLE_FILE)}, TABLE_ID FROM information_schema.INNODB_SYS_TABLES
    WHERE {_named_in_file("SUBSTRING_INDEX(NAME, '/', 1)")} = DATABASE() ORDER BY NAME"""
"""The internal number of each table of the database, of a partitioned one several."""
_ALTERATIONS = "SHOW GLOBAL STATUS LIKE 'Innodb_instant_alter_column'"
_RUN = "SELECT UUID_SHORT() >> 24, NOW() - INTERVAL 2 SECOND"
"""What differs from one run of the server to the next, and the end of the seconds that are over for long."""
JUST_NOW = "?"
"""Follows a second that is not over for long: more may happen, or have happened, in it."""
_LONG = 160
"""What there is room for of a table's numbers, in letters."""


PROFILE = CaptureProfile(
    Capabilities(
        capture=TRIGGER, boundaries=Boundaries.WHERE_KNOWN, global_transactions=True, bounded_runs=True
    ),
    rights="SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, TRIGGER on the database; "
    "PROCESS to notice TRUNCATE (or `truncate: never`)",
    load="triggers copy each changed row into a log table, which the wrapper numbers and trims",
)


class _Overtaken(Exception):
    """Another adapter has numbered what this snapshot shows."""


@dataclass(frozen=True)
class Identity:
    """What tells a table, and what is under its names, from another one; `numbers` is empty if not known.

    `alterations`: how many instant alterations there were in which run of the server.
    """

    numbers: str = ""
    defined: str = ""
    alterations: str = ""

    @classmethod
    def of(cls, noted: str) -> Identity:
        """From its text form; that of earlier versions had the numbers alone."""
        return cls(*noted.split("|")) if noted else cls()

    @property
    def text(self) -> str:
        return "|".join((self.numbers, self.defined, self.alterations)) if self.numbers else ""

    def may_have_become(self, now: Identity) -> bool:
        """Whether a table with these numbers may have had other columns put under its names since."""
        if not self.alterations or self.alterations == now.alterations:
            return False
        if self.defined.strip(JUST_NOW) != now.defined.strip(JUST_NOW):
            return True
        # Twice in one second: nobody restarts a server within that.
        return self.defined.endswith(JUST_NOW) and self.run == now.run

    @property
    def run(self) -> str:
        return self.alterations.partition(".")[0]


@dataclass(frozen=True)
class Definitions:
    """What the server tells of its tables' definitions, beyond what they are: numbers by table.

    `settled`: what was written up to that second was written before its alterations were counted.
    """

    numbers: Mapping[str, str]
    alterations: str
    settled: str

    @classmethod
    def read(cls, connection: Connection) -> Definitions:
        """As of now. To be read before the tables: an alteration that is counted has been written by then.

        One that is not may be written by then, however long it takes until the tables are read.
        """
        run, settled = connection.row(_RUN)
        ((_, count),) = connection.rows(_ALTERATIONS)
        return cls(_numbers(connection), f"{run}.{count}", str(settled))

    def identity(self, table: SourceTable) -> Identity:
        """What is to be noted of a table."""
        defined = table.defined if table.defined < self.settled else f"{table.defined}{JUST_NOW}"
        return Identity(self.numbers.get(table.name, ""), defined, self.alterations)


class TriggerCapture(Capture):
    """Installs the logs, numbers what snapshots see in them, and trims them."""

    def __init__(self, followed: Followed) -> None:
        super().__init__(followed)
        self._writer: Connection | None = None
        self._logs: tuple[str, ...] | None = None
        self._are_named = False
        self._counters: dict[str, int] = {}
        self._trimmed_at = followed.clock()

    # Installing

    def plan(self, connection: Connection, tables: SourceTables, names: Sequence[str]) -> list[str]:
        wanted = tables.select(names)
        for table in wanted:
            table.capturable(self._source)
        log_bin, log_format = connection.row("SELECT @@global.log_bin, @@global.binlog_format")
        if log_bin and log_format == "STATEMENT":
            raise ConfigurationError(
                f"source {self._source!r}: capture `trigger` needs the server setting binlog_format = ROW or "
                "MIXED, or no binlog"
            )
        self.require_sight(connection, follows=False)
        installed = read_installed(connection, self._database)
        triggers = _triggers(connection, self._database)
        steps: list[str] = []
        if installed.epoch:
            installed.require(self._source, TRIGGER)
            if MARKER not in installed.own or layout.MARK_TRIGGER not in triggers:
                steps += layout.create_marker()
        else:
            # What an interrupted prepare or remove has left counts for nothing.
            steps.append(MAY_DROP)
            steps += [layout.drop_trigger(name) for name in triggers if name != layout.MARK_TRIGGER]
            steps += [f"DROP TABLE {name}" for name in _log_tables(installed)]
            if RELATIONS in installed.own:
                steps.append(f"DELETE FROM {RELATIONS}")
            installed, triggers = Installed(installed.own), {}
            steps += layout.create_base(TRIGGER)
        definitions = Definitions.read(connection)
        facts = installed.facts
        broken = {
            p.name: p
            for p in installed.relations
            if self._problem(p, tables, triggers, definitions, facts.get(layout.made(p.number)))
        }
        for prepared in broken.values():
            # It stays on the list, now without triggers: should this end here, it is still known as broken.
            ours = layout.trigger_names(prepared.number)
            steps += [layout.drop_trigger(name) for name in ours if name in triggers]
        stray = set(_log_tables(installed)) - {layout.log_table(p.number) for p in installed.relations}
        steps += [f"DROP TABLE {name}" for name in sorted(stray)]
        strays = set(triggers) - {layout.MARK_TRIGGER}
        strays -= {name for p in installed.relations for name in layout.trigger_names(p.number)}
        steps += [layout.drop_trigger(name) for name in sorted(strays)]
        known = {p.name for p in installed.relations} - set(broken)
        steps += [
            _set_identity(p, definitions.identity(tables.tables[p.name]).text)
            for p in installed.relations
            if p.name in known and not p.identity and p.name in definitions.numbers
        ]
        steps += [
            layout.note_made(p.number)
            for p in installed.relations
            if p.name in known and layout.made(p.number) not in facts
        ]
        again = [tables.tables[name] for name in broken if name in tables.tables]
        fresh = [t for t in {t.name: t for t in [*wanted, *again]}.values() if t.name not in known]
        since = int(installed.facts.get("current", 0))
        rows = []
        for number, table in enumerate(fresh, installed.next_number()):
            table.capturable(self._source)
            self._counters.pop(table.name, None)
            steps += [*layout.create_relation(number, table), layout.note_made(number)]
            identity = definitions.identity(table).text
            rows.append(relation_row(number, table, since, reshaped=table.name in broken, identity=identity))
        # After all others: a relation that is put on the list has its log and all its triggers.
        steps += listing(broken.values(), rows)
        return [*steps, *(layout.drop_log(prepared.number) for prepared in broken.values())]

    def check_rights(self, connection: Connection, tables: SourceTables) -> None:
        super().check_rights(connection, tables)
        if self._options.notice_truncate and not tables.tables.keys() <= _numbers(connection).keys():
            raise ConfigurationError(
                f"source {self._source!r}: without the right PROCESS no TRUNCATE is noticed; grant it, or "
                "promise by option `truncate: never` that there is none"
            )

    def removal(self, connection: Connection) -> list[str]:
        installed = read_installed(connection, self._database)
        steps = removal(installed)
        triggers = [layout.drop_trigger(name) for name in _triggers(connection, self._database)]
        if installed.epoch:
            return [steps[0], *triggers, *steps[1:]]
        return [*triggers, *steps]

    # Reading

    def blind(self, connection: Connection) -> str | None:
        """See the contract. A replica that applies rows fires no triggers, unless it is made to."""
        if is_replica(connection):
            setting = connection.value("SELECT @@global.slave_run_triggers_for_rbr")
            if setting != "ENFORCE":
                return (
                    "the server is a replica, which fires no triggers for what it replicates; "
                    "use capture: log, or set slave_run_triggers_for_rbr = ENFORCE"
                )
        return None

    def begin(self, connection: Connection) -> TriggerHistory:
        self.require_sight(connection, follows=True)
        for _ in range(_TRIES):
            try:
                return self._begin(connection)
            except _Overtaken:
                connection.execute("ROLLBACK")
        raise SourceUnavailableError(
            f"source {self._source!r}: another wrapper numbers its changes at the same time; run only one"
        )

    def _begin(self, connection: Connection) -> TriggerHistory:
        connection.execute(SNAPSHOT)
        definitions = Definitions.read(connection)
        tables = self._read_tables(connection)
        installed = read_installed(connection, self._database)
        if not installed.epoch or installed.facts.get("capture") != TRIGGER:
            self._logs = ()
            return TriggerHistory(connection, self._source, installed, tables, None, {})
        logs = (MARKER, *(layout.log_table(p.number) for p in installed.relations))
        self._logs = logs
        problems = self._problems(connection, installed, tables, definitions)
        found = {log: _unnumbered(connection, log) for log in logs}
        current = int(installed.facts["current"])
        batch = None
        if any(len(ids) for ids, _ in found.values()):
            names = {name for _, txs in found.values() for name in pc.unique(txs).to_pylist()}
            one = len(names) == 1 and None not in names
            rows = {log: ids for log, (ids, _) in found.items()}
            with self._writing() as writer:
                batch = Batch(current + 1, secrets.token_hex(8), batched=not (one and self._are_named))
                self._number(writer, installed, batch, rows)
        return TriggerHistory(connection, self._source, installed, tables, batch, problems)

    def _number(
        self, writer: Connection, installed: Installed, batch: Batch, rows: Mapping[str, np.ndarray]
    ) -> None:
        """Store that these rows are that batch; _Overtaken if another adapter was faster."""
        with writer.transaction():
            facts = dict(
                writer.rows(f"SELECT name, value FROM {META} WHERE name IN ('current', 'epoch') FOR UPDATE")
            )
            if facts.get("epoch") != installed.epoch or int(facts["current"]) != batch.number - 1:
                raise _Overtaken
            for log, ids in rows.items():
                touched = sum(
                    writer.execute(
                        f"UPDATE {log} FORCE INDEX (PRIMARY) SET batch = {batch.number} "
                        f"WHERE batch IS NULL AND ({condition})"
                    )
                    for condition in _conditions(_key(log), _ranges(ids))
                )
                if touched != len(ids):
                    raise _Overtaken
            writer.execute(
                f"INSERT INTO {layout.BATCHES} VALUES (%s, %s, %s)", [batch.number, batch.mark, batch.batched]
            )
            writer.execute(layout.advance(batch.number))

    def _problems(
        self, connection: Connection, installed: Installed, tables: SourceTables, definitions: Definitions
    ) -> dict[str, str]:
        """The prepared relations whose capture no longer works, with the reason in words."""
        triggers = _triggers(connection, self._database)
        problems = {}
        for prepared in installed.relations:
            made = installed.facts.get(layout.made(prepared.number))
            problem = self._problem(prepared, tables, triggers, definitions, made)
            if problem is None and self._counter_went_back(prepared, tables.tables[prepared.name]):
                problem = "was truncated"
            if problem is not None:
                problems[prepared.name] = problem
            else:
                self._note(prepared, definitions.identity(tables.tables[prepared.name]))
        return problems

    def _note(self, prepared: Prepared, now: Identity) -> None:
        """Note what has moved and means nothing by itself, so that it is not taken for more together."""
        if prepared.identity and now.text and prepared.identity != now.text:
            with self._writing() as writer:
                writer.execute(_set_identity(prepared, now.text))

    def _problem(
        self,
        prepared: Prepared,
        tables: SourceTables,
        triggers: Mapping[str, tuple[str, str]],
        definitions: Definitions,
        made: str | None,
    ) -> str | None:
        """In words, why the capture of a relation no longer works; None if it does.

        `made`: when its triggers were made, as that was noted, which earlier versions did not.
        """
        table = tables.tables.get(prepared.name)
        problem = drift(prepared, table)
        if problem is not None or table is None:
            return problem
        found = [triggers[name] for name in sorted(layout.trigger_names(prepared.number)) if name in triggers]
        if [on for on, _ in found] != [prepared.name] * len(layout.EVENTS):
            return "lost its triggers"
        if made is not None and made != ",".join(moment for _, moment in found):
            return "had its triggers made again, and was without them"
        before, now = Identity.of(prepared.identity), definitions.identity(table)
        if before.numbers == _TRUNCATED or (before.numbers and now.numbers and before.numbers != now.numbers):
            return "was truncated or rebuilt"
        if before.numbers and not now.numbers and self._options.notice_truncate:
            return "cannot be seen to be the same without the right PROCESS"
        if now.numbers and before.may_have_become(now):
            return "was altered without being rebuilt, and may have other columns under the same names"
        return None

    def _counter_went_back(self, prepared: Prepared, table: SourceTable) -> bool:
        """Whether AUTO_INCREMENT starts over; noted in the source, so that it is not forgotten."""
        before, now = self._counters.get(table.name), table.auto_increment
        if now is None:
            return False
        self._counters[table.name] = now
        if before is None or now >= before:
            return False
        with self._writing() as writer:
            writer.execute(_set_identity(prepared, _TRUNCATED))
        return True

    def changed(self, connection: Connection) -> bool:
        if self._logs is None:
            return True  # not known since the connection was made
        if not self._logs:
            return False
        logs = " OR ".join(f"EXISTS (SELECT 1 FROM {log} WHERE batch IS NULL)" for log in self._logs)
        try:
            return bool(connection.value(f"SELECT {logs}"))
        except SourceUnavailableError:
            raise
        except LockstepError:
            return True  # a log is gone: the next snapshot says why

    # Trimming

    def acknowledge(self, connection: Connection, position: Position) -> None:
        now = self._clock()
        if now - self._trimmed_at < self._options.trim_seconds:
            return
        self._trimmed_at = now
        installed = read_installed(connection, self._database)
        if not installed.epoch or installed.facts.get("capture") != TRIGGER:
            return
        trimmed, current = int(installed.facts["trimmed"]), int(installed.facts["current"])
        known = connection.rows(f"SELECT mark FROM {layout.BATCHES} WHERE number = %s", [position.ordinal])
        token = f"{installed.epoch}:{known[0][0]}" if known else ""
        if position.token != token or not trimmed < position.ordinal <= current:
            return
        with self._writing() as writer:
            writer.execute(set_fact("trimmed", str(position.ordinal)))
            for log in (MARKER, *(layout.log_table(p.number) for p in installed.relations)):
                self._trim(writer, log, position.ordinal)
            writer.execute(f"DELETE FROM {layout.BATCHES} WHERE number < {position.ordinal}")

    def _trim(self, writer: Connection, log: str, upto: int) -> None:
        """Delete a log's rows up to a batch, in lots.

        By the index on `batch`, in which rows that are being written are far away: a delete waits for every
        locked row that it meets, and any other way through the table meets them.
        """
        first = writer.value(f"SELECT MIN(batch) FROM {log} FORCE INDEX (batch) WHERE batch <= {upto}")
        lot = max(1, self._options.trim_rows)
        for start in range(first or upto + 1, upto + 1, lot):
            last = min(start + lot - 1, upto)
            writer.execute(
                f"DELETE l FROM {log} AS l FORCE INDEX (batch) WHERE l.batch BETWEEN {start} AND {last}"
            )

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._logs = None

    def _probe(self, writer: Connection) -> bool:
        """Whether transactions of this database get numbers: a server may keep it out of its binlog."""
        writer.execute(set_fact("probe", secrets.token_hex(8)))
        return bool(writer.value("SELECT @@session.last_gtid"))

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """The connection that writes: without gap locks, so that no writer of the source waits for it."""
        if self._writer is None or not self._writer.is_open:
            self._writer = Connection(self._source, self._options)
            self._writer.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            self._are_named = self._probe(self._writer)
        try:
            yield self._writer
        except SourceUnavailableError:
            self._writer.close()
            raise


def _unnumbered(connection: Connection, log: str) -> tuple[np.ndarray, pa.ChunkedArray]:
    """The numbers of log rows that no snapshot has seen yet, ascending, and what names their transactions."""
    columns = (ResultColumn("id", _key(log), INTEGER, log), ResultColumn("tx", "tx", TEXT, log))
    select = Select(columns, f"FROM {log} WHERE batch IS NULL")
    rows = pa.Table.from_batches(batches(connection, select), select.schema)
    return np.sort(rows["id"].to_numpy()), rows["tx"]


def _key(log: str) -> str:
    return "number" if log == MARKER else "id"


def _conditions(key: str, bounds: Sequence[tuple[int, int]]) -> Iterator[str]:
    """SQL: the key lies in one of these ranges; as many conditions as statements are needed."""
    for start in range(0, len(bounds), _RANGES):
        yield " OR ".join(
            f"{key} BETWEEN {first} AND {last}" for first, last in bounds[start : start + _RANGES]
        )


def _ranges(ids: np.ndarray) -> list[tuple[int, int]]:
    """Ascending numbers as runs without a gap: every number within is one of them."""
    if not len(ids):
        return []
    ends = np.flatnonzero(np.diff(ids) != 1)
    firsts = ids[np.concatenate(([0], ends + 1))]
    lasts = ids[np.concatenate((ends, [len(ids) - 1]))]
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]


def _triggers(connection: Connection, database: str) -> dict[str, tuple[str, str]]:
    """Our triggers, each with the table it is on and the moment at which it was made."""
    rows = connection.rows(
        f"SELECT TRIGGER_NAME, EVENT_OBJECT_TABLE, {layout.MADE} FROM information_schema.TRIGGERS "
        "WHERE TRIGGER_SCHEMA = %s AND TRIGGER_NAME LIKE '\\_lockstep\\_%%' ORDER BY TRIGGER_NAME",
        [database],
    )
    return {name: (table, made) for name, table, made in rows}


def _log_tables(installed: Installed) -> list[str]:
    return sorted(name for name in installed.own if name.startswith(layout.log_table(0)[:-1]))


def _numbers(connection: Connection) -> dict[str, str]:
    """The internal number of each table, which TRUNCATE changes; nothing without the right to see them."""
    try:
        rows = connection.rows(_NUMBERS)
    except ConfigurationError:
        return {}
    found: dict[str, list[str]] = {}
    for table, number in rows:
        found.setdefault(table, []).append(str(number))
    joined = {table: ",".join(numbers) for table, numbers in found.items()}
    return {
        table: numbers if len(numbers) <= _LONG else sha256(numbers.encode()).hexdigest()
        for table, numbers in joined.items()
    }


def _set_identity(prepared: Prepared, identity: str) -> str:
    """The statement that notes an identity, unless another has been noted since."""
    return (
        f"UPDATE {RELATIONS} SET identity = '{identity}' "
        f"WHERE number = {prepared.number} AND identity = '{prepared.identity}'"
    )
