"""Each client query has a process of its own: what it can take there, how it ends, and what comes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from algebra.errors import ConfigurationError, DataError, LimitExceededError, SourceUnavailableError
from algebra.scratch import ScratchFolder
from mediator.warehouse.client_query import ClientQueries, QueryLimits, Question
from mediator.warehouse.query_process import _environment
from protos.process_memory import peak_bytes, resident_bytes

MANY_ROWS = "SELECT range AS n, repeat('x', 100) AS t FROM range(20000000)"
GONE_SECONDS = 60


@pytest.fixture
def queries() -> Iterator[ClientQueries]:
    limited = ClientQueries(QueryLimits(memory="64MiB", disk="16MiB"))
    yield limited
    limited.close()


def answer(queries: ClientQueries, sql: str) -> pa.Table:
    return queries.run(Question(sql, {}, [])).read_all()


def process_of(queries: ClientQueries) -> psutil.Process:
    """The process of the one query under way."""
    (query,) = queries.under_way()
    assert query.pid is not None
    return psutil.Process(query.pid)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('x', 100000000) AS t FROM range(1000)",
        "SELECT max(length(repeat('x', 50000000 + range::INT))) FROM range(100000)",
        "SELECT length(repeat(repeat('x', 100000000), 20))",
        "WITH RECURSIVE d(i, t) AS (SELECT 0, 'x' UNION ALL SELECT i + 1, t || t FROM d WHERE i < 40) "
        "SELECT max(length(t)) FROM d",
        "SELECT list(repeat('x', 1000000)) FROM range(2000)",
        "SELECT string_agg(repeat('x', 1000000), '') FROM range(4000)",
    ],
    ids=["rows", "lengths", "one text", "doubled", "list", "aggregate"],
)
def test_texts_that_fill_the_memory_end_the_query_alone(queries: ClientQueries, sql: str) -> None:
    answer(queries, "SELECT 1")
    before = max(resident_bytes(), peak_bytes())
    with pytest.raises(LimitExceededError, match=r"64MiB of memory \(query_memory\)"):
        answer(queries, sql)
    assert peak_bytes() - before < 64 << 20
    assert answer(queries, "SELECT 1 AS one")["one"].to_pylist() == [1]


def test_one_long_call_ends_when_its_time_is_over() -> None:
    queries = ClientQueries(QueryLimits(seconds=0.5))
    long_call = "SELECT levenshtein(repeat('a', 3000000), repeat('b', 3000000))"
    with pytest.raises(LimitExceededError, match=r"\(query_seconds\)"):
        answer(queries, long_call)
    assert not len(queries)
    queries.close()


def test_the_process_of_a_caller_who_left_is_gone(queries: ClientQueries) -> None:
    ends: list[Callable[[], None]] = []
    rows = queries.run(Question(MANY_ROWS, {}, []), ends.append)
    process = process_of(queries)
    rows.read_next_batch()
    ends[0]()
    process.wait(GONE_SECONDS)
    with pytest.raises(SourceUnavailableError, match="ended by its caller"):
        rows.read_all()


def test_the_process_of_an_answer_that_nobody_reads_is_gone(queries: ClientQueries) -> None:
    rows = queries.run(Question(MANY_ROWS, {}, []))
    process = process_of(queries)
    del rows
    process.wait(GONE_SECONDS)


def test_closing_leaves_no_process(queries: ClientQueries) -> None:
    before = set(psutil.Process().children())
    rows = queries.run(Question(MANY_ROWS, {}, []))
    started = set(psutil.Process().children()) - before
    assert len(started) == 2, "the query's, and one for the next query"
    queries.close()
    for process in started:
        process.wait(GONE_SECONDS)
    with pytest.raises(SourceUnavailableError, match="the mediator stops"):
        rows.read_all()


def test_who_is_never_asked_has_no_process() -> None:
    before = set(psutil.Process().children())
    queries = ClientQueries(QueryLimits())
    assert set(psutil.Process().children()) <= before
    queries.close()


@pytest.mark.parametrize("limits", [QueryLimits(memory="lots"), QueryLimits(disk="lots")])
def test_limits_that_are_none_are_named(limits: QueryLimits) -> None:
    queries = ClientQueries(limits)
    with pytest.raises(ConfigurationError, match="query_memory or query_disk"):
        answer(queries, "SELECT 1")
    queries.close()


def test_an_answer_that_breaks_off_is_no_answer(queries: ClientQueries) -> None:
    rows = queries.run(Question(MANY_ROWS, {}, []))
    process = process_of(queries)
    rows.read_next_batch()
    process.send_signal(signal.SIGKILL)
    with pytest.raises(SourceUnavailableError, match="ended by SIGKILL, and its answer is not whole"):
        rows.read_all()
    assert answer(queries, "SELECT 1").num_rows == 1


def test_a_spare_process_that_was_killed_is_replaced(queries: ClientQueries) -> None:
    before = set(psutil.Process().children())
    answer(queries, "SELECT 1")
    (spare,) = set(psutil.Process().children()) - before
    spare.kill()
    os.waitid(os.P_PID, spare.pid, os.WEXITED | os.WNOWAIT)
    assert answer(queries, "SELECT 1").num_rows == 1


def test_large_answers_are_not_held(queries: ClientQueries) -> None:
    """Neither here nor there: each has less room than the answer takes."""
    answer(queries, "SELECT 1")
    before = max(resident_bytes(), peak_bytes())
    rows = taken = 0
    for batch in queries.run(Question("SELECT repeat('x', 8000) AS t FROM range(100000)", {}, [])):
        rows += batch.num_rows
        taken += batch.nbytes
        assert batch.nbytes < 8 << 20
    assert (rows, taken > 800_000_000) == (100_000, True)
    assert peak_bytes() - before < 100 << 20


def test_a_row_that_is_too_large_is_refused() -> None:
    queries = ClientQueries(QueryLimits())
    with pytest.raises(LimitExceededError, match="a row of the answer takes more than 64 MiB"):
        answer(queries, "SELECT repeat('x', 80000000 + range::INT) AS t FROM range(1)")
    assert answer(queries, "SELECT repeat('x', 50000000 + range::INT) AS t FROM range(1)").nbytes > 50_000_000
    queries.close()


def test_every_type_arrives_as_it_is(queries: ClientQueries) -> None:
    table = answer(
        queries,
        "SELECT 1.25::DECIMAL(38, 2) AS d, TIMESTAMPTZ '2026-03-29 02:30:00+02' AS tz, "
        "'\\x00\\xFF'::BLOB AS b, [1, NULL] AS l, {'a': [1.5]} AS s, MAP {'k': 1} AS m, "
        "'x'::ENUM ('x', 'y') AS e, NULL AS n, "
        "18446744073709551615::UBIGINT AS u, INTERVAL 1 DAY IS NULL AS i, 'NaN'::DOUBLE AS f FROM range(2)",
    )
    types = {field.name: field.type for field in table.schema}
    assert types["d"] == pa.decimal128(38, 2)
    assert types["tz"] == pa.timestamp("us", "UTC")
    assert (types["b"], types["l"]) == (pa.binary(), pa.list_(pa.field("l", pa.int32())))
    assert pa.types.is_dictionary(types["e"])
    first = table.to_pylist()[0]
    assert str(first.pop("f")) == "nan"
    assert first == {
        "d": Decimal("1.25"),
        "tz": datetime(2026, 3, 29, 0, 30, tzinfo=UTC),
        "b": b"\x00\xff",
        "l": [1, None],
        "s": {"a": [1.5]},
        "m": [("k", 1)],
        "e": "x",
        "n": None,
        "u": 2**64 - 1,
        "i": False,
    }


def test_empty_answers_and_names_that_come_twice(queries: ClientQueries) -> None:
    empty = answer(queries, "SELECT 1 AS a, 'x' AS b WHERE false")
    assert (empty.num_rows, empty.schema) == (0, pa.schema([("a", pa.int32()), ("b", pa.string())]))
    twice = answer(queries, "SELECT 1 AS a, 2 AS a")
    assert (twice.schema.names, [c.to_pylist() for c in twice.columns]) == (["a", "a"], [[1], [2]])


def test_an_error_after_rows_is_told(queries: ClientQueries) -> None:
    # So many rows that no thread comes to the last ones before somebody has read the first.
    late = "SELECT CASE WHEN range = 19999999 THEN error('late') ELSE range END FROM range(20000000)"
    rows = queries.run(Question(late, {}, []))
    assert rows.read_next_batch().num_rows
    with pytest.raises(DataError, match="late"):
        rows.read_all()


def test_a_caller_has_half_of_the_places_and_who_waits_gets_the_next() -> None:
    queries = ClientQueries(QueryLimits(processes=2))
    greedy = queries.run(Question(MANY_ROWS, {}, []), None, "greedy")
    ends: list[Callable[[], None]] = []
    waiting = threading.Event()

    def note(end: Callable[[], None]) -> None:
        ends.append(end)
        waiting.set()

    with pytest.raises(SourceUnavailableError, match="ended by its caller"):
        queries.run(Question("SELECT 1", {}, []), lambda end: False, "greedy")
    found: list[pa.Table] = []
    second = threading.Thread(
        target=lambda: found.append(queries.run(Question("SELECT 2", {}, []), note, "greedy").read_all())
    )
    second.start()
    assert waiting.wait(GONE_SECONDS)
    assert queries.run(Question("SELECT 3", {}, []), None, "other").read_all().num_rows == 1
    assert not found
    del greedy
    second.join(GONE_SECONDS)
    assert found[0].num_rows == 1
    queries.close()


def test_the_time_that_a_query_waits_counts() -> None:
    queries = ClientQueries(QueryLimits(seconds=0.5, processes=2))
    held = [queries._begin(None) for _ in range(2)]
    for caller, query in enumerate(held):
        queries._wait_for_place(query, caller)
    with pytest.raises(LimitExceededError, match=r"\(query_seconds\)"):
        queries.run(Question("SELECT 1", {}, []), None, "another")
    queries.close()


def test_the_process_knows_nothing_of_the_mediators_environment(
    queries: ClientQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_PASSWORD", "hush")
    rows = queries.run(Question(MANY_ROWS, {}, []))
    process = process_of(queries)
    assert set(process.environ()) == set(_environment())
    assert "hush" not in str(process.environ())
    assert "SELECT" not in " ".join(process.cmdline())
    del rows


_KILLED = """
import sys
from pathlib import Path
from mediator.warehouse import Warehouse
from mediator.warehouse.client_query import QueryLimits
warehouse = Warehouse(sys.argv[1], durable=False, query_limits=QueryLimits(memory="64MiB"))
# It has to sort more than fits into its memory, so its folder is in use.
sorted = "FROM range(8000000) ORDER BY hash(range)"
rows, _ = warehouse.query(f"SELECT a.range FROM ({sorted}) a, range(1000000) b")
rows.read_next_batch()
import psutil
print(*[child.pid for child in psutil.Process().children()], flush=True)
THEN
"""


@contextmanager
def owner_that_is_killed(
    folder: Path, then: str
) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process], Path]]:
    """A process whose query has put rows into a temporary folder, its children, and where that folder is."""
    spills = folder / "spills"
    spills.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", _KILLED.replace("THEN", then), str(folder / "warehouse")],
        env={**os.environ, "TMPDIR": str(spills)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    children = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
    assert len(children) == 2
    assert list(spills.glob("lockstep-query-*/*"))
    yield owner, children, spills
    owner.stdout.close()


@pytest.mark.parametrize(
    "then", ["rows.read_all()", "import threading; threading.Event().wait()"], ids=["read", "not read"]
)
def test_no_process_and_no_file_outlives_a_killed_owner(tmp_path: Path, then: str) -> None:
    with owner_that_is_killed(tmp_path, then) as (owner, children, spills):
        owner.kill()
        owner.wait()
        for child in children:
            child.wait(GONE_SECONDS)
        assert list(spills.glob("lockstep-query-*")) == []


def test_what_is_left_when_all_are_killed_is_removed_by_the_next_process(tmp_path: Path) -> None:
    """A service manager, or a machine without memory, ends the mediator together with its children."""
    with owner_that_is_killed(tmp_path, "rows.read_all()") as (owner, children, spills):
        owner.send_signal(signal.SIGSTOP)
        for child in children:
            child.kill()
        owner.kill()
        owner.wait()
        for child in children:
            child.wait(GONE_SECONDS)
        with ScratchFolder("next", spills) as mine:
            assert list(spills.glob("lockstep-query-*")) == []
            assert mine.is_dir()
