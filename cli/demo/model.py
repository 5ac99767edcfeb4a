"""The tables of one source in memory, and the changes a transaction makes to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from algebra.errors import LockstepError
from cli.demo.layout import Row, Source


@dataclass(frozen=True)
class Change:
    """What happened to one row: `before` None is an insert, `after` None a delete."""

    table: str
    before: Row | None
    after: Row | None


@dataclass
class Tables:
    """All rows of one source, by table and key; changes must fit what is there."""

    source: Source
    rows: dict[str, dict[int, Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table in self.source.tables:
            self.rows.setdefault(table.name, {})

    def __getitem__(self, table: str) -> dict[int, Row]:
        return self.rows[table]

    def apply(self, changes: Iterable[Change]) -> None:
        """Make the changes, in order."""
        for change in changes:
            table = self.rows[change.table]
            row = change.after if change.before is None else change.before
            assert row is not None
            if table.get(row[0]) != change.before:
                raise LockstepError(f"the journal of {self.source.name} does not fit its own tables")
            if change.after is None:
                del table[row[0]]
            else:
                table[row[0]] = change.after


def statement(source: Source, change: Change) -> tuple[str, Row]:
    """The SQL that makes the change, with its parameters."""
    columns = list(source.table(change.table).columns)
    if change.before is None:
        assert change.after is not None
        marks = ", ".join("?" for _ in columns)
        return f"INSERT INTO {change.table} VALUES ({marks})", change.after
    if change.after is None:
        return f"DELETE FROM {change.table} WHERE {columns[0]} = ?", change.before[:1]
    changed = [at for at in range(len(columns)) if change.before[at] != change.after[at]]
    settings = ", ".join(f"{columns[at]} = ?" for at in changed)
    values = tuple(change.after[at] for at in changed)
    return f"UPDATE {change.table} SET {settings} WHERE {columns[0]} = ?", (*values, change.after[0])
