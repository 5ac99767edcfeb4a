"""Everything together: separate wrapper, mediator and writer processes over SQLite and DuckDB.

Random transactions run at the same time as the initial load and later. *Every* version must equal the view
recomputed, by plain loops over the writers' own journals, at the vector that the version shows.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from algebra.arrow_ipc import from_ipc
from integration_tests.client import Bag, Client
from integration_tests.processes import LockstepProcess, finish, run_module
from integration_tests.random_writer import TABLES, TICKET, Row, create, read_journal, ticket
from protos.lockstep.v1 import mediator_pb2 as pb

KINDS = {"a": "sqlite", "b": "sqlite", "c": "duckdb"}
VIEW = """
    SELECT r.k, r.x, s.y, t.z, u.w, v.q, r.tx AS ta, t.tx AS tb, u.tx AS tc
    FROM a.r AS r JOIN a.s AS s ON r.x = s.x
         JOIN b.t AS t ON s.y = t.y
         JOIN c.u AS u ON t.z = u.z JOIN c.v AS v ON u.w = v.w
"""
CONFIGURATION = """
mediator: {{listen: "127.0.0.1:0", warehouse: ./warehouse, engine: {engine}}}
sources:
  a: {{adapter: sqlite, url: "sqlite:///a.db", listen: "127.0.0.1:0"}}
  b: {{adapter: sqlite, url: "sqlite:///b.db", listen: "127.0.0.1:0"}}
  c: {{adapter: duckdb, url: "duckdb:///c.duckdb", listen: "127.0.0.1:0"}}
"""


class Deployment:
    """Three sources, their wrappers and a mediator, all separate processes."""

    def __init__(self, stack: ExitStack, directory: Path, engine: str) -> None:
        self.directory = directory
        self.paths = {
            source: directory / f"{source}.{'db' if kind == 'sqlite' else 'duckdb'}"
            for source, kind in KINDS.items()
        }
        for source, path in self.paths.items():
            create(source, KINDS[source], path)
        self.file = directory / "lockstep.yaml"
        self.file.write_text(CONFIGURATION.format(engine=engine))
        self.wrappers = {
            source: LockstepProcess("wrapper", str(self.file), "--source", source) for source in KINDS
        }
        for wrapper in self.wrappers.values():
            stack.callback(wrapper.stop)
        addresses = [f"{source}={w.wait_ready()}" for source, w in self.wrappers.items()]
        options = [part for address in addresses for part in ("--source-address", address)]
        self.mediator = LockstepProcess("mediator", str(self.file), *options)
        stack.callback(self.mediator.stop)
        self.client = Client(self.mediator.wait_ready())
        stack.callback(self.client.close)

    def start_writers(self, transactions: int, seed: int) -> list[subprocess.Popen[str]]:
        return [
            run_module(
                "integration_tests.random_writer",
                source,
                KINDS[source],
                str(path),
                str(self.directory / f"{source}.journal"),
                str(seed + i),
                str(transactions),
            )
            for i, (source, path) in enumerate(self.paths.items())
        ]

    def journals(self) -> dict[str, list[list[tuple[str, int, Row]]]]:
        return {source: read_journal(self.directory / f"{source}.journal") for source in KINDS}


class Oracle:
    """The view recomputed from journals, moving forward through each source's transactions."""

    def __init__(self, journals: Mapping[str, Sequence[Sequence[tuple[str, int, Row]]]]) -> None:
        self._journals = journals
        self._done = dict.fromkeys(TABLES, 0)
        self._bags: dict[str, Bag] = {table: Counter() for tables in TABLES.values() for table in tables}

    def at(self, vector: Mapping[str, int]) -> Bag:
        for source, number in vector.items():
            assert number >= self._done[source], "a source went backwards"
            for changes in self._journals[source][self._done[source] : number]:
                for table, sign, row in changes:
                    self._bags[table][row] += sign
            self._done[source] = number
        bags = {
            table: [
                *(+self._bags[table]).items(),
                (ticket(columns, vector[source]), 1),
            ]
            for source, tables in TABLES.items()
            for table, columns in tables.items()
        }
        view: Bag = Counter()
        for (k, x, ta), n1 in bags["r"]:
            for (x2, y), n2 in bags["s"]:
                if x is None or x != x2:
                    continue
                for (y2, z, tb), n3 in bags["t"]:
                    if y is None or y != y2:
                        continue
                    for (z2, w, tc), n4 in bags["u"]:
                        if z is None or z != z2:
                            continue
                        for (w2, q), n5 in bags["v"]:
                            if w is not None and w == w2:
                                view[(k, x, y, z, w, q, ta, tb, tc)] += n1 * n2 * n3 * n4 * n5
        return view


