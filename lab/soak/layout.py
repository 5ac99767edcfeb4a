"""What a soak keeps: relations in a row over all sources, and views that join them.

Every relation has two columns to join by, `l` and `r`; the `r` of one is the `l` of the next. The first
relation of each source also has `tx`: a ticket row (`l` and `r` are -1) carries the number of the source's
last transaction there, so that any state of a view tells which transactions of each source it reflects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKET = -1
JOURNAL = "soak_journal"
"""A table of each source, which no wrapper shows: what each transaction did, written by that transaction."""


@dataclass(frozen=True)
class Relation:
    """One relation of the row. `ticketed`: it has the column `tx`."""

    name: str
    ticketed: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return ("l", "r", "tx") if self.ticketed else ("l", "r")

    def ticket(self, number: int) -> tuple[int, ...]:
        return (TICKET, TICKET, number) if self.ticketed else (TICKET, TICKET)


@dataclass(frozen=True)
class Source:
    """One source: its name, the kind of its database and capture, where it is, and its relations.

    `directory` is for whatever lies beside it.
    """

    name: str
    kind: str
    place: str
    directory: Path
    relations: tuple[Relation, ...]


@dataclass(frozen=True)
class View:
    """A join over the relations of some sources, in a row."""

    name: str
    sources: tuple[Source, ...]

    @property
    def relations(self) -> tuple[tuple[Source, Relation], ...]:
        return tuple((source, relation) for source in self.sources for relation in source.relations)

    @property
    def sql(self) -> str:
        columns, tables = [], []
        for i, (source, relation) in enumerate(self.relations):
            columns += [f"t{i}.{column} AS {column}{i}" for column in relation.columns]
            table = f"{source.name}.{relation.name} AS t{i}"
            tables.append(f"JOIN {table} ON t{i - 1}.r = t{i}.l" if i else f"FROM {table}")
        return f"SELECT {', '.join(columns)} {' '.join(tables)}"

    @property
    def tickets(self) -> Mapping[str, int]:
        """At which column of a row of the view each source's ticket number stands."""
        places, at = {}, 0
        for source, relation in self.relations:
            if relation.ticketed:
                places[source.name] = at + 2
            at += len(relation.columns)
        return places


def sources_of(kinds: Sequence[str], directory: Path) -> tuple[Source, ...]:
    """A source of each kind in a folder, named after it and its place; the first one has two relations."""
    made = []
    for number, kind in enumerate(kinds):
        name = f"s{number}_{kind.replace('-', '_')}"
        relations = [Relation(f"r{number}", True)]
        if number == 0:
            relations.append(Relation(f"r{number}b", False))
        made.append(Source(name, kind, str(directory / f"{name}.db"), directory, tuple(relations)))
    return tuple(made)


def views_of(sources: Sequence[Source]) -> tuple[View, ...]:
    """One view over all sources; and one over the first and the last, which goes on when another is away."""
    views = [View("everything", tuple(sources))]
    if len(sources) > 2:
        views.append(View("ends", (sources[0], sources[-1])))
    return tuple(views)
