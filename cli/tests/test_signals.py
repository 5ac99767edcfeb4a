"""A process that is told to stop stops, at whatever moment the signal comes."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import signal, sys, threading
from cli.serving import serve, stop_signals

MAIN = threading.get_ident()
"""

WITH_THE_LOCK = """
stop = stop_signals()
with stop._cond:
    signal.raise_signal(signal.SIGTERM)
while not stop.wait(0.1):
    pass
"""

TO_ANOTHER_THREAD = """
class Server:
    def start(self):
        return "nowhere"

    def wait(self):
        while not self.is_waited_for(sys._current_frames()[MAIN]):
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        threading.Event().wait()

    def is_waited_for(self, frame):
        return frame.f_code.co_name == "wait" and frame.f_back.f_back.f_code.co_name == "serve"

    def stop(self, grace):
        print("drained", flush=True)

serve(Server(), "server", supervised=False)
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(WITH_THE_LOCK, id="while the event's lock is held"),
        pytest.param(TO_ANOTHER_THREAD, id="to another thread while the main one waits"),
    ],
)
def test_a_signal_is_heard(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", HEAD + script], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert script is WITH_THE_LOCK or done.stdout.endswith("drained\n")