def vector_of(state: Bag) -> dict[str, int]:
    """How many transactions of each source a state reflects, by its ticket row."""
    ((row, count),) = [(row, n) for row, n in state.items() if row[0] == TICKET]
    assert count == 1
    return dict(zip("abc", row[-3:], strict=True))


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    with ExitStack() as stack:
        made = Deployment(stack, tmp_path, request.param)
        yield made
        for name, process in {"mediator": made.mediator, **made.wrappers}.items():
            assert "Traceback" not in process.output, f"{name}:\n{process.output}"


def check_every_version(deployment: Deployment, view: str, transactions: int) -> dict[int, Bag]:
    """Follow a view to its end and compare every version; the state at each version."""
    client, journals = deployment.client, deployment.journals()
    oracle = Oracle(journals)
    state = client.bag(view, as_of=0)
    vector = vector_of(state)
    assert state == oracle.at(vector)
    states = {0: Counter(state)}
    goal = dict.fromkeys(TABLES, transactions)
    versions = client.watch(view, 0)
    while vector != goal:
        version, change = next(versions)
        assert version.version == len(states), "versions are gapless"
        for row, count in change.items():
            state[row] += count
            if not state[row]:
                del state[row]
        before, vector = vector, vector_of(state)
        moved = {
            source: vector[source] - before[source] for source in vector if vector[source] != before[source]
        }
        assert set(moved) == {version.source}
        if not version.batched:
            assert moved == {version.source: 1}, "one version per source transaction"
        assert state == oracle.at(vector), f"version {version.version}"
        states[version.version] = Counter(state)
    return states


def test_every_version_is_right_from_the_load_on(deployment: Deployment) -> None:
    transactions = 150
    writers = deployment.start_writers(transactions, seed=11)
    deployment.client.create_view("v", VIEW)
    finish(writers)
    states = check_every_version(deployment, "v", transactions)
    client = deployment.client
    newest = max(states)
    for version in {0, newest // 3, newest // 2, newest}:
        assert client.bag("v", as_of=version) == states[version]
    client.stub.CompactView(pb.CompactViewRequest(name="v"))
    for version in {0, newest // 2, newest}:
        assert client.bag("v", as_of=version) == states[version], "history survives compaction"
    result = client.verify("v")
    assert (result.version, from_ipc(result.arrow).num_rows) == (newest, 0)
    status = client.status()
    (view,) = status.views
    assert view.queries <= view.batches * 2 * (len(KINDS) - 1), "at most 2(n-1) queries per batch"
    assert view.queries == sum(source.queries for source in status.sources), "counted on the wire"


def test_verify_works_while_the_sources_change(deployment: Deployment) -> None:
    transactions = 100
    deployment.client.create_view("v", VIEW)
    writers = deployment.start_writers(transactions, seed=23)
    results = [deployment.client.verify("v") for _ in range(3)]
    finish(writers)
    states = check_every_version(deployment, "v", transactions)
    for result in results:
        assert from_ipc(result.arrow).num_rows == 0
        assert result.rows == states[result.version].total()
