"""A server run in this process until a signal, its own end, or the end of the supervising process."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
from types import FrameType

from algebra.errors import LockstepError
from cli.build import Server

log = logging.getLogger(__name__)

GRACE = 3.0
"""Seconds that calls in progress get to finish."""

LEAVE = 5.0
"""Seconds after which a process that was stopped ends in any case."""


def stop_signals() -> threading.Event:
    """An event that SIGINT and SIGTERM set; the second signal ends the process at once."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return stop


def serve(server: Server, title: str, *, supervised: bool) -> None:
    """Start the server, print its ready line, and stop it gracefully when told to."""
    stop = stop_signals()
    ended = threading.Event()
    try:
        address = server.start()
    except Exception as error:
        if not stop.is_set():
            raise
        # Who stops a service may tell all of its processes, and what the server needs has ended first.
        log.info("stopped before it was ready: %s", error)
        return
    print(f"lockstep {title} listening on {address}", flush=True)

    def wait() -> None:
        server.wait()
        ended.set()
        stop.set()

    threads = [threading.Thread(target=wait, name="wait", daemon=True)]
    if supervised:
        threads.append(threading.Thread(target=_supervise, args=(stop,), name="supervise", daemon=True))
    for thread in threads:
        thread.start()
    stop.wait()
    by_itself = ended.is_set()
    server.stop(GRACE)
    threading.Thread(target=_leave, args=(int(by_itself),), name="leave", daemon=True).start()
    if by_itself:
        raise LockstepError(f"the {title} ended by itself")
    # A thread that outlives the interpreter would keep the server, and its databases, from being let go.
    for thread in threads:
        thread.join(GRACE)


def _leave(code: int) -> None:
    """End the process although a call goes on: the interpreter would wait for it, as long as it takes."""
    time.sleep(LEAVE)
    log.warning("a call that does not end is left alone: does a source not answer?")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _supervise(stop: threading.Event) -> None:
    """Stop when stdin closes: the supervisor holds its other end, even if it is killed."""
    # Not through sys.stdin: a thread that holds its lock would be in the way of the interpreter's end.
    while not stop.is_set():
        readable, _, _ = select.select([0], [], [], 0.5)
        if readable and not os.read(0, 4096):
            stop.set()
