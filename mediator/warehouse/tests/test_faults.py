"""Every write, broken before and after each of its steps: what is visible is the old or the new state.

A first run records the steps of an operation. Then each of them is broken in a copy of the same warehouse:
by an exception, after which the same process goes on, or is opened anew; and by a process that ends at once
(`os._exit`), as a crash does. That the list of steps is complete is a test itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from algebra.position import Position
from mediator.warehouse import ViewInstall, Warehouse, upkeep
from mediator.warehouse.reached import Reach
from mediator.warehouse.tests.builders import SCHEMA, Bag, at, change, counted, row

ROOT = Path(__file__).resolve().parents[3]
BEFORE = {"left": Bag({(1, "a"): 1, (2, "b"): 2}), "right": Bag({(9, None): 1})}
AFTER = {"left": Bag({(2, "b"): 2, (5, "e"): 1}), "right": Bag({(9, None): 1, (8, "z"): 3})}
Visible = dict[str, tuple[int, Bag]]


class Broken(BaseException):
    """The fault that a test injects."""


@dataclass
class Fault:
    """Breaks at the step of that name; without a name it only records.

    A step that comes again is known by its number: "after log.link", "after log.link 2".
    """

    at: str = ""
    steps: list[str] = field(default_factory=list)
    end: Callable[[], None] = lambda: None

    def arm(self, step: str) -> None:
        """From now on, break at that step; steps are counted anew."""
        self.steps.clear()
        self.at = step

    def __call__(self, name: str) -> None:
        again = sum(1 for step in self.steps if step == name or step.startswith(f"{name} "))
        step = f"{name} {again + 1}" if again else name
        self.steps.append(step)
        if step == self.at:
            self.at = ""
            self.end()
            raise Broken(step)


def prepare(root: Path) -> None:
    """Two views at version 5, with enough small files for a merge and something to compact."""
    with Warehouse(root, durable=False, grace_seconds=0.0) as warehouse:
        warehouse.create_view("left", {}, SCHEMA, counted({(1, "a"): 1}), row(0))
        warehouse.create_view("right", {}, SCHEMA, counted({}), row(0))
        for number in range(1, 6):
            even = number - number % 2
            left = {(2, "b"): 2} if number == 1 else {(even, "x"): 1 if number == even else -1}
            right = {(9, None): 1} if number == 5 else {}
            warehouse.install([change("left", number, left), change("right", number, right)])


def install(warehouse: Warehouse) -> None:
    warehouse.install(
        [
            change("left", 6, {(1, "a"): -1, (5, "e"): 1}),
            change("right", 6, {(8, "z"): 3}),
        ]
    )


def create(warehouse: Warehouse) -> None:
    warehouse.create_view("third", {}, SCHEMA, counted({(3, "c"): 3}), row(0))


def drop(warehouse: Warehouse) -> None:
    warehouse.drop_view("left")


def compact(warehouse: Warehouse) -> None:
    warehouse.compact("left")


def maintain(warehouse: Warehouse) -> None:
    warehouse.maintain()


def note(warehouse: Warehouse) -> None:
    warehouse.note_reached({"left": {"shop": Reach(warehouse.vector("left")["shop"], Position(77))}})


def visible(warehouse: Warehouse) -> Visible:
    return {
        view.name: (warehouse.newest(view.name).version, at(warehouse, view.name))
        for view in warehouse.views()
    }


OLD: Visible = {name: (5, state) for name, state in BEFORE.items()}
NEW: dict[Callable[[Warehouse], None], Visible] = {
    install: {name: (6, state) for name, state in AFTER.items()},
    create: {**OLD, "third": (0, Bag({(3, "c"): 3}))},
    drop: {"right": OLD["right"]},
    compact: OLD,
    maintain: OLD,
    note: OLD,
}


@pytest.fixture(autouse=True)
def eager_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few files are enough for `maintain` to merge them."""
    monkeypatch.setattr(upkeep, "_MERGE_FILES", 4)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prepared") / "warehouse"
    prepare(root)
    return root


def steps_of(operation: Callable[[Warehouse], None], prepared: Path, scratch: Path) -> list[str]:
    root = shutil.copytree(prepared, scratch / "recorded")
    fault = Fault()
    with Warehouse(root, durable=False, grace_seconds=0.0, fault=fault) as warehouse:
        fault.steps.clear()
        operation(warehouse)
        assert visible(warehouse) == NEW[operation]
    return list(fault.steps)


def moments(steps: list[str]) -> list[str]:
    """The steps that differ on disk: what is there after a step is what is there before the next one."""
    return steps[:1] + [step for step in steps if step.startswith("after")]


