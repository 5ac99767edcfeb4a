"""The shadow: differences of streamed states, kept until acknowledged, whole after any crash."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from adapters.shadow.extent import ArrowExtent
from adapters.shadow.store import Shadow, shadow_file
from adapters.shadow.tests.tables import (
    ITEM,
    NOTE,
    Row,
    Tables,
    changes_after,
    cycle,
    deltas,
    open_shadow,
    state,
)
from algebra.errors import ConfigurationError, DataError, PositionTrimmedError
from algebra.position import ORIGIN, Position
from algebra.schema import Column

NAN = float("nan")


@pytest.fixture
def tables() -> Tables:
    return Tables(ITEM, NOTE)


@pytest.fixture
def shadow(tmp_path: Path, tables: Tables) -> Shadow:
    shadow = open_shadow(tmp_path)
    shadow.prepare(tables, ["item", "note"])
    return shadow


def test_keyed_and_keyless_relations_are_compared(shadow: Shadow, tables: Tables) -> None:
    tables.contents["item"] = [(1, "a", 1.5), (2, None, None), (3, "c", NAN)]
    tables.contents["note"] = [("x", 1), ("x", 1), (None, None), ("y", 2)]
    first = cycle(shadow, tables)
    tables.contents["item"] = [(1, "a", 1.5), (2, None, -0.0), (3, "c", NAN)]
    tables.contents["note"] = [("x", 1), (None, None), (None, None)]
    cycle(shadow, tables)
    (entry,) = deltas(changes_after(shadow, first))
    assert entry["item"] == {(2, None, None): -1, (2, None, -0.0): 1}
    assert entry["note"] == {("x", 1): -1, (None, None): 1, ("y", 2): -1}


def test_an_unchanged_state_is_no_entry(shadow: Shadow, tables: Tables) -> None:
    tables.contents["note"] = [("x", 1), ("y", 2)]
    first = cycle(shadow, tables)
    tables.contents["note"].reverse()
    assert cycle(shadow, tables) == first
    assert len(changes_after(shadow, ORIGIN)) == 1


def test_relations_left_out_of_a_cycle_stay_as_they_are(shadow: Shadow, tables: Tables) -> None:
    tables.contents = {"item": [(1, "a", None)], "note": [("x", 1)]}
    cycle(shadow, tables)
    with shadow.opened() as held, held.cycle() as found:
        found.replace("note", tables.extent("note", []), note="seen at noon")
    with shadow.opened() as held:
        assert state(held, "item") == Counter({(1, "a", None): 1})
        assert state(held, "note") == Counter()
        assert held.relations["note"].note == "seen at noon"
        assert held.relations["item"].note == ""


def test_every_position_can_be_resumed_by_another_shadow(
    shadow: Shadow, tables: Tables, tmp_path: Path
) -> None:
    positions = [ORIGIN]
    for n in range(4):
        tables.contents["note"].append(("x", n))
        positions.append(cycle(shadow, tables))
    again = open_shadow(tmp_path)
    for index, position in enumerate(positions):
        changes = changes_after(again, Position(position.ordinal, position.token))
        assert deltas(changes) == [{"note": {("x", n): 1}} for n in range(index, 4)]
        assert changes.positions == tuple(positions[index + 1 :])
        assert changes.batched == set(range(4 - index))


def test_acknowledged_differences_are_let_go_and_foreign_positions_are_not_heeded(
    shadow: Shadow, tables: Tables
) -> None:
    positions = []
    for n in range(3):
        tables.contents["note"].append(("x", n))
        positions.append(cycle(shadow, tables))
    shadow.acknowledge(Position(2, "another:history"))
    assert len(changes_after(shadow, ORIGIN)) == 3
    shadow.acknowledge(positions[1])
    assert deltas(changes_after(shadow, positions[1])) == [{"note": {("x", 2): 1}}]
    for gone in (ORIGIN, positions[0], Position(2, "another:history"), Position(9, positions[2].token)):
        with pytest.raises(PositionTrimmedError):
            changes_after(shadow, gone)


def test_a_stream_that_fails_leaves_nothing_of_its_cycle(shadow: Shadow, tables: Tables) -> None:
    tables.contents = {"item": [(1, "a", None)], "note": [("x", 1)]}
    before = cycle(shadow, tables)

    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"text": "z", "n": 9}], NOTE.arrow)
        raise ZeroDivisionError("in the middle")

    with shadow.opened() as held:
        with pytest.raises(ZeroDivisionError, match="in the middle"):  # noqa: SIM117, PT012
            with held.cycle() as found:
                found.replace("item", tables.extent("item", [(2, "b", None)]))
                found.replace("note", ArrowExtent("note", NOTE.arrow, broken()))
        assert held.position == before
        assert state(held, "item") == Counter({(1, "a", None): 1})
        assert state(held, "note") == Counter({("x", 1): 1})
    tables.contents["note"] = [("x", 2)]
    cycle(shadow, tables)
    assert deltas(changes_after(shadow, before)) == [{"note": {("x", 1): -1, ("x", 2): 1}}]


def test_a_key_that_is_none_is_refused(shadow: Shadow, tables: Tables) -> None:
    tables.contents["item"] = [(1, "a", None), (2, "b", None)]
    before = cycle(shadow, tables)
    tables.contents["item"] = [(1, "a", None), (2, "b", None), (2, "c", None)]
    with pytest.raises(DataError, match=r"shop\.item has more than one row with id = 2"):
        cycle(shadow, tables)
    assert len(changes_after(shadow, before)) == 0
    shadow.remove()
    with pytest.raises(DataError, match="more than one row"):
        shadow.prepare(tables, ["item"])


def test_a_refused_or_failed_prepare_leaves_no_file(tmp_path: Path, tables: Tables) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        raise ZeroDivisionError
        yield

    tables.rows = lambda relation: ArrowExtent(relation, NOTE.arrow, broken())  # type: ignore[method-assign]
    shadow = open_shadow(tmp_path)
    with pytest.raises(ConfigurationError, match="no relation"):
        shadow.prepare(tables, ["item", "other"])
    with pytest.raises(ZeroDivisionError):
        shadow.prepare(tables, ["note"])
    assert list(tmp_path.iterdir()) == []


def test_steps_are_told_before_they_are_taken_and_removal_leaves_nothing(
    tmp_path: Path, tables: Tables
) -> None:
    shadow = open_shadow(tmp_path)
    planned = shadow.prepare(tables, ["item"], dry_run=True)
    assert list(tmp_path.iterdir()) == []
    assert shadow.prepare(tables, ["item"]) == planned
    assert shadow.prepare(tables, ["item"]) == []
    assert any("the rows of item" in step for step in planned)
    assert shadow.remove(dry_run=True) == shadow.remove() == [f"delete {tmp_path / 'shadow'}"]
    assert list(tmp_path.iterdir()) == []
    with shadow.opened() as held:
        assert not held.prepared


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (replace(ITEM, columns=ITEM.columns[:2]), "lost column 'Name'"),
        (replace(ITEM, columns=(*ITEM.columns, Column("more", pa.string()))), "got column 'more'"),
        (replace(ITEM, columns=(*ITEM.columns[:2], Column("Name", pa.string()))), "changed column 'Name'"),
        (replace(ITEM, columns=ITEM.columns[::-1]), "changed the order of its columns"),
        (replace(ITEM, key=()), r"changed its key from \(id\) to \(\)"),
        (replace(ITEM, name="other"), "was dropped"),
    ],
)
def test_drift_is_told_in_words(shadow: Shadow, changed: object, problem: str) -> None:
    now = Tables(changed, NOTE)  # type: ignore[arg-type]
    with shadow.opened() as held:
        drifted = held.drifted(now)
    assert list(drifted) == ["item"]
    assert re.search(problem, drifted["item"])


def test_a_shadow_of_another_version_is_refused(shadow: Shadow, tables: Tables, tmp_path: Path) -> None:
    with duckdb.connect(str(shadow_file(tmp_path / "shadow"))) as connection:
        connection.execute("UPDATE meta SET format = 99")
    with pytest.raises(ConfigurationError, match="another version of Lockstep"):
        cycle(shadow, tables)


def test_a_shadow_of_another_database_is_refused(shadow: Shadow, tables: Tables, tmp_path: Path) -> None:
    tables.contents["note"] = [("x", 1)]
    before = cycle(shadow, tables)
    other, others = open_shadow(tmp_path, "another"), Tables(ITEM, NOTE)
    refusals: list[Callable[[], object]] = [
        lambda: cycle(other, others),
        lambda: other.prepare(others, ["note"]),
        lambda: other.acknowledge(before),
    ]
    for refused in refusals:
        with pytest.raises(ConfigurationError, match="the shadow of another database, memory; name ano") as e:
            refused()
        assert "memory" not in e.value.message
    assert cycle(shadow, tables) == before
    other.remove()
    other.prepare(others, ["note"])
    with pytest.raises(ConfigurationError, match="the shadow of another database, another; "):
        cycle(shadow, tables)


def test_a_shadow_that_says_nothing_of_its_database_is_of_the_one_it_is_opened_for(
    shadow: Shadow, tables: Tables, tmp_path: Path
) -> None:
    before = cycle(shadow, tables)
    with duckdb.connect(str(shadow_file(tmp_path / "shadow"))) as connection:
        connection.execute('ALTER TABLE meta DROP COLUMN "database"')
    assert cycle(shadow, tables) == before
    with pytest.raises(ConfigurationError, match="the shadow of another database"):
        cycle(open_shadow(tmp_path, "another"), tables)


def test_a_comparison_beyond_the_memory_limit_spills(tmp_path: Path) -> None:
    count = 300_000
    tables = Tables(NOTE, batch_rows=50_000)
    shadow = open_shadow(tmp_path, memory_limit="60MB")
    tables.contents["note"] = [(f"{i:0100d}", i) for i in range(count)]
    shadow.prepare(tables, ["note"])
    tables.contents["note"][7] = ("other", 7)
    cycle(shadow, tables)
    assert deltas(changes_after(shadow, ORIGIN)) == [{"note": {(f"{7:0100d}", 7): -1, ("other", 7): 1}}]


# Patching


def test_what_is_outdated_is_found_by_key_and_hint(shadow: Shadow, tables: Tables) -> None:
    """The hint is `name`: another value, an older one, NULL, a new key, and a key that is gone."""
    tables.contents["item"] = [(i, f"v{i}", 0.0) for i in range(1, 7)]
    before = cycle(shadow, tables)
    now: dict[int, Row] = {
        1: (1, "v1", 0.0),
        2: (2, "v9", 1.0),
        3: (3, "a", 2.0),
        4: (4, None, 3.0),
        7: (7, "a0", 4.0),
    }
    with shadow.opened() as held, held.cycle() as found:
        outdated = found.outdated("item", tables.extent("item", [row[:2] for row in now.values()]), "name", 0)
        keys = sorted(outdated.keys["id"].to_pylist())
        assert keys == [2, 3, 4, 7]
        assert outdated.rows == 5
        rows = tables.extent("item", [now[key] for key in keys])
        assert found.patch(outdated, rows, note="patched", track=False)
    (entry,) = deltas(changes_after(shadow, before))
    came = {now[key]: 1 for key in keys}
    gone = {(i, f"v{i}", 0.0): -1 for i in (2, 3, 4, 5, 6)}
    assert entry["item"] == {**came, **gone}


def test_a_patch_that_is_not_exactly_what_was_asked_for_is_not_taken(shadow: Shadow, tables: Tables) -> None:
    tables.contents["item"] = [(1, "v1", 0.0), (2, "v1", 0.0)]
    before = cycle(shadow, tables)
    for rows in ([], [(1, "v2", 0.0)], [(1, "v2", 0.0), (1, "v2", 0.0)], [(1, "v2", 0.0), (3, "v2", 0.0)]):
        with shadow.opened() as held, held.cycle() as found:
            outdated = found.outdated("item", tables.extent("item", [(1, "v2"), (2, "v2")]), "name", 0)
            assert not found.patch(outdated, tables.extent("item", rows), note="", track=False)
    assert len(changes_after(shadow, before)) == 0


def test_fresh_hints_are_not_believed_until_their_time_is_over(shadow: Shadow, tables: Tables) -> None:
    tables.contents["item"] = [(1, "v1", 0.0), (2, "v1", 0.0)]
    cycle(shadow, tables)
    versions = [(1, "v2"), (2, "v1")]
    asked = []
    for now in (100.0, 105.0, 111.0, 112.0):
        with shadow.opened() as held, held.cycle(now) as found:
            outdated = found.outdated("item", tables.extent("item", versions), "name", overlap=10)
            asked.append(outdated.keys["id"].to_pylist())
            rows = tables.extent("item", [(1, "v2", now if now < 111 else 105.0)][: len(asked[-1])])
            assert found.patch(outdated, rows, note="", track=now == 100.0)
    # Seen first at 100, read again at 105, and once more after 110; then it is settled.
    assert asked == [[1], [1], [1], []]


# Crashes


LOOP = """
import sys
from pathlib import Path
from adapters.shadow.tests.tables import ITEM, NOTE, Tables, cycle, open_shadow
from adapters.shadow.tests.test_shadow import contents
tables = Tables(ITEM, NOTE)
shadow = open_shadow(Path(sys.argv[1]))
n = int(sys.argv[2])
while True:
    n += 1
    tables.contents.update(contents(n))
    position = cycle(shadow, tables)
    print(position.ordinal, flush=True)
