"""What happens between two holds of the lock: views made and dropped, recoveries and readers in between.

The steps of a write are the moments at which tests step in; nothing here waits for time to pass.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from algebra.errors import LockstepError, NotFoundError
from mediator.warehouse import ViewInstall, Warehouse, reading, upkeep
from mediator.warehouse.tests.builders import SCHEMA, Bag, at, bag, change, counted, row
from mediator.warehouse.tests.test_faults import Broken

VERSIONS = 6


class Interruption:
    """Does something once, at the step of that name; nothing until it is armed."""

    def __init__(self) -> None:
        self._step = ""
        self._action: Callable[[], object] = lambda: None

    def arm(self, step: str, action: Callable[[], object]) -> None:
        self._step, self._action = step, action

    @property
    def pending(self) -> bool:
        return bool(self._step)

    def __call__(self, step: str) -> None:
        if step == self._step:
            self._step = ""
            self._action()


class Gaps:
    """The store's lock, with something that is done once: right after it is let go for the n-th time."""

    def __init__(self, lock: threading.RLock, at_release: int, action: Callable[[], object]) -> None:
        self._lock = lock
        self._action = action
        self._depth = 0
        self.releases_left = at_release

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        free = not self._depth
        self._lock.release()
        if free and self.releases_left > 0:
            self.releases_left -= 1
            if not self.releases_left:
                self._action()


@pytest.fixture
def meanwhile() -> Interruption:
    return Interruption()


@pytest.fixture
def warehouse(
    tmp_path: Path, meanwhile: Interruption, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Warehouse]:
    """Two views at version 6 in small files that `maintain` merges; replaced files go at once."""
    monkeypatch.setattr(upkeep, "_MERGE_FILES", 4)
    with Warehouse(tmp_path / "w", durable=False, grace_seconds=0.0, fault=meanwhile) as warehouse:
        for view in ("left", "right"):
            warehouse.create_view(view, {}, SCHEMA, counted({(0, view): 1}), row(0))
            for number in range(1, VERSIONS + 1):
                warehouse.install([change(view, number, {(number, view): 1})])
        yield warehouse


def create(warehouse: Warehouse, name: str) -> None:
    warehouse.create_view(name, {}, SCHEMA, counted({(7, name): 1}), row(0))


def drop_and_create(warehouse: Warehouse, name: str) -> None:
    warehouse.drop_view(name)
    create(warehouse, name)


def elsewhere(action: Callable[[], object]) -> None:
    """Does it in another thread, and waits for its end; the caller holds no lock that it needs."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def full(view: str, versions: int = VERSIONS) -> Bag:
    return Bag({(number, view): 1 for number in range(versions + 1)})


def reopened(warehouse: Warehouse) -> Warehouse:
    warehouse.close()
    return Warehouse(warehouse.root, durable=False, grace_seconds=0.0)


def test_a_view_made_right_before_versions_are_merged_stays(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which views exist and which files are merged must be the same instant's."""
    merge = upkeep._merge

    def create_first(*arguments: object, **further: object) -> None:
        monkeypatch.setattr(upkeep, "_merge", merge)
        elsewhere(lambda: create(warehouse, "fresh"))
        merge(*arguments, **further)  # type: ignore[arg-type]

    monkeypatch.setattr(upkeep, "_merge", create_first)
    warehouse.maintain()
    with reopened(warehouse) as again:
        assert [view.name for view in again.views()] == ["fresh", "left", "right"]
        assert at(again, "fresh") == {(7, "fresh"): 1}


@pytest.mark.parametrize("step", ["before merge.write", "after merge.write"])
def test_a_view_made_while_versions_are_merged_stays(
    warehouse: Warehouse, meanwhile: Interruption, step: str
) -> None:
    meanwhile.arm(step, lambda: elsewhere(lambda: create(warehouse, "fresh")))
    warehouse.maintain()
    assert not meanwhile.pending
    with reopened(warehouse) as again:
        assert at(again, "fresh") == {(7, "fresh"): 1}
        assert len(again.history("left")) == VERSIONS + 1