def check_clean(warehouse: Warehouse) -> None:
    """No file is left that no commit names, and no row that no version shows."""
    names = {view.name for view in warehouse.views()}
    folders = {path.name.rsplit("-", 1)[0]: path for path in (warehouse.root / "data").iterdir()}
    assert set(folders) == names
    for view in warehouse.views():
        folder = folders[view.name]
        assert {path.name for path in folder.iterdir()} == {"changes", f"state-{view.state_version}"}
        newest = warehouse.newest(view.name).version
        rows = (
            DeltaTable(str(folder / "changes")).to_pyarrow_table(columns=["_version"])["_version"].to_pylist()
        )
        assert max(rows, default=0) <= newest
    assert not list(warehouse.root.glob("*.tmp"))
    tables = [warehouse.root / "versions", warehouse.root / "views"]
    tables += [table for folder in folders.values() for table in folder.iterdir()]
    for table in tables:
        named = {path.rsplit("/", 1)[1] for path in DeltaTable(str(table)).file_uris()}
        assert {path.name for path in table.rglob("*.parquet") if path.parent.name != "_delta_log"} == named
        assert not list(table.rglob("*.tmp"))


def goes_on(warehouse: Warehouse, operation: Callable[[Warehouse], None], found: Visible) -> None:
    """The same operation, done again where it had not happened, has its whole effect and nothing else."""
    assert found in (OLD, NEW[operation])
    if found == OLD:
        operation(warehouse)
    assert visible(warehouse) == NEW[operation]
    if "left" in NEW[operation]:
        assert at(warehouse, "left", 0) == {(1, "a"): 1}
        assert at(warehouse, "left", 2) == {(1, "a"): 1, (2, "b"): 2, (2, "x"): 1}
        assert at(warehouse, "left", 5) == BEFORE["left"]


@pytest.mark.parametrize("operation", list(NEW), ids=lambda operation: operation.__name__)
def test_every_step_broken_and_opened_again(
    operation: Callable[[Warehouse], None], prepared: Path, tmp_path: Path
) -> None:
    steps = steps_of(operation, prepared, tmp_path)
    assert len(steps) >= 4
    for number, step in enumerate(moments(steps)):
        root = shutil.copytree(prepared, tmp_path / f"at-{number}")
        fault = Fault()
        with Warehouse(root, durable=False, grace_seconds=0.0, fault=fault) as warehouse:
            fault.arm(step)
            with pytest.raises(Broken):
                operation(warehouse)
        with Warehouse(root, read_only=True) as reader:
            found = visible(reader)
            assert found in (OLD, NEW[operation]), step
        with Warehouse(root, durable=False, grace_seconds=0.0) as warehouse:
            assert visible(warehouse) == found, step
            check_clean(warehouse)
            goes_on(warehouse, operation, found)
        shutil.rmtree(root)


@pytest.mark.parametrize("operation", list(NEW), ids=lambda operation: operation.__name__)
def test_every_step_broken_and_the_process_goes_on(
    operation: Callable[[Warehouse], None], prepared: Path, tmp_path: Path
) -> None:
    for number, step in enumerate(moments(steps_of(operation, prepared, tmp_path))):
        root = shutil.copytree(prepared, tmp_path / f"at-{number}")
        fault = Fault()
        with Warehouse(root, durable=False, grace_seconds=0.0, fault=fault) as warehouse:
            staged = warehouse.stage_directory("right")
            (staged / "0.parquet").write_bytes(b"another engine is writing")
            fault.arm(step)
            with pytest.raises(Broken):
                operation(warehouse)
            warehouse.recover()
            assert (staged / "0.parquet").exists(), step
            goes_on(warehouse, operation, visible(warehouse))
        with Warehouse(root, durable=False, grace_seconds=0.0) as warehouse:
            assert visible(warehouse) == NEW[operation], step
            check_clean(warehouse)
        shutil.rmtree(root)


