"""A source as its own application sees it, whatever database it is.

At most one transaction is open at a time. `commit` writes what the transaction did into a journal by that
very transaction, so journal and data never disagree, whenever the application or the database is killed.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lab.soak.layout import JOURNAL, TICKET, Relation

Row = tuple[int | None, ...]
Changes = Sequence[tuple[str, int, Row]]
"""What a transaction did: relation, +1 or -1, row; without tickets."""
MARKER = "COMMITTED"
"""The commit file of a folder of files."""


class Database(Protocol):
    """A connection that is in no transaction unless one was begun."""

    def execute(self, sql: str, parameters: Sequence[Any] = ...) -> Any: ...
    def close(self) -> None: ...


class Store(ABC):
    """The relations and the journal of one source."""

    @abstractmethod
    def create(self) -> None:
        """Make the empty relations with their tickets, and the journal."""

    @abstractmethod
    def rows(self, relation: Relation) -> Counter[Row]:
        """What a relation holds now, with its ticket."""

    @abstractmethod
    def journal(self) -> list[tuple[int, Changes]]:
        """Number and changes of every committed transaction, in order."""

    @abstractmethod
    def last(self) -> int:
        """The number of the last committed transaction."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def insert(self, relation: Relation, row: Row) -> None: ...

    @abstractmethod
    def delete_one(self, relation: Relation, row: Row) -> None:
        """Delete one of the rows that equal this one."""

    @abstractmethod
    def set_ticket(self, relation: Relation, number: int) -> None: ...

    @abstractmethod
    def commit(self, number: int, changes: Changes) -> None:
        """End the transaction as the one of that number, which nobody else may have taken."""

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def lock(self) -> None:
        """Begin a transaction that keeps all others from writing, and where possible from reading."""

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True)
class Dialect:
    """How a database says it. `one_copy` picks one of equal rows; `lock`: a table, if `begin` locks none."""

    begin: str = "BEGIN"
    slot: str = "?"
    equal: str = "IS NOT DISTINCT FROM"
    one_copy: str = "rowid IN (SELECT rowid FROM {table} WHERE {same} LIMIT 1)"
    lock: str = ""


class SqlStore(Store):
    """Tables of a database, and the journal beside them."""

    def __init__(self, database: Database, dialect: Dialect, relations: Sequence[Relation]) -> None:
        self._database, self._dialect, self._relations = database, dialect, relations

    def create(self) -> None:
        for relation in self._relations:
            columns = ", ".join(f"{column} BIGINT" for column in relation.columns)
            self._database.execute(f"CREATE TABLE {relation.name} ({columns})")
            self.insert(relation, relation.ticket(0))
        # A killed application's last commit may still be on its way when the next application starts: the key
        # keeps both from making the same transaction.
        self._database.execute(f"CREATE TABLE {JOURNAL} (tx BIGINT PRIMARY KEY, changes TEXT)")

    def rows(self, relation: Relation) -> Counter[Row]:
        return Counter(self._select(f"SELECT {', '.join(relation.columns)} FROM {relation.name}"))

    def journal(self) -> list[tuple[int, Changes]]:
        rows = self._select(f"SELECT tx, changes FROM {JOURNAL} ORDER BY tx")
        return [(int(number), _changes(text)) for number, text in rows]

    def last(self) -> int:
        ((number,),) = self._select(f"SELECT coalesce(max(tx), 0) FROM {JOURNAL}")
        return int(number)

    def begin(self) -> None:
        self._database.execute(self._dialect.begin)

    def insert(self, relation: Relation, row: Row) -> None:
        slots = ", ".join([self._dialect.slot] * len(row))
        self._database.execute(f"INSERT INTO {relation.name} VALUES ({slots})", row)

    def delete_one(self, relation: Relation, row: Row) -> None:
        say = self._dialect
        same = " AND ".join(f"{column} {say.equal} {say.slot}" for column in relation.columns)
        one = say.one_copy.format(table=relation.name, same=same)
        self._database.execute(f"DELETE FROM {relation.name} WHERE {one}", row)

    def set_ticket(self, relation: Relation, number: int) -> None:
        slot = self._dialect.slot
        self._database.execute(f"UPDATE {relation.name} SET tx = {slot} WHERE tx IS NOT NULL", [number])

    def commit(self, number: int, changes: Changes) -> None:
        slot = self._dialect.slot
        self._database.execute(
            f"INSERT INTO {JOURNAL} VALUES ({slot}, {slot})", [number, json.dumps(changes)]
        )
        self._database.execute("COMMIT")

    def rollback(self) -> None:
        self._database.execute("ROLLBACK")

    def lock(self) -> None:
        self.begin()
        if self._dialect.lock:
            self._database.execute(self._dialect.lock.format(table=self._relations[0].name))

    def close(self) -> None:
        self._database.close()

    def _select(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._database.execute(sql).fetchall()]


