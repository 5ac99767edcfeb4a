"""Positions: any of them can be resumed from, and one that is not of this history is refused."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from adapters.duckdb.tests.conftest import MakeAdapter
from adapters.duckdb.tests.owner import Owner
from adapters.duckdb.tests.views import changes_after, deltas
from adapters.shadow.store import shadow_file
from algebra.errors import PositionTrimmedError, SchemaChangedError
from algebra.position import ORIGIN, Position


@pytest.fixture
def history(owner: Owner, path: Path, make: MakeAdapter) -> MakeAdapter:
    """Five transactions, of one to three statements each."""
    owner.write(path, "CREATE TABLE t (n INTEGER)", "CREATE TABLE u (n INTEGER)")
    make().prepare(["t", "u"])
    owner.open(path)
    for n in range(1, 6):
        owner.run("BEGIN", *[f"INSERT INTO t VALUES ({n})" for _ in range(n % 3 + 1)], "COMMIT")
    owner.close()
    return make


def test_every_position_can_be_resumed_from_by_another_adapter(history: MakeAdapter) -> None:
    everything, _ = changes_after(history(), ORIGIN)
    assert len(everything) == 5
    for index, position in enumerate(everything.positions):
        rest, _ = changes_after(history(), Position(position.ordinal, position.token))
        assert rest.positions == everything.positions[index + 1 :]
        assert deltas(rest) == deltas(everything)[index + 1 :]


def test_positions_rise_and_end_at_the_position_of_the_snapshot(history: MakeAdapter) -> None:
    everything, position = changes_after(history(), ORIGIN)
    ordinals = [p.ordinal for p in everything.positions]
    assert ordinals == sorted(set(ordinals))
    assert (position.ordinal, position.token) == (
        everything.positions[-1].ordinal,
        everything.positions[-1].token,
    )


def test_acknowledged_history_is_trimmed_and_the_rest_stays(
    history: MakeAdapter, owner: Owner, path: Path
) -> None:
    adapter = history(trim_entries=1)
    everything, _ = changes_after(adapter, ORIGIN)
    adapter.acknowledge(everything.positions[2])
    rest, _ = changes_after(adapter, everything.positions[2])
    assert deltas(rest) == deltas(everything)[3:]
    assert rest.positions == everything.positions[3:]
    for gone in (ORIGIN, everything.positions[0], everything.positions[1]):
        with pytest.raises(PositionTrimmedError, match="trimmed"):
            changes_after(adapter, gone)
    assert owner.write(path, "SELECT count(*) FROM _lockstep.log_1") == [
        [sum(sum(d["t"].values()) for d in deltas(everything)[3:])]
    ]
    # Idempotent, never goes back, and what is left survives new writes.
    adapter.acknowledge(everything.positions[2])
    adapter.acknowledge(everything.positions[0])
    owner.write(path, "INSERT INTO u VALUES (9)")
    rest, _ = changes_after(adapter, everything.positions[2])
    assert deltas(rest) == [*deltas(everything)[3:], {"u": {(9,): 1}}]


def test_all_history_can_be_trimmed_and_goes_on(history: MakeAdapter, owner: Owner, path: Path) -> None:
    adapter = history(trim_entries=1)
    _, position = changes_after(adapter, ORIGIN)
    adapter.acknowledge(position)
    changes, same = changes_after(adapter, position)
    assert len(changes) == 0
    assert (same.ordinal, same.token) == (position.ordinal, position.token)
    owner.write(path, "INSERT INTO u VALUES (1)")
    changes, later = changes_after(adapter, position)
    assert deltas(changes) == [{"u": {(1,): 1}}]
    assert later > position


@pytest.mark.parametrize("capture", ["trigger", "diff"])
@pytest.mark.parametrize("anew", ["prepared", "restored"])
def test_a_history_whose_numbers_begin_again_is_trimmed(
    owner: Owner, path: Path, make: MakeAdapter, capture: str, anew: str
) -> None:
    owner.write(path, "CREATE TABLE t (n INTEGER)")
    adapter = make(capture, trim_entries=1)
    adapter.prepare(["t"])
    shadow = path.with_name(f"{path.name}.lockstep-shadow")
    kept = path if capture == "trigger" else shadow_file(shadow)
    backup = path.with_name("backup")
    shutil.copy(kept, backup)
    position = ORIGIN
    for n in range(5):
        owner.write(path, f"INSERT INTO t VALUES ({n})")
        _, position = changes_after(adapter, position)
        adapter.acknowledge(position)
    if anew == "prepared":
        adapter.remove()
        adapter.prepare(["t"])
    else:
        shutil.copy(backup, kept)
    owner.write(path, "DELETE FROM t", "INSERT INTO t VALUES (6)")
    _, position = changes_after(adapter, ORIGIN)
    assert position.ordinal < 5
    adapter.acknowledge(position)
    with pytest.raises(PositionTrimmedError, match="trimmed"):
        changes_after(adapter, ORIGIN)


def test_trimming_can_be_switched_off_and_is_lazy(history: MakeAdapter) -> None:
    _, position = changes_after(history(), ORIGIN)
    history(trim=False, trim_entries=0).acknowledge(position)
    history(trim_entries=1000, trim_seconds=3600).acknowledge(position)
    changes, _ = changes_after(history(), ORIGIN)
    assert len(changes) == 5


def test_acknowledge_waits_for_a_better_time_if_the_file_is_held(
    history: MakeAdapter, owner: Owner, path: Path
) -> None:
    adapter = history(trim_entries=1)
    _, position = changes_after(adapter, ORIGIN)
    owner.open(path)
    adapter.acknowledge(position)
    owner.close()
    assert len(changes_after(adapter, ORIGIN)[0]) == 5
    adapter.acknowledge(position)
    with pytest.raises(PositionTrimmedError):
        changes_after(adapter, ORIGIN)


def test_positions_of_another_installation_are_refused(history: MakeAdapter) -> None:
    adapter = history()
    _, old = changes_after(adapter, ORIGIN)
    adapter.remove()
    adapter.prepare(["t"])
    for position in (old, Position(0, old.token), Position(1)):
        with pytest.raises(PositionTrimmedError, match="not of this history"):
            changes_after(adapter, position)
    assert len(changes_after(adapter, ORIGIN)[0]) == 0


def test_a_restored_backup_is_noticed_even_after_it_was_written_further(
    history: MakeAdapter, owner: Owner, path: Path
) -> None:
    backup = path.with_name("backup")
    shutil.copy(path, backup)
    owner.write(path, "INSERT INTO t VALUES (6)")
    adapter = history()
    everything, position = changes_after(adapter, ORIGIN)
    shutil.copy(backup, path)
    with pytest.raises(PositionTrimmedError, match="not of this history"):
        changes_after(adapter, position)
    owner.write(path, "INSERT INTO t VALUES (7)", "INSERT INTO t VALUES (8)")
    with pytest.raises(PositionTrimmedError, match="not of this history"):
        changes_after(adapter, position)
    # What the backup shares with the lost history can still be resumed from.
    changes, _ = changes_after(adapter, everything.positions[-2])
    assert deltas(changes) == [{"t": {(7,): 1}}, {"t": {(8,): 1}}]


def test_a_position_inside_a_transaction_is_refused(history: MakeAdapter) -> None:
    everything, _ = changes_after(history(), ORIGIN)
    ordinals = [0, *(p.ordinal for p in everything.positions)]
    inside = next(a + 1 for a, b in pairwise(ordinals) if b - a > 1)
    token = next(p.token for p in everything.positions if p.ordinal > inside)
    with pytest.raises(PositionTrimmedError):
        changes_after(history(), Position(inside, token))


@pytest.mark.parametrize(
    ("ddl", "problem"),
    [
        (["ALTER TABLE t ADD COLUMN extra INTEGER"], "got column 'extra'"),
        (["DROP TABLE t"], "was dropped"),
        (["CREATE OR REPLACE TABLE t (n INTEGER)"], "lost its triggers"),
        (["DROP TABLE t", "CREATE TABLE t (n BIGINT)"], "changed column 'n' from INTEGER to BIGINT"),
    ],
)
def test_drift_of_a_prepared_relation_is_named(
    history: MakeAdapter, owner: Owner, path: Path, ddl: list[str], problem: str
) -> None:
    owner.write(path, *ddl)
    with pytest.raises(SchemaChangedError, match=rf"shop\.t {problem}"):
        changes_after(history(), ORIGIN)


def test_prepare_mends_what_drifted_and_starts_a_new_history(
    history: MakeAdapter, owner: Owner, path: Path
) -> None:
    adapter = history()
    _, old = changes_after(adapter, ORIGIN)
    owner.write(path, "ALTER TABLE t ADD COLUMN extra INTEGER")
    assert adapter.prepare(["u"])
    with pytest.raises(PositionTrimmedError):
        changes_after(adapter, old)
    with adapter.snapshot() as snapshot:
        now = snapshot.position
    assert now.ordinal >= old.ordinal
    owner.write(path, "INSERT INTO t VALUES (1, 2)", "INSERT INTO u VALUES (3)")
    changes, _ = changes_after(adapter, now)
    assert deltas(changes) == [{"t": {(1, 2): 1}}, {"u": {(3,): 1}}]
