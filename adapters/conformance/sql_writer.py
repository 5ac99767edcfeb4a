"""A writer over a DB-API connection; a source overrides what its dialect says otherwise."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from adapters.conformance.harness import Writer
from adapters.conformance.operations import (
    Delete,
    Empty,
    Fill,
    Insert,
    Mark,
    Operation,
    Overwrite,
    Raise,
    RollbackTo,
    Row,
    Savepoint,
    Update,
)
from adapters.global_marks import MARKER
from algebra.schema import RelationSchema

ROWS_PER_STATEMENT = 200


class SqlWriter(Writer):
    """Turns operations into INSERT, UPDATE and DELETE statements with parameters."""

    placeholder = "?"
    row_id = "rowid"
    """An expression that tells two copies of a row apart."""
    same = "IS NOT DISTINCT FROM"
    """The comparison that takes NULL for equal to NULL."""

    def __init__(self, tables: Sequence[RelationSchema]) -> None:
        self._tables = {table.name: table for table in tables}

    @abstractmethod
    def sql(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Execute one statement; returns how many rows it touched, or -1 if the driver cannot tell."""

    def begin(self) -> None:
        self.sql("BEGIN")

    def commit(self) -> None:
        self.sql("COMMIT")

    def rollback(self) -> None:
        self.sql("ROLLBACK")

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def overwrite(self, relation: str) -> Sequence[str]:
        """The statements that write one row over whatever has its key, each with the row as parameters."""
        slots = ", ".join([self.placeholder] * len(self._tables[relation].columns))
        return [f"INSERT OR REPLACE INTO {self.quote(relation)} VALUES ({slots})"]

    def parameter(self, value: Any) -> Any:
        """The value as the driver takes it."""
        return value

    def fill(self, relation: str, first: int, count: int) -> str:
        """The statement that adds the rows `(i, i)` for `count` numbers from `first` on."""
        digit = " UNION ALL ".join(f"SELECT {d} AS d" for d in range(10))
        width = len(str(count - 1))
        tables = " CROSS JOIN ".join(f"({digit}) AS d{i}" for i in range(width))
        number = " + ".join(f"{10**i} * d{i}.d" for i in range(width))
        numbers = f"SELECT {first} + {number} AS n FROM {tables} WHERE {number} < {count}"
        return f"INSERT INTO {self.quote(relation)} SELECT n, n FROM ({numbers}) AS numbers"

    def execute(self, operation: Operation) -> None:
        match operation:
            case Mark(id, participants):
                slots = ", ".join([self.placeholder] * 2)
                self.sql(f"INSERT INTO {MARKER} (id, participants) VALUES ({slots})", [id, participants])
                return
            case Savepoint(name):
                self.sql(f"SAVEPOINT {self.quote(name)}")
                return
            case RollbackTo(name):
                self.sql(f"ROLLBACK TO SAVEPOINT {self.quote(name)}")
                return
        table = self.quote(operation.relation)
        match operation:
            case Insert(_, rows):
                for start in range(0, len(rows), ROWS_PER_STATEMENT):
                    part = rows[start : start + ROWS_PER_STATEMENT]
                    slots = ", ".join([f"({', '.join([self.placeholder] * len(part[0]))})"] * len(part))
                    self.sql(
                        f"INSERT INTO {table} VALUES {slots}", [v for row in part for v in self._values(row)]
                    )
                return
            case Fill(relation, first, count):
                self.sql(self.fill(relation, first, count))
                return
            case Raise(relation, by):
                value = self._names(relation)[1]
                self.sql(f"UPDATE {table} SET {value} = {value} + {by}")
                return
            case Empty():
                self.sql(f"DELETE FROM {table}")
                return
            case Overwrite(_, _, after):
                for statement in self.overwrite(operation.relation):
                    self.sql(statement, self._values(after))
                return
            case Delete(_, row):
                condition, parameters = self._one(operation.relation, row)
                touched = self.sql(f"DELETE FROM {table} WHERE {condition}", parameters)
            case Update(_, before, after):
                # Only what changes is assigned, as an application would; a no-op update sets every column.
                names = self._names(operation.relation)
                changed = [i for i in range(len(names)) if before[i] != after[i]] or range(len(names))
                sets = ", ".join(f"{names[i]} = {self.placeholder}" for i in changed)
                condition, parameters = self._one(operation.relation, before)
                values = self._values(after)
                touched = self.sql(
                    f"UPDATE {table} SET {sets} WHERE {condition}",
                    [*(values[i] for i in changed), *parameters],
                )
        if touched not in (1, -1):
            raise LookupError(f"{operation} touched {touched} rows, not one")

    def _one(self, relation: str, row: Row) -> tuple[str, list[Any]]:
        """A condition that picks exactly one copy of the row."""
        table = self._tables[relation]
        if table.key:
            places = [i for i, column in enumerate(table.columns) if column.name in table.key]
            names, values = self._names(relation), self._values(row)
            condition = " AND ".join(f"{names[i]} = {self.placeholder}" for i in places)
            return condition, [values[i] for i in places]
        condition = " AND ".join(f"{name} {self.same} {self.placeholder}" for name in self._names(relation))
        inner = f"SELECT min({self.row_id}) FROM {self.quote(relation)} WHERE {condition}"
        return f"{self.row_id} = ({inner})", self._values(row)

    def _names(self, relation: str) -> list[str]:
        return [self.quote(column.name) for column in self._tables[relation].columns]

    def _values(self, row: Row) -> list[Any]:
        return [self.parameter(value) for value in row]