"""


def contents(n: int) -> dict[str, list[Row]]:
    """What the relations hold after cycle n."""
    return {
        "item": [(i, f"{n}", None) for i in range(n % 5 + 1)],
        "note": [("x", n)] * (n % 3 + 1) + [("y", n // 2)],
    }


def test_a_killed_process_leaves_whole_cycles(shadow: Shadow, tables: Tables, tmp_path: Path) -> None:
    rnd = random.Random(5)
    n = 0
    for _ in range(3):
        command = [sys.executable, "-c", LOOP, str(tmp_path), str(n)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=os.getcwd())
        assert process.stdout is not None
        for _ in range(rnd.randrange(1, 6)):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with shadow.opened() as held:
            position = held.position
            assert position.ordinal >= last, "a cycle that was reported is there"
            replayed: dict[str, Counter[Row]] = {"item": Counter(), "note": Counter()}
            for entry in deltas(held.changes(ORIGIN)):
                for name, rows in entry.items():
                    replayed[name].update(rows)
            for name, rows in replayed.items():
                assert state(held, name) == +rows, "state and history are of the same cycle"
            found = {name: state(held, name) for name in replayed}
        n = max(row[1] for row in found["note"])
        assert found == {name: Counter(rows) for name, rows in contents(n).items()}, "no part of a cycle"
