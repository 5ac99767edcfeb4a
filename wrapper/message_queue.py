"""WMQ and OMQ: the wrapper's two queues.

The wrapper message queue (WMQ) holds what has arrived and is not yet handled, in order of arrival. The
order message queue (OMQ) holds what is ready to leave, in the order in which it must leave.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from protos.lockstep.v1 import wrapper_pb2

Message = TypeVar("Message")


class WrapperMessageQueue(Generic[Message]):
    """WMQ: messages from the mediator, handled one after the other by the query processor.

    `on_arrival` is called after each put, so that whoever waits for the source can be woken.
    """

    def __init__(self, on_arrival: Callable[[], None]) -> None:
        self._messages: deque[Message] = deque()
        self._lock = threading.Lock()
        self._on_arrival = on_arrival

    def put(self, message: Message) -> None:
        with self._lock:
            self._messages.append(message)
        self._on_arrival()

    def take_all(self) -> list[Message]:
        """Everything that has arrived, oldest first; empty if nothing has."""
        with self._lock:
            taken = list(self._messages)
            self._messages.clear()
        return taken

    def put_back(self, messages: Sequence[Message]) -> None:
        """Messages that were taken and not handled come first again."""
        with self._lock:
            self._messages.extendleft(reversed(messages))

    def __len__(self) -> int:
        return len(self._messages)


class OrderMessageQueue:
    """OMQ: responses on their way to the mediator. Full, it makes the wrapper wait, not grow."""

    def __init__(self, capacity: int = 64) -> None:
        self._responses: queue.Queue[wrapper_pb2.ExchangeResponse | None] = queue.Queue(capacity)
        self._closed = threading.Event()

    def put(self, response: wrapper_pb2.ExchangeResponse) -> None:
        """Append a response; dropped silently if the stream has ended, for nobody would read it."""
        while not self._closed.is_set():
            try:
                self._responses.put(response, timeout=0.5)
                return
            except queue.Full:
                continue

    def close(self) -> None:
        """No more responses; what is queued is still delivered if there is room to say so."""
        self._closed.set()
        with contextlib.suppress(queue.Full):
            self._responses.put_nowait(None)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def __iter__(self) -> Iterator[wrapper_pb2.ExchangeResponse]:
        while True:
            try:
                response = self._responses.get(timeout=0.5)
            except queue.Empty:
                if self._closed.is_set():
                    return
                continue
            if response is None:
                return
            yield response
