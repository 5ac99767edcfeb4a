"""A server run in this process until a signal, its own end, or the end of the supervising process."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

from algebra.errors import LockstepError
from cli.build import Server

log = logging.getLogger(__name__)

GRACE = 3.0
"""Seconds that calls in progress get to finish."""

LOOK_SECONDS = 0.5
"""How long a signal may wait that came at the very moment at which the main thread began to wait, or went to
another thread: only the main thread acts on signals, and such a one does not wake it."""

LEAVE = 5.0
"""Seconds after which a process that was stopped ends in any case."""


class Stop(threading.Event):
    """Set when a server has to stop."""

    reason = ""
    """Why; the first reason counts. A signal's is there a moment before the event is set."""

    def because(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.set()


def stop_signals() -> Stop:
    """An event that SIGINT and SIGTERM set; the second signal ends the process at once."""
    stop = Stop()
    signals: queue.SimpleQueue[None] = queue.SimpleQueue()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.reason:
            os._exit(128 + number)
        stop.reason = signal.Signals(number).name
        # The main thread is interrupted anywhere, maybe with the event's lock in hand: it must not take that.
        signals.put(None)

    def tell() -> None:
        signals.get()
        stop.set()

    threading.Thread(target=tell, name="signals", daemon=True).start()
    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return stop


def serve(server: Server, title: str, *, supervised: bool) -> None:
    """Start the server, print its ready line, and stop it gracefully when told to."""
    leaving = _Leaving()
    stop = stop_signals()
    ended = threading.Event()
    try:
        address = server.start()
    except Exception as error:
        if not stop.reason:
            raise
        # Who stops a service may tell all of its processes, and what the server needs has ended first.
        log.info("%s stopped before it was ready, by %s: %s", title, stop.reason, error)
        leaving.code = 0
        return
    print(f"lockstep {title} listening on {address}", flush=True)

    def wait() -> None:
        server.wait()
        ended.set()
        stop.because("it cannot go on")

    threads = [threading.Thread(target=wait, name="wait", daemon=True)]
    if supervised:
        threads.append(threading.Thread(target=_supervise, args=(stop,), name="supervise", daemon=True))
    for thread in threads:
        thread.start()
    while not stop.wait(LOOK_SECONDS):
        pass
    by_itself = ended.is_set()
    log.info("%s is stopping: %s", title, stop.reason)
    server.stop(GRACE)
    leaving.code = int(by_itself)
    threading.Thread(target=_leave_alone, args=(leaving,), name="leave", daemon=True).start()
    log.info("%s has stopped", title)
    if by_itself:
        raise LockstepError(f"the {title} ended by itself")
    # A thread that outlives the interpreter would keep the server, and its databases, from being let go.
    for thread in threads:
        thread.join(GRACE)


class _Leaving:
    """Ends the process with its code when everything of Python's has ended, before its memory is taken down.

    That would have libraries write what they still hold to stderr, which nobody can read as log records.
    """

    def __init__(self) -> None:
        self.code = 1
        atexit.register(self.now)  # what is registered later runs before

    def now(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # nobody reads it any more
                stream.flush()
        os._exit(self.code)


def _leave_alone(leaving: _Leaving) -> None:
    """End the process although a call goes on: the interpreter would wait for it, as long as it takes."""
    time.sleep(LEAVE)
    log.warning("a call that does not end is left alone: does a source not answer?")
    leaving.now()


def _supervise(stop: Stop) -> None:
    """Stop when stdin closes: the supervisor holds its other end, even if it is killed."""
    # Not through sys.stdin: a thread that holds its lock would be in the way of the interpreter's end.
    while not stop.is_set():
        readable, _, _ = select.select([0], [], [], 0.5)
        if readable and not os.read(0, 4096):
            stop.because("its supervisor has ended")
