"""A whole deployment of separate processes, and the oracle that judges every version of its view.

The oracle recomputes the view from the writers' own journals, by plain loops, at the vector that a version
shows: each source has a ticket row that tells how many of its transactions a state reflects.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from integration_tests.client import Bag, Client
from integration_tests.processes import LockstepProcess, run_module
from integration_tests.random_writer import SMALL, TABLES, TICKET, Size, create, read_journal, ticket
from integration_tests.stores import Row


@dataclass(frozen=True)
class Source:
    """A source of the chain: the kind of its store, where its writer finds it, and its configuration."""

    kind: str
    where: str
    settings: str


def file_source(kind: str, path: Path, settings: str = "") -> Source:
    """A SQLite or DuckDB file; `settings` of its section begin with a comma."""
    return Source(kind, str(path), f"adapter: {kind}, url: '{kind}:///{path}'{settings}")


class Deployment:
    """The first sources of the chain, each with its wrapper, and a mediator, all separate processes."""

    def __init__(self, stack: ExitStack, directory: Path, engine: str, sources: Mapping[str, Source]) -> None:
        self.directory, self.sources = directory, sources
        for name, source in sources.items():
            create(name, source.kind, source.where)
        lines = [f"mediator: {{listen: '127.0.0.1:0', warehouse: ./warehouse, engine: {engine}}}", "sources:"]
        lines += [f"  {name}: {{{s.settings}, listen: '127.0.0.1:0'}}" for name, s in sources.items()]
        self.file = directory / "lockstep.yaml"
        self.file.write_text("\n".join(lines))
        self.wrappers = {
            name: LockstepProcess("wrapper", str(self.file), "--source", name) for name in sources
        }
        for wrapper in self.wrappers.values():
            stack.callback(wrapper.stop)
        addresses = [f"{source}={w.wait_ready()}" for source, w in self.wrappers.items()]
        options = [part for address in addresses for part in ("--source-address", address)]
        self.mediator = LockstepProcess("mediator", str(self.file), *options)
        stack.callback(self.mediator.stop)
        self.client = Client(self.mediator.wait_ready())
        stack.callback(self.client.close)

    @property
    def tables(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Source, table and columns, in the order of the chain."""
        return [(name, table, columns) for name in self.sources for table, columns in TABLES[name].items()]

    @property
    def view(self) -> str:
        """The join of the whole chain: each column once, then the number of each source's transaction."""
        joined: list[str] = []
        columns: dict[str, str] = {}
        tickets = []
        for source, table, names in self.tables:
            shared = next((name for name in names if name in columns), None)
            how = (
                f"JOIN {source}.{table} ON {table}.{shared} = {columns[shared]}"
                if shared
                else f"{source}.{table}"
            )
            joined.append(how)
            columns |= {name: f"{table}.{name}" for name in names if name not in (*columns, "tx")}
            tickets += [f"{table}.tx AS t{source}"] if "tx" in names else []
        return f"SELECT {', '.join([*columns.values(), *tickets])} FROM {' '.join(joined)}"

    def start_writers(self, transactions: int, seed: int, size: Size = SMALL) -> list[subprocess.Popen[str]]:
        return [
            run_module(
                "integration_tests.random_writer",
                name,
                source.kind,
                source.where,
                str(self.directory / f"{name}.journal"),
                *(str(number) for number in (seed + i, transactions, size.values, size.rows)),
            )
            for i, (name, source) in enumerate(self.sources.items())
        ]

    def journals(self) -> dict[str, list[list[tuple[str, int, Row]]]]:
        return {source: read_journal(self.directory / f"{source}.journal") for source in self.sources}

    def vector_of(self, state: Bag) -> dict[str, int]:
        """How many transactions of each source a state reflects, by its ticket row."""
        ((row, count),) = [(row, n) for row, n in state.items() if row[0] == TICKET]
        assert count == 1
        return dict(zip(self.sources, row[-len(self.sources) :], strict=True))

    def check_every_version(self, view: str, transactions: int) -> dict[int, Bag]:
        """Follow a view to its end and compare every version; the state at each version."""
        oracle = Oracle(self.tables, self.journals())
        state = self.client.bag(view, as_of=0)
        vector = self.vector_of(state)
        assert state == oracle.at(vector)
        states = {0: Counter(state)}
        goal = dict.fromkeys(self.sources, transactions)
        versions = self.client.watch(view, 0)
        while vector != goal:
            version, change = next(versions)
            assert version.version == len(states), "versions are gapless"
            for row, count in change.items():
                state[row] += count
                if not state[row]:
                    del state[row]
            before, vector = vector, self.vector_of(state)
            moved = {
                source: vector[source] - before[source]
                for source in vector
                if vector[source] != before[source]
            }
            assert set(moved) == {version.source}
            if not version.batched:
                assert moved == {version.source: 1}, "one version per source transaction"
            assert state == oracle.at(vector), f"version {version.version}"
            states[version.version] = Counter(state)
        return states


class Oracle:
    """The view recomputed from journals, moving forward through each source's transactions."""

    def __init__(
        self,
        tables: Sequence[tuple[str, str, tuple[str, ...]]],
        journals: Mapping[str, Sequence[Sequence[tuple[str, int, Row]]]],
    ) -> None:
        self._tables, self._journals = tables, journals
        self._done = dict.fromkeys(journals, 0)
        self._bags: dict[str, Bag] = {table: Counter() for _, table, _ in tables}

    def at(self, vector: Mapping[str, int]) -> Bag:
        for source, number in vector.items():
            assert number >= self._done[source], "a source went backwards"
            for changes in self._journals[source][self._done[source] : number]:
                for table, sign, row in changes:
                    self._bags[table][row] += sign
            self._done[source] = number
        # Each row is the values of the chain's columns so far, then the numbers of the tickets.
        chain: tuple[str, ...] = ()
        joined: list[tuple[Row, Row, int]] = [((), (), 1)]
        for source, table, columns in self._tables:
            shared = [column for column in columns if column in chain]
            new = [i for i, column in enumerate(columns) if column not in (*shared, "tx")]
            tx = [i for i, column in enumerate(columns) if column == "tx"]
            matches: dict[Row, list[tuple[Row, Row, int]]] = {}
            for row, count in (*(+self._bags[table]).items(), (ticket(columns, vector[source]), 1)):
                key = tuple(row[columns.index(column)] for column in shared)
                if None not in key:
                    part = (tuple(row[i] for i in new), tuple(row[i] for i in tx), count)
                    matches.setdefault(key, []).append(part)
            places = [chain.index(column) for column in shared]
            joined = [
                (values + more, tickets + number, n * m)
                for values, tickets, n in joined
                for more, number, m in matches.get(tuple(values[i] for i in places), ())
            ]
            chain += tuple(columns[i] for i in new)
        view: Bag = Counter()
        for values, tickets, count in joined:
            view[values + tickets] += count
        return view