def compact_left(warehouse: Warehouse) -> None:
    warehouse.compact("left")


@pytest.mark.parametrize(
    ("work", "step"),
    [
        (Warehouse.maintain, "after merge.write"),
        (compact_left, "after merge.write"),
        (compact_left, "after state.write"),
    ],
)
def test_a_recovery_during_upkeep_leaves_views_readable(
    warehouse: Warehouse, meanwhile: Interruption, work: Callable[[Warehouse], None], step: str
) -> None:
    """Readers are given the files that upkeep left, not those that it has replaced and deleted."""

    def recover_each_time() -> None:
        warehouse.recover()
        meanwhile.arm(step, recover_each_time)

    meanwhile.arm(step, recover_each_time)
    work(warehouse)
    assert warehouse.missing_files() == []
    for view in ("left", "right"):
        assert at(warehouse, view) == full(view)
        assert at(warehouse, view, 2) == full(view, 2)
        assert len(warehouse.history(view)) == VERSIONS + 1
    with reopened(warehouse) as again:
        assert at(again, "left") == full("left")


@pytest.mark.parametrize("dropped", [Warehouse.drop_view, drop_and_create])
def test_a_view_dropped_between_its_listing_and_its_merge_does_not_stop_upkeep(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, dropped: Callable[[Warehouse, str], None]
) -> None:
    merge = upkeep._merge
    calls = iter(range(10))

    def drop_first(*arguments: object, **further: object) -> None:
        if next(calls) == 2:  # `versions` and `views` came before
            elsewhere(lambda: dropped(warehouse, "left"))
        merge(*arguments, **further)  # type: ignore[arg-type]

    monkeypatch.setattr(upkeep, "_merge", drop_first)
    warehouse.maintain()
    left = {(7, "left"): 1} if dropped is drop_and_create else None
    assert [view.name for view in warehouse.views()] == (["left", "right"] if left else ["right"])
    assert len(list((warehouse.root / "data").iterdir())) == len(warehouse.views())
    assert left is None or at(warehouse, "left") == left
    assert at(warehouse, "right") == full("right")


