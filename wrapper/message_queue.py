"""WMQ and OMQ: the wrapper's two queues.

The wrapper message queue (WMQ) holds what has arrived and is not yet handled, in order of arrival. The
order message queue (OMQ) holds what is ready to leave, in the order in which it must leave.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from protos.lockstep.v1 import wrapper_pb2

Message = TypeVar("Message")

_MESSAGE_BYTES = 1 << 10
"""What a message takes in memory besides its content, about."""


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
    """OMQ: responses on their way to the mediator. Full, it makes the wrapper wait, not grow.

    It is full with `most_bytes`; a single response may be larger.
    """

    def __init__(self, most_bytes: int = 32 << 20) -> None:
        self._most_bytes = most_bytes
        self._responses: deque[tuple[wrapper_pb2.ExchangeResponse, int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False

    def put(self, response: wrapper_pb2.ExchangeResponse) -> None:
        """Append a response; dropped silently if the stream has ended, for nobody would read it."""
        size = _MESSAGE_BYTES + response.ByteSize()
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or not self._responses or self._bytes + size <= self._most_bytes
            )
            if not self._closed:
                self._responses.append((response, size))
                self._bytes += size
                self._changed.notify_all()

    def close(self) -> None:
        """No more responses; what is queued is still delivered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def __iter__(self) -> Iterator[wrapper_pb2.ExchangeResponse]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._responses)
                if not self._responses:
                    return
                response, size = self._responses.popleft()
                self._bytes -= size
                self._changed.notify_all()
            yield response
