"""A loopback TCP proxy between mediator and wrapper that misbehaves as networks do.

It can cut connections (reset), go silent without closing them (half-open), delay, and throttle. Its own
address stays the same while the wrapper behind it moves.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass

_CHUNK = 64 << 10
_POLL_SECONDS = 0.05
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Weather:
    """How the proxy treats what passes: seconds of delay per piece, bytes per second (0: as they come).

    `silent`: nothing passes and nobody is told. `closed`: new connections are reset at once.
    """

    delay: float = 0.0
    rate: float = 0.0
    silent: bool = False
    closed: bool = False


FAIR = Weather()


class Proxy:
    """Forwards connections to a target that may change; `weather` says how badly.

    `host` is the loopback address from which the target sees them come.
    """

    def __init__(self, target: str = "", host: str = "127.0.0.1") -> None:
        self.target = target
        self._host = host
        self.weather = FAIR
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._stopped = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> None:
        """Reset every connection that is open."""
        with self._lock:
            found, self._open = self._open, set()
        for connection in found:
            _reset(connection)

    def close(self) -> None:
        self._stopped = True
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._stopped:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        if self.weather.closed or not self.target:
            _reset(client)
            return
        self._wait_out_silence()
        host, _, port = self.target.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)), timeout=5, source_address=(self._host, 0))
        except OSError:
            _reset(client)
            return
        with self._lock:
            self._open |= {client, server}
        for ends in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                self._wait_out_silence()
                readable, _, _ = select.select([source], [], [], _POLL_SECONDS)
                if not readable or self.weather.silent:
                    continue
                weather = self.weather
                piece = source.recv(max(1, int(weather.rate * _POLL_SECONDS)) if weather.rate else _CHUNK)
                if not piece:
                    break
                time.sleep(weather.delay + (len(piece) / weather.rate if weather.rate else 0.0))
                self._wait_out_silence()
                sink.sendall(piece)
        with self._lock:
            self._open -= {source, sink}
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _wait_out_silence(self) -> None:
        while self.weather.silent and not self._stopped:
            time.sleep(_POLL_SECONDS)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.close()
