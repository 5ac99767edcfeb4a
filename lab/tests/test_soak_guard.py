"""Nothing that a soak has started outlives it, also if it is killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from lab.soak.deployment import wait_until
from lab.soak.guard import Guard
from lab.soak.kinds import KINDS, available

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0

FAMILY = """
import subprocess, sys
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("started", flush=True)
inner.wait()
"""
OWNER = f"""
import signal, subprocess, sys
from pathlib import Path
from lab.soak.guard import Guard

guard = Guard()
guard.start()
guard.delete(Path(sys.argv[1]))
for _ in range(2):
    child = guard.popen([sys.executable, "-c", {FAMILY!r}], stdout=subprocess.PIPE, start_new_session=True)
    child.stdout.readline()
child.send_signal(signal.SIGSTOP)
print("started", flush=True)
child.wait()
"""


def kill_and_see_what_is_left(owner: subprocess.Popen[str]) -> list[psutil.Process]:
    """Kill a process; those of its descendants that do not end."""
    started = psutil.Process(owner.pid).children(recursive=True)
    owner.kill()
    owner.communicate()
    wait_until(lambda: not any(map(runs, started)), PATIENCE / 2, every=0.02)
    return [process for process in started if runs(process)]


def runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.timeout(PATIENCE)
def test_processes_their_children_and_folders_end_with_the_owner(tmp_path: Path) -> None:
    folder = tmp_path / "of the owner"
    folder.mkdir()
    (folder / "file").touch()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "started\n"
    assert len(psutil.Process(owner.pid).children(recursive=True)) == 5
    assert kill_and_see_what_is_left(owner) == []
    assert not folder.exists()


@pytest.mark.timeout(PATIENCE)
def test_a_guard_that_is_closed_ends_what_still_runs_and_nothing_else() -> None:
    guard = Guard()
    guard.start()
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended = guard.popen([sys.executable, "-c", "print('done')"], stdout=subprocess.PIPE, text=True)
    assert ended.communicate() == ("done\n", None)
    still = guard.popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    guard.close()
    assert still.wait() == -signal.SIGKILL
    assert other.poll() is None
    other.communicate(b"\n")
    assert other.returncode == 0


def command_line(process: psutil.Process) -> str:
    """Empty if it has ended meanwhile, as PostgreSQL's workers do."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_left_of_a_soak_that_is_killed(tmp_path: Path) -> None:
    """One source of each server, a file, and one process that could not end by itself if it were asked."""
    usable, _ = available()
    kinds = ["sqlite-wal", *{KINDS[kind].server: kind for kind in usable if KINDS[kind].server}.values()]
    # Hardly any faults: what it kills itself could not be looked at here.
    command = ["lab", "soak", "--minutes", "10", "--rate", "0.01", "--dir", str(tmp_path / "soak")]
    command += [word for kind in kinds for word in ("--source", kind)]
    soak = subprocess.Popen(
        [sys.executable, "-m", "cli.main", *command], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert soak.stderr is not None
    assert any("everything runs" in line for line in soak.stderr)
    started = psutil.Process(soak.pid).children(recursive=True)
    words = [command_line(process) for process in started]
    folders = {Path(found[0]) for line in words if (found := re.search(r"/\S*lockstep-[a-z]+-\w+", line))}
    assert len(folders) == len(kinds) - 1
    started[next(n for n, line in enumerate(words) if "cli.main wrapper" in line)].suspend()
    assert kill_and_see_what_is_left(soak) == []
    assert not [folder for folder in folders if folder.exists()]
