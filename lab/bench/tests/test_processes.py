"""Children are awaited by what they print and leave nothing behind."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from lab.bench.errors import BenchmarkError
from lab.bench.meter import TOTAL, Meter
from lab.bench.processes import LISTENING, Child

PRINTER = (
    "import sys, time; print('lockstep wrapper listening on 127.0.0.1:7000'); "
    "sys.stdin.read(); time.sleep(60)"
)


def test_a_child_is_awaited_measured_and_stopped(tmp_path: Path) -> None:
    with Child("child", "timeit", ["-n1", "-r1", "-s", PRINTER, "pass"], tmp_path / "log") as child:
        match, line = child.wait_for(LISTENING, 30)
        assert (match["host"], match["port"]) == ("127.0.0.1", "7000")
        assert line.at_ns >= child.started_ns
        with Meter({"child": child.pid}, interval=0.01) as meter:
            pass
        assert meter.peak_memory["child"] == meter.peak_memory[TOTAL] > 0
        assert meter.cpu_seconds[TOTAL] >= 0
        pid = child.pid
    assert not psutil.pid_exists(pid)
    assert "listening" in (tmp_path / "log").read_text()


def test_a_child_that_ends_early_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    with (
        Child("child", "no_such_module", [], tmp_path / "log") as child,
        pytest.raises(BenchmarkError, match=r"child ended with status 1; its last words: .*No module named"),
    ):
        child.wait_for(LISTENING, 30)


def test_waiting_ends_when_time_is_up(tmp_path: Path) -> None:
    with (
        Child("child", "timeit", ["-n1", "-r1", "-s", PRINTER, "pass"], tmp_path / "log") as child,
        pytest.raises(BenchmarkError, match="did not print 'never' in 0 s"),
    ):
        child.wait_for(re.compile("never"), 0.1)
