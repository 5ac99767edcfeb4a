"""Temporary folders end with their process, however it ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from algebra.scratch import ScratchFolder, _remove_abandoned

_HOLD = """
import sys, time
from algebra.scratch import ScratchFolder
folder = ScratchFolder("test", sys.argv[1])
(folder.path / "rows").write_text("of a source")
print(folder.path, flush=True)
sys.stdin.read()
"""


class Holder:
    """A process that has a folder."""

    def __init__(self, place: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.path = Path(self._process.stdout.readline().strip())

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    killed, alive = Holder(tmp_path), Holder(tmp_path)
    own = tmp_path / "lockstep-somebody-elses"
    own.mkdir()
    try:
        killed.kill()
        assert (killed.path / "rows").exists()
        with ScratchFolder("next", tmp_path) as folder:
            assert not killed.path.exists()
            assert (alive.path / "rows").exists(), "it is in use"
            assert sorted(tmp_path.iterdir()) == sorted([alive.path, own, folder])
    finally:
        alive.kill()
        killed.kill()


def test_a_folder_of_this_process_is_not_taken_for_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScratchFolder("first", tmp_path) as first:
        monkeypatch.setattr("algebra.scratch._tidied", set())
        with ScratchFolder("second", tmp_path) as second:
            assert first.is_dir()
            assert second.is_dir()


@pytest.mark.parametrize("call", ["tempfile.mkdtemp", "os.open"])
def test_a_folder_that_is_taken_for_abandoned_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Another process that makes its first folder looks at this very moment."""
    ScratchFolder("earlier", tmp_path).close()
    module, _, name = call.partition(".")
    function = getattr(sys.modules[module], name)

    def looked_at(*given: Any, **named: Any) -> Any:
        made = function(*given, **named)
        monkeypatch.undo()
        _remove_abandoned(tmp_path)
        assert list(tmp_path.iterdir()) == []
        return made

    monkeypatch.setattr(f"algebra.scratch.{call}", looked_at)
    with ScratchFolder("test", tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_could_not_be_made_again_closes_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ScratchFolder("earlier", tmp_path).close()
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def once(**named: Any) -> str:
        if made:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        made.append(mkdtemp(**named))
        return made[0]

    def removed(descriptor: int, how: int) -> None:
        os.rmdir(made[0])

    monkeypatch.setattr("algebra.scratch.tempfile.mkdtemp", once)
    monkeypatch.setattr("algebra.scratch.fcntl.flock", removed)
    folder = ScratchFolder.__new__(ScratchFolder)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        folder.__init__("test", tmp_path)  # type: ignore[misc]
    others = os.open(tmp_path, os.O_RDONLY)
    folder.close()
    os.fstat(others)
    os.close(others)


def test_a_folder_is_for_this_user_alone_and_closing_twice_is_fine(tmp_path: Path) -> None:
    folder = ScratchFolder("test", tmp_path)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.close()
    reused = os.open(tmp_path, os.O_RDONLY)
    folder.close()
    os.fstat(reused)  # the second time nothing was closed
    os.close(reused)
    assert list(tmp_path.iterdir()) == []
