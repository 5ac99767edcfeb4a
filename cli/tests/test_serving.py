from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, logging, os, signal, threading
from cli.serving import serve

if {logged}: logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")

class Held:
    def __del__(self): os.write(2, b"still held")

held = Held()
held.itself = held

class Server:
    def __init__(self): self.done = threading.Event()
    def start(self):
        atexit.register(print, "tidied up", flush=True)
        if {broken}:
            if {broken} == 2: os.kill(os.getpid(), signal.SIGTERM)
            raise ConnectionRefusedError(111, "Connection refused")
        if {stuck}: threading.Thread(target=threading.Event().wait).start()
        return "127.0.0.1:4711"
    def stop(self, grace):
        print("stopped", flush=True)
        self.done.set()
    def wait(self): self.done.wait({wait})

serve(Server(), "wrapper shop", supervised={supervised})
"""


def start(
    *, supervised: bool = False, wait: str = "", stuck: bool = False, broken: int = 0, logged: bool = False
) -> subprocess.Popen[str]:
    program = PROGRAM.format(supervised=supervised, wait=wait, stuck=stuck, broken=broken, logged=logged)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "lockstep wrapper shop listening on 127.0.0.1:4711\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_server_gracefully(number: signal.Signals) -> None:
    with start() as process:
        ready(process)
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == ("stopped\ntidied up\n", "", 0)


def test_a_supervised_server_stops_with_its_supervisor() -> None:
    with start(supervised=True) as process:
        ready(process)
        out, _ = process.communicate(timeout=20)  # closes its stdin
    assert (out, process.returncode) == ("stopped\ntidied up\n", 0)


def test_a_server_that_ends_by_itself_is_an_error() -> None:
    with start(wait="0.1") as process:
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "the wrapper shop ended by itself" in err


@pytest.mark.parametrize(("wait", "code"), [("", 0), ("0.1", 1)])
def test_a_call_that_never_ends_does_not_keep_the_process(wait: str, code: int) -> None:
    """A source may fall silent in the middle of an answer; its driver waits for as long as it likes."""
    with start(stuck=True, wait=wait) as process:
        if not wait:
            ready(process)
            process.terminate()
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code
    assert "a call that does not end is left alone" in err


@pytest.mark.parametrize(("broken", "code"), [(1, 1), (2, 0)])
def test_what_fails_because_all_is_being_stopped_is_no_error(broken: int, code: int) -> None:
    """A service manager tells every process of a service to stop, also those that a server starts on."""
    with start(broken=broken) as process:
        out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == ("tidied up\n", code)
    assert ("Connection refused" in err) == (broken == 1)
    assert "still held" not in err


@pytest.mark.parametrize(
    ("how", "reason", "code"),
    [
        ("signal", "SIGTERM", 0),
        ("supervisor", "its supervisor has ended", 0),
        ("itself", "it cannot go on", 1),
    ],
)
def test_a_stop_and_its_end_are_logged(how: str, reason: str, code: int) -> None:
    with start(supervised=how == "supervisor", wait="0.1" if how == "itself" else "", logged=True) as process:
        if how != "itself":
            ready(process)
        if how == "signal":
            process.terminate()
        _, err = process.communicate(timeout=20)
    lines = err.splitlines()
    assert lines[:2] == [f"INFO wrapper shop is stopping: {reason}", "INFO wrapper shop has stopped"]
    assert process.returncode == code
    assert "still held" not in err
