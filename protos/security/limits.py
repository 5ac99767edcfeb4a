"""How much one caller may have at once, and how often one address may fail to log in.

Problem. Every call takes a thread, and a stream keeps it; a wrong token costs a slow hash and a line in the
audit log. So one peer could take all threads, the processor or the disk, and everybody else with it.

Wrong ways. To count calls of the whole server: then the first one who asks for too much shuts out the others.
To lock an address out for minutes after a few failures: then a job with an old token locks out its
neighbours. To refuse at once what cannot be had now: then many honest callers that come at the same moment,
each to be hashed, would shut each other out.

Chosen way. Calls are counted per caller: by name if it has one, else by address. Failures are counted per
address, in a bucket that fills again; when it is empty, the address may try once after a pause that doubles.
A token that was verified before is let through in any case, because that is cheap.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

from algebra.errors import LimitExceededError, UnauthenticatedError
from protos.security.principals import Principal
from protos.security.settings import CallLimits

MOST_ADDRESSES = 10_000
"""Addresses whose failures are remembered; beyond, the one that failed longest ago is forgotten."""

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_MINUTE = 60.0
_QUIET_SECONDS = 10.0


def host_of(peer: str) -> str:
    """What a peer is counted by: its IPv4 address, or the network of its IPv6 address, which may have many.

    >>> host_of("ipv4:127.0.0.2:50000"), host_of("ipv6:%5B2001:db8::1%5D:50000"), host_of("unix:")
    ('127.0.0.2', '2001:db8::/64', 'unix:')
    """
    kind, _, rest = unquote(peer).partition(":")
    host = rest.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return kind + ":"
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def counted_by(principal: Principal, peer: str) -> Hashable:
    """What a caller is counted by: its name, or its address if it has none."""
    known = principal.kind in ("token", "certificate")
    return (principal.kind, principal.name) if known else host_of(peer)


class CallsUnderWay:
    """Counts what each caller has at once, and refuses what is more than the limits."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._calls: Counter[Hashable] = Counter()
        self._streams: Counter[Hashable] = Counter()

    def enter(self, principal: Principal, peer: str, stream: bool) -> Callable[[], None]:
        """Take a place for a call; what gives it back. LimitExceededError if the caller has none left."""
        who = counted_by(principal, peer)
        with self._lock:
            if self._calls[who] >= self._limits.calls:
                raise LimitExceededError(
                    f"{principal.title} has {self._limits.calls} calls under way, and may not have more"
                )
            if stream and self._streams[who] >= self._limits.streams:
                raise LimitExceededError(
                    f"{principal.title} has {self._limits.streams} streams open, and may not have more"
                )
            self._calls[who] += 1
            self._streams[who] += stream
        return lambda: self._leave(who, stream)

    def _leave(self, who: Hashable, stream: bool) -> None:
        with self._lock:
            for counted, less in ((self._calls, 1), (self._streams, int(stream))):
                counted[who] -= less
                if not counted[who]:
                    del counted[who]


@dataclass
class _Failures:
    """What is known of one address. `room`: failures that it has left. `trying`: attempts being checked."""

    room: float
    seen_at: float
    trying: int = 0
    pause: float = _FIRST_PAUSE_SECONDS
    closed_until: float = 0.0


class FailedLogins:
    """Lets each address fail `per_minute` times a minute, and as often at once; then rarely."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = max(per_minute, 1.0)
        self._rate = per_minute / _MINUTE
        self._clock = clock
        self._changed = threading.Condition()
        self._addresses: OrderedDict[str, _Failures] = OrderedDict()

    @contextmanager
    def attempt(self, host: str) -> Iterator[None]:
        """Around one attempt to log in, which fails by UnauthenticatedError.

        LimitExceededError, and nothing is tried, if the address has failed too often.
        """
        failures = self._begin(host)
        try:
            yield
        except UnauthenticatedError:
            self._failed(host, failures)
            raise
        finally:
            with self._changed:
                failures.trying -= 1
                self._changed.notify_all()

    def _begin(self, host: str) -> _Failures:
        with self._changed:
            failures = self._of(host)
            while True:
                now = self._clock()
                self._refill(failures, now)
                if now < failures.closed_until:
                    seconds = math.ceil(failures.closed_until - now)
                    raise LimitExceededError(
                        f"too many log-ins from {host} failed; it may try again in {seconds} s"
                    )
                if failures.trying < max(failures.room, 1.0):
                    failures.trying += 1
                    return failures
                self._changed.wait()  # each of those being checked may be the one too many, or fine

    def _of(self, host: str) -> _Failures:
        failures = self._addresses.get(host)
        if failures is None:
            failures = self._addresses[host] = _Failures(self._most, self._clock())
            if len(self._addresses) > MOST_ADDRESSES:
                self._addresses.popitem(last=False)
        return failures

    def _refill(self, failures: _Failures, now: float) -> None:
        failures.room = min(failures.room + (now - failures.seen_at) * self._rate, self._most)
        failures.seen_at = now
        if failures.room >= self._most:
            failures.pause = _FIRST_PAUSE_SECONDS

    def _failed(self, host: str, failures: _Failures) -> None:
        with self._changed:
            now = self._clock()
            self._refill(failures, now)
            failures.room -= 1.0
            if failures.room < 1.0:
                failures.closed_until = now + failures.pause
                failures.pause = min(failures.pause * 2, _LONGEST_PAUSE_SECONDS)
            if host in self._addresses:
                self._addresses.move_to_end(host)


@dataclass(frozen=True)
class Refusal:
    """What makes one refusal like another: who was refused what, from where."""

    principal: Principal
    host: str
    action: str


_OTHERS = Refusal(Principal("unknown", "none", frozenset()), "many addresses", "various")


@dataclass
class _Repeated:
    since: float
    count: int = 0


@dataclass
class Repetitions:
    """Tells the first of many refusals from the others, so that they do not fill the audit log.

    Of one caller, the first is written down at once; those of the next ten seconds are counted, and written
    down as one by whoever takes what is `due`.
    """

    clock: Callable[[], float] = time.monotonic
    _kept: dict[Refusal, _Repeated] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_first(self, refusal: Refusal) -> bool:
        """Whether this refusal is to be written down now; else it is counted."""
        with self._lock:
            if len(self._kept) >= MOST_ADDRESSES:
                refusal = _OTHERS
            kept = self._kept.get(refusal)
            if kept is None:
                self._kept[refusal] = _Repeated(self.clock())
                return True
            kept.count += 1
            return False

    def due(self, all_of_them: bool = False) -> list[tuple[Refusal, int]]:
        """The refusals that were only counted and are to be written down now, and how many of each."""
        now = self.clock()
        with self._lock:
            over = [k for k, r in self._kept.items() if all_of_them or now - r.since >= _QUIET_SECONDS]
            return [(key, count) for key in over if (count := self._kept.pop(key).count)]