def test_recovery_itself_may_be_broken(prepared: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(prepared, tmp_path / "damaged")
    for operation, step in ((install, "before versions.commit"), (create, "before versions.write")):
        fault = Fault()
        with Warehouse(damaged, durable=False, fault=fault) as warehouse:
            fault.arm(step)
            with pytest.raises(Broken):
                operation(warehouse)
        # What the first operation left is recovered when the second one begins; so only the last one is kept.
        copy = shutil.copytree(damaged, tmp_path / operation.__name__)
        recorded = Fault()
        Warehouse(shutil.copytree(copy, tmp_path / "recorded"), durable=False, fault=recorded).close()
        shutil.rmtree(tmp_path / "recorded")
        assert len(recorded.steps) >= 4
        for number, broken in enumerate(moments(recorded.steps)):
            root = shutil.copytree(copy, tmp_path / f"{operation.__name__}-{number}")
            with pytest.raises(Broken):
                Warehouse(root, durable=False, fault=Fault(broken))
            with Warehouse(root, durable=False, grace_seconds=0.0) as warehouse:
                assert visible(warehouse) == OLD
                check_clean(warehouse)
                goes_on(warehouse, operation, OLD)


def test_a_failed_install_is_tried_again_at_once(prepared: Path, tmp_path: Path) -> None:
    root = shutil.copytree(prepared, tmp_path / "again")
    fault = Fault()
    with Warehouse(root, durable=False, fault=fault) as warehouse:
        for step in ("after changes.commit left", "before versions.commit", "after changes.write right"):
            fault.arm(step)
            with pytest.raises(Broken):
                install(warehouse)
            assert visible(warehouse) == OLD
        install(warehouse)
        assert visible(warehouse) == NEW[install]


def test_upkeep_after_a_failed_install_keeps_nothing_of_it(prepared: Path, tmp_path: Path) -> None:
    root = shutil.copytree(prepared, tmp_path / "upkeep")
    fault = Fault()
    with Warehouse(root, durable=False, grace_seconds=0.0, fault=fault) as warehouse:
        fault.arm("before versions.commit")
        with pytest.raises(Broken):
            install(warehouse)
        warehouse.maintain()
        warehouse.compact("left")
        assert visible(warehouse) == OLD
        check_clean(warehouse)
        install(warehouse)
        assert visible(warehouse) == NEW[install]


def test_a_view_is_made_from_staged_files_after_a_failure(tmp_path: Path) -> None:
    fault = Fault()
    with Warehouse(tmp_path, durable=False, grace_seconds=0.0, fault=fault) as warehouse:
        staged = warehouse.stage_directory("v")
        pq.write_table(counted({(1, "a"): 2}), staged / "0.parquet")
        for step in ("state.commit", "changes.create", "views.commit", "versions.write"):
            fault.arm(f"after {step}")
            with pytest.raises(Broken):
                warehouse.create_view("v", {}, SCHEMA, [staged / "0.parquet"], row(0))
            assert warehouse.views() == []
        warehouse.create_view("v", {}, SCHEMA, [staged / "0.parquet"], row(0))
        assert at(warehouse, "v") == {(1, "a"): 2}
    with Warehouse(tmp_path, durable=False, grace_seconds=0.0) as warehouse:
        assert at(warehouse, "v") == {(1, "a"): 2}
        check_clean(warehouse)


OPERATIONS = [install, create, drop, compact, maintain, note]

_KILLED = """
import os, sys
from mediator.warehouse import ViewInstall, Warehouse, upkeep
from mediator.warehouse.tests import test_faults
upkeep._MERGE_FILES = 4
operation = getattr(test_faults, sys.argv[1])
for root, step in zip(sys.argv[2::2], sys.argv[3::2]):
    child = os.fork()
    if child == 0:
        fault = test_faults.Fault(end=lambda: os._exit(9))
        warehouse = Warehouse(root, durable=False, grace_seconds=0.0, fault=fault)
        fault.arm(step)
        operation(warehouse)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, step
"""


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_a_process_killed_at_every_step(
    operation: Callable[[Warehouse], None], prepared: Path, tmp_path: Path
) -> None:
    steps = moments(steps_of(operation, prepared, tmp_path))
    if operation is not install:  # where death differs from an exception: around what becomes visible
        steps = [step for step in steps if "log.link" in step or "create" in step or ".delete" in step]
    roots = [shutil.copytree(prepared, tmp_path / f"killed-{number}") for number in range(len(steps))]
    arguments = [str(entry) for pair in zip(roots, steps, strict=True) for entry in pair]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _KILLED, operation.__name__, *arguments]
    subprocess.run(command, check=True, env=environment, timeout=240)
    outcomes = []
    for root in roots:
        with Warehouse(root, durable=False, grace_seconds=0.0) as warehouse:
            found = visible(warehouse)
            assert found in (OLD, NEW[operation])
            outcomes.append(found == NEW[operation])
            check_clean(warehouse)
    if operation is install:
        last_link = [i for i, step in enumerate(steps) if step.startswith("after log.link")][-1]
        assert outcomes == [i >= last_link for i in range(len(steps))], "visible by one link"


def test_what_was_noted_is_there_whole_or_not_at_all(prepared: Path, tmp_path: Path) -> None:
    found = {}
    for step in (
        "before reached.write",
        "after reached.write",
        "before reached.commit",
        "after reached.commit",
    ):
        root = shutil.copytree(prepared, tmp_path / step.replace(" ", "-"))
        fault = Fault()
        with Warehouse(root, durable=False, fault=fault) as warehouse:
            vector = warehouse.vector("left")["shop"]
            fault.arm(step)
            with pytest.raises(Broken):
                note(warehouse)
        with Warehouse(root, durable=False) as warehouse:
            found[step] = warehouse.resume_from("left")["shop"]
            note(warehouse)
            assert warehouse.resume_from("left")["shop"] == Position(77)
            assert warehouse.resume_from("right") == warehouse.vector("right")
            install(warehouse)
            assert warehouse.resume_from("left") == warehouse.vector("left"), "it is somewhere else now"
    assert found.pop("after reached.commit") == Position(77)
    assert set(found.values()) == {vector}