def test_a_view_dropped_before_its_checkpoint_does_not_stop_upkeep(
    warehouse: Warehouse, meanwhile: Interruption, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_CHECKPOINT_COMMITS", 2)
    meanwhile.arm("before log.checkpoint", lambda: elsewhere(lambda: warehouse.drop_view("left")))
    warehouse.maintain()
    assert not meanwhile.pending
    assert [path.name[:5] for path in (warehouse.root / "data").iterdir()] == ["right"]


def test_a_view_dropped_and_made_again_while_it_is_compacted(
    warehouse: Warehouse, meanwhile: Interruption
) -> None:
    meanwhile.arm("after state.write", lambda: elsewhere(lambda: drop_and_create(warehouse, "left")))
    with pytest.raises(NotFoundError, match="dropped meanwhile"):
        warehouse.compact("left")
    warehouse.maintain()
    assert at(warehouse, "left") == {(7, "left"): 1}
    assert len(list((warehouse.root / "data").iterdir())) == 2


def test_files_that_another_program_replaced_during_a_merge_are_not_merged_too(
    warehouse: Warehouse, meanwhile: Interruption
) -> None:
    """An install after it reads the table anew, so the merge meets no number that is taken."""

    def optimize() -> None:
        folder = next((warehouse.root / "data").glob("left-*/changes"))
        DeltaTable(str(folder)).optimize.compact()
        elsewhere(lambda: warehouse.install([change("left", VERSIONS + 1, {(VERSIONS + 1, "left"): 1})]))

    meanwhile.arm("after merge.write", optimize)
    warehouse.compact("left")
    assert not meanwhile.pending
    assert at(warehouse, "left") == full("left", VERSIONS + 1)
    assert at(warehouse, "left", 1) == full("left", 1)


def test_changes_do_not_go_on_in_a_view_that_was_made_again(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_WINDOW_VERSIONS", 2)
    watched = warehouse.changes("left", 0)
    assert [next(watched)[0].version for _ in range(2)] == [1, 2]
    drop_and_create(warehouse, "left")
    for number in range(1, VERSIONS + 1):
        warehouse.install([change("left", number, {(number, "other"): 1})])
    with pytest.raises(NotFoundError, match="view 'left' was dropped meanwhile"):
        next(watched)


def records(warehouse: Warehouse) -> list[tuple[int, int]]:
    return [(record.version, record.rows) for record in warehouse.history("left", 4)]


def one_record(warehouse: Warehouse) -> tuple[int, int]:
    record = warehouse.version_record("left", 3)
    return (record.version, record.rows)


def watched(warehouse: Warehouse) -> list[tuple[int, Bag]]:
    return [(record.version, bag(table)) for record, table in warehouse.changes("left", 0)]


def old_version(warehouse: Warehouse) -> Bag:
    return at(warehouse, "left", 2)


def queried(warehouse: Warehouse) -> object:
    return warehouse.query('SELECT count(*) AS n FROM "left"')[0].read_all().to_pylist()


def kept_up(warehouse: Warehouse) -> None:
    warehouse.maintain()


def nothing_missing(warehouse: Warehouse) -> list[Path]:
    return warehouse.missing_files()


OPERATIONS: list[Callable[[Warehouse], object]] = [
    records,
    one_record,
    watched,
    old_version,
    queried,
    kept_up,
    compact_left,
    nothing_missing,
]
DISTURBANCES: dict[str, Callable[[Warehouse], object]] = {
    "drop": lambda warehouse: warehouse.drop_view("left"),
    "drop and create": lambda warehouse: drop_and_create(warehouse, "left"),
    "create": lambda warehouse: create(warehouse, "fresh"),
    "recover": lambda warehouse: warehouse.recover(),
    "install": lambda warehouse: warehouse.install([change("left", VERSIONS + 1, {(9, "left"): 1})]),
    "merge": lambda warehouse: warehouse.maintain(),
}


def outcome(operation: Callable[[Warehouse], object], warehouse: Warehouse) -> object:
    try:
        return operation(warehouse)
    except LockstepError as error:
        return type(error)


def shown(warehouse: Warehouse) -> dict[str, tuple[int, Bag]]:
    return {v.name: (warehouse.newest(v.name).version, at(warehouse, v.name)) for v in warehouse.views()}


@pytest.mark.parametrize(
    ("operation", "disturbance"),
    [
        pytest.param(
            operation, disturbance, id=f"{operation.__name__}, {name}", marks=[pytest.mark.slow] * is_upkeep
        )
        for operation in OPERATIONS
        for name, disturbance in DISTURBANCES.items()
        # One upkeep at a time, by a lock of its own.
        if not ((is_upkeep := operation in (kept_up, compact_left)) and name == "merge")
    ],
)
def test_anything_between_two_holds_of_the_lock(
    warehouse: Warehouse,
    tmp_path: Path,
    operation: Callable[[Warehouse], object],
    disturbance: Callable[[Warehouse], object],
) -> None:
    """An operation comes out as it would before or after what happens in between; the warehouse as after."""
    prepared = warehouse.root
    warehouse.close()

    def opened(name: str) -> Warehouse:
        return Warehouse(shutil.copytree(prepared, tmp_path / name), durable=False, grace_seconds=0.0)

    with opened("before") as quiet:
        before = outcome(operation, quiet)
    with opened("after") as quiet:
        disturbance(quiet)
        after = outcome(operation, quiet)
        expected = shown(quiet)
    tried = 0
    while True:
        with opened(f"gap-{tried}") as disturbed:
            gaps = Gaps(disturbed._store.lock, tried + 1, lambda of=disturbed: disturbance(of))  # type: ignore[misc]
            disturbed._store.lock = gaps  # type: ignore[assignment]
            result = outcome(operation, disturbed)
            if gaps.releases_left:
                gaps.releases_left = 0
                break
            assert result in (before, after, NotFoundError), tried
            assert shown(disturbed) == expected
            assert disturbed.missing_files() == []
            disturbed.maintain()
            assert len(list((disturbed.root / "data").iterdir())) == len(expected)
        with Warehouse(disturbed.root, read_only=True) as again:
            assert shown(again) == expected, tried
        shutil.rmtree(disturbed.root)
        tried += 1
    assert tried


def test_a_compaction_that_fails_is_known_to_whoever_takes_the_lock_next(
    warehouse: Warehouse, meanwhile: Interruption
) -> None:
    """A drop after it would use the number of its row again, and one of the two rows would win by chance."""

    def fail() -> None:
        raise Broken

    class DropOnDiscard(set[Path]):
        def discard(self, element: object) -> None:
            super().discard(element)
            warehouse._store.guarded = set(self)
            warehouse.drop_view("left")

    warehouse._store.guarded = DropOnDiscard()
    meanwhile.arm("after log.link", fail)
    with pytest.raises(Broken):
        warehouse.compact("left")
    views = DeltaTable(str(warehouse.root / "views")).to_pyarrow_table()
    assert len(set(views["sequence"].to_pylist())) == views.num_rows
    with reopened(warehouse) as again:
        assert [view.name for view in again.views()] == ["right"]


@pytest.mark.parametrize("step", ["after log.link", "before log.link"])
def test_a_drop_that_fails_is_known_to_a_compaction_under_way(
    warehouse: Warehouse, meanwhile: Interruption, step: str
) -> None:
    """The other way round: the view may have ended, and the row that moves its state would bring it back."""

    def fail() -> None:
        raise Broken

    def drop() -> None:
        meanwhile.arm(step, fail)
        with pytest.raises(Broken):
            warehouse.drop_view("left")

    meanwhile.arm("after state.write", lambda: elsewhere(drop))
    ended = step == "after log.link"
    with pytest.raises(NotFoundError, match="'left' was dropped meanwhile") if ended else nullcontext():
        warehouse.compact("left")
    views = DeltaTable(str(warehouse.root / "views")).to_pyarrow_table()
    assert len(set(views["sequence"].to_pylist())) == views.num_rows
    assert [view.name for view in warehouse.views()] == ["left", "right"][ended:]
    with reopened(warehouse) as again:
        assert [view.name for view in again.views()] == ["left", "right"][ended:]
        for view in again.views():
            assert at(again, view.name) == full(view.name)


def test_a_write_that_is_refused_does_not_hide_that_upkeep_failed(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        warehouse._store.failed = True
        raise NotFoundError("refused before its first step")

    with monkeypatch.context() as patched:
        patched.setattr("mediator.warehouse.installing.install", refused)
        with pytest.raises(NotFoundError):
            warehouse.install([])
    assert warehouse._store.failed
    warehouse.install([])
    assert not warehouse._store.failed, "it was recovered first"


def test_a_compaction_of_no_view_leaves_nothing_to_recover(warehouse: Warehouse) -> None:
    with pytest.raises(NotFoundError, match="there is no view 'nobody'"):
        warehouse.compact("nobody")
    assert not warehouse._store.failed


def test_a_compaction_waits_for_upkeep_and_does_not_take_it_for_a_copy(
    warehouse: Warehouse, meanwhile: Interruption
) -> None:
    problems: list[BaseException] = []

    def compact() -> None:
        try:
            warehouse.compact("left")
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=compact)

    def begin() -> None:
        thread.start()
        thread.join(0.3)  # long enough to be refused, if it is going to be

    meanwhile.arm("before merge.write", begin)
    warehouse.maintain()
    thread.join()
    assert problems == []
    assert warehouse.view("left").state_version == VERSIONS


def test_a_view_dropped_and_made_again_after_its_making_failed_late(
    warehouse: Warehouse, meanwhile: Interruption
) -> None:
    """The first attempt failed after its commit, so its id is taken: rows under it would speak for both."""

    def fail() -> None:
        raise Broken

    meanwhile.arm("after versions.commit", fail)
    with pytest.raises(Broken):
        create(warehouse, "late")
    warehouse.recover()
    warehouse.install([change("late", 1, {(8, "late"): 1})])
    reader = warehouse.read("late")
    drop_and_create(warehouse, "late")
    assert (warehouse.newest("late").version, at(warehouse, "late")) == (0, {(7, "late"): 1})
    assert bag(reader) == {(7, "late"): 1, (8, "late"): 1}
    del reader
    warehouse.maintain()
    assert at(warehouse, "late") == {(7, "late"): 1}
    with reopened(warehouse) as again:
        assert [(v.version, v.rows) for v in again.history("late")] == [(0, 1)]


@pytest.mark.parametrize("recovered", [True, False])
def test_staged_files_of_an_install_that_failed_late_are_kept(
    warehouse: Warehouse, meanwhile: Interruption, recovered: bool
) -> None:
    """Its version is visible, so to discard what was staged for it must not take its rows."""

    def fail() -> None:
        raise Broken

    staged = warehouse.stage_directory("left")
    rows = change("left", VERSIONS + 1, {(9, "left"): 1}).table
    assert rows is not None
    pq.write_table(rows, staged / "0.parquet")
    meanwhile.arm("after versions.commit", fail)
    with pytest.raises(Broken):
        warehouse.install([ViewInstall("left", [row(VERSIONS + 1)], [staged / "0.parquet"])])
    if recovered:
        warehouse.recover()
    warehouse.discard(staged)
    warehouse.recover()
    assert warehouse.newest("left").version == VERSIONS + 1
    assert at(warehouse, "left")[(9, "left")] == 1
    assert warehouse.missing_files() == []


@pytest.mark.parametrize("work", [compact_left, lambda warehouse: warehouse.drop_view("left")])
def test_a_reader_keeps_its_files_through_a_write_that_failed_late(
    warehouse: Warehouse, meanwhile: Interruption, work: Callable[[Warehouse], None]
) -> None:
    """Recovery finds its files replaced; they are no remains of a crash, for somebody reads them."""

    def fail() -> None:
        raise Broken

    reader = warehouse.read("left")
    meanwhile.arm("after views.commit", fail)
    with pytest.raises(Broken):
        work(warehouse)
    state = next((warehouse.root / "data").glob("left-*/state-0"))
    warehouse.recover()
    assert state.exists()
    assert bag(reader) == full("left")
    del reader
    warehouse.maintain()
    assert not state.exists()


@pytest.mark.parametrize(
    "step", ["before views.commit", "after log.link", "after views.commit", "after files.delete"]
)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_drop_that_fails_comes_out_right_when_it_is_tried_again(
    warehouse: Warehouse, meanwhile: Interruption, step: str, restarted: bool
) -> None:
    def full_disk() -> None:
        raise OSError(28, "No space left on device")

    meanwhile.arm(step, full_disk)
    if step == "after files.delete":
        warehouse.drop_view("left")  # what is left on the disk is no reason to say that it failed
    else:
        with pytest.raises(OSError, match="No space"):
            warehouse.drop_view("left")
    assert at(warehouse, "right") == full("right")
    if restarted:
        warehouse = reopened(warehouse)
        if any(view.name == "left" for view in warehouse.views()):
            warehouse.drop_view("left")
    elif step != "after files.delete":
        warehouse.drop_view("left")
    with pytest.raises(NotFoundError):
        warehouse.drop_view("left")
    create(warehouse, "left")
    assert at(warehouse, "left") == {(7, "left"): 1}
    warehouse.maintain()
    assert len(list((warehouse.root / "data").iterdir())) == 2
    warehouse.close()


def test_what_cannot_be_deleted_is_tried_again(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        warehouse._store.graveyard.bury([next(warehouse.root.glob("versions/*.parquet"))])
        folder = next((warehouse.root / "data").glob("left-*"))
        warehouse._store.graveyard.bury([folder])
        upkeep.remove_replaced(warehouse._store)
        assert len(warehouse._store.graveyard.waiting) == 2
    upkeep.remove_replaced(warehouse._store)
    assert not folder.exists()
    assert not warehouse._store.graveyard.waiting