class FilesStore(Store):
    """CSV files in a folder, published together by a commit file; beside the folder, the journal.

    A transaction is made by its line in the journal. The commit file is away from before the first file is
    replaced until that line is written; whoever finds it missing writes all files anew from the journal.
    """

    def __init__(self, folder: Path, relations: Sequence[Relation]) -> None:
        self._folder, self._relations = folder, {relation.name: relation for relation in relations}
        self._marker = folder / MARKER
        self._journal = folder.with_name(folder.name + ".journal")
        self._bags: dict[str, Counter[Row]] = {}
        self._changed: set[str] = set()
        # The end of a process releases it, however it comes.
        self._turn = folder.with_name(folder.name + ".lock").open("a")
        if self._journal.exists():
            with self._alone():
                self._recover()

    def create(self) -> None:
        self._folder.mkdir()
        self._journal.touch()
        with self._alone():
            self._recover()

    def rows(self, relation: Relation) -> Counter[Row]:
        with self._file(relation).open(newline="") as file:
            _, *lines = csv.reader(file)
        return Counter(tuple(int(value) if value else None for value in line) for line in lines)

    def journal(self) -> list[tuple[int, Changes]]:
        *lines, _ = self._journal.read_text(encoding="utf-8").split("\n")
        return [(number, _changes(line)) for number, line in enumerate(lines, 1)]

    def last(self) -> int:
        return len(self.journal())

    def begin(self) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        self._bags = {name: self.rows(relation) for name, relation in self._relations.items()}
        self._changed.clear()

    def insert(self, relation: Relation, row: Row) -> None:
        self._bags[relation.name][row] += 1
        self._changed.add(relation.name)

    def delete_one(self, relation: Relation, row: Row) -> None:
        self._bags[relation.name][row] -= 1
        self._changed.add(relation.name)

    def set_ticket(self, relation: Relation, number: int) -> None:
        bag = self._bags[relation.name]
        (ticket,) = [row for row in +bag if row[0] == TICKET]
        del bag[ticket]
        self.insert(relation, relation.ticket(number))

    def commit(self, number: int, changes: Changes) -> None:
        self._marker.unlink()
        for name in sorted(self._changed):
            self._write(self._relations[name], self._bags[name])
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(changes) + "\n")
        self._publish(number)
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def rollback(self) -> None:
        self._recover()
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def lock(self) -> None:
        self.begin()
        self._marker.unlink()

    def close(self) -> None:
        self._turn.close()

    def _recover(self) -> None:
        """Publish what the journal says, if the commit file is missing."""
        if self._marker.exists():
            return
        self._drop_torn_line()
        bags: dict[str, Counter[Row]] = {name: Counter() for name in self._relations}
        journal = self.journal()
        for _, changes in journal:
            for name, sign, row in changes:
                bags[name][row] += sign
        for name, relation in self._relations.items():
            bags[name][relation.ticket(len(journal))] += 1
            self._write(relation, bags[name])
        self._publish(len(journal))

    def _drop_torn_line(self) -> None:
        """The writer may have been killed in the middle of it."""
        with self._journal.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)

    def _write(self, relation: Relation, bag: Counter[Row]) -> None:
        draft = self._folder / f".{relation.name}.draft"
        with draft.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(relation.columns)
            writer.writerows((+bag).elements())
        os.replace(draft, self._file(relation))

    def _publish(self, number: int) -> None:
        draft = self._folder / f".{MARKER}.draft"
        draft.write_text(str(number))
        os.replace(draft, self._marker)

    def _file(self, relation: Relation) -> Path:
        return self._folder / f"{relation.name}.csv"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)


def _changes(text: str) -> Changes:
    return [(name, sign, tuple(row)) for name, sign, row in json.loads(text)]