@dataclass
class Watcher:
    """Sees the folder at every step; notes what changed while no step was under way."""

    root: Path
    names: set[str] = field(default_factory=set)
    outside: list[str] = field(default_factory=list)
    depth: int = 0

    def __post_init__(self) -> None:
        self.seen = self._look()

    def __call__(self, event: str) -> None:
        moment, _, name = event.partition(" ")
        self.names.add(name.partition(" ")[0])
        if moment == "before":
            if not self.depth:
                self.compare(f"before {name}")
            self.depth += 1
        else:
            self.depth -= 1
            if not self.depth:
                self.seen = self._look()

    def compare(self, when: str) -> None:
        now = self._look()
        changed = {path for path in now.keys() | self.seen.keys() if now.get(path) != self.seen.get(path)}
        self.outside += [f"{path} {when}" for path in sorted(changed)]
        self.seen = now

    def _look(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self.root.rglob("*"):
            if path.is_file() and path.name not in (".lock", ".upkeep"):
                status = path.stat()
                found[str(path.relative_to(self.root))] = (status.st_size, status.st_mtime_ns)
        return found


def install_staged(warehouse: Warehouse) -> None:
    """An install from files that an engine has written, one of which is empty and left behind."""
    staged = [warehouse.root / "data" / path for path in _STAGED[str(warehouse.root)]]
    warehouse.install([ViewInstall("left", [row(6)], staged)])


_STAGED: dict[str, list[Path]] = {}


def stage(warehouse: Warehouse) -> None:
    directory = warehouse.stage_directory("left")
    rows = change("left", 6, {(7, "q"): 1}).table
    assert rows is not None
    pq.write_table(rows, directory / "0.parquet")
    pq.write_table(rows.slice(0, 0), directory / "1.parquet")
    _STAGED[str(warehouse.root)] = [directory / "0.parquet", directory / "1.parquet"]


def test_every_write_is_inside_of_a_step_and_every_step_is_tested(prepared: Path, tmp_path: Path) -> None:
    """The list of fault points is complete: a write without one, or one that no test breaks, fails here."""
    names: set[str] = set()
    for operation in [*OPERATIONS, install_staged]:
        root = shutil.copytree(prepared, tmp_path / operation.__name__)
        with Warehouse(root, durable=False, grace_seconds=0.0) as warehouse:
            stage(warehouse)
            if operation is maintain:
                warehouse._store.graveyard.bury([_STAGED[str(root)][0]])
            watcher = Watcher(root)
            warehouse._store.steps._fault = watcher
            operation(warehouse)
            watcher.compare("at the end")
        assert watcher.outside == [], operation.__name__
        names |= watcher.names
    for number, (operation, step) in enumerate(
        ((install, "before versions.commit"), (create, "before versions.write"), (create, "before log.link"))
    ):
        root = shutil.copytree(prepared, tmp_path / f"recover-{number}")
        fault = Fault()
        with Warehouse(root, durable=False, grace_seconds=0.0, fault=fault) as warehouse:
            fault.arm(step)
            with pytest.raises(Broken):
                operation(warehouse)
        watcher = Watcher(root)
        Warehouse(root, durable=False, grace_seconds=0.0, fault=watcher).close()
        watcher.compare("at the end")
        assert watcher.outside == [], f"recovery after {step}"
        names |= watcher.names
    (tmp_path / "new").mkdir()
    watcher = Watcher(tmp_path / "new")
    Warehouse(tmp_path / "new", durable=False, fault=watcher).close()
    watcher.compare("at the end")
    assert watcher.outside == [], "a new warehouse"
    names |= watcher.names
    package = Path(upkeep.__file__).parent
    written = {
        name for file in package.glob("*.py") for name in re.findall(r'steps\(f?"([a-z.]+)', file.read_text())
    }
    elsewhere = {"log.checkpoint", "format.upgrade"}  # below, and in test_format.py
    assert written == names | elsewhere


def test_a_checkpoint_may_be_broken(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_CHECKPOINT_COMMITS", 2)
    for moment in ("before", "after"):
        root = shutil.copytree(prepared, tmp_path / moment)
        fault = Fault()
        with Warehouse(root, durable=False, grace_seconds=0.0, fault=fault) as warehouse:
            fault.arm(f"{moment} log.checkpoint")
            with pytest.raises(Broken):
                maintain(warehouse)
            assert visible(warehouse) == OLD
            maintain(warehouse)
            install(warehouse)
        with Warehouse(root, durable=False, grace_seconds=0.0) as warehouse:
            assert visible(warehouse) == NEW[install]
