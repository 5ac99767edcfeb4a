"""One caller's share: calls at once, failures by address, and what is written down of a flood."""

from __future__ import annotations

import threading

import pytest

from algebra.errors import LimitExceededError, UnauthenticatedError
from protos.security import limits
from protos.security.limits import CallsUnderWay, FailedLogins, Refusal, Repetitions, host_of
from protos.security.principals import ANONYMOUS, Principal
from protos.security.settings import CallLimits

ANN = Principal("ann", "token", frozenset({"read"}))
BOB = Principal("bob", "token", frozenset({"read"}))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fail(logins: FailedLogins, host: str) -> None:
    with pytest.raises(UnauthenticatedError), logins.attempt(host):
        raise UnauthenticatedError("wrong")


def refused(logins: FailedLogins, host: str) -> bool:
    """Whether the address is not listened to; what would be tried succeeds."""
    try:
        with logins.attempt(host):
            return False
    except LimitExceededError:
        return True


@pytest.mark.parametrize(
    ("peer", "host"),
    [("ipv4:127.0.0.1:5", "127.0.0.1"), ("ipv6:[::1]:5", "::/64"), ("ipv6:%5B::1%5D:5", "::/64"),
     ("ipv6:[2001:db8:0:1::7]:5", "2001:db8:0:1::/64"), ("ipv6:[fe80::1%25eth0]:5", "fe80::/64"),
     ("ipv6:[::ffff:192.0.2.1]:5", "192.0.2.1"), ("unix:/x/y", "unix:"), ("", ":")],
)  # fmt: skip
def test_a_peer_is_counted_by_its_address(peer: str, host: str) -> None:
    assert host_of(peer) == host


def test_calls_are_counted_by_caller() -> None:
    calls = CallsUnderWay(CallLimits(calls=3, streams=2))
    first = calls.enter(ANN, "ipv4:127.0.0.1:1", stream=True)
    calls.enter(ANN, "ipv4:127.0.0.2:1", stream=True)
    with pytest.raises(LimitExceededError, match="token 'ann' has 2 streams open"):
        calls.enter(ANN, "ipv4:127.0.0.3:1", stream=True)
    calls.enter(ANN, "ipv4:127.0.0.1:1", stream=False)
    with pytest.raises(LimitExceededError, match="token 'ann' has 3 calls under way"):
        calls.enter(ANN, "ipv4:127.0.0.1:1", stream=False)
    calls.enter(BOB, "ipv4:127.0.0.1:1", stream=True)
    first()
    calls.enter(ANN, "ipv4:127.0.0.1:1", stream=True)


def test_callers_without_a_name_are_counted_by_address_and_forgotten() -> None:
    calls = CallsUnderWay(CallLimits(calls=1))
    leave = calls.enter(ANONYMOUS, "ipv4:192.0.2.1:1", stream=False)
    with pytest.raises(LimitExceededError):
        calls.enter(ANONYMOUS, "ipv4:192.0.2.1:2", stream=False)
    calls.enter(ANONYMOUS, "ipv4:192.0.2.2:1", stream=False)()
    leave()
    assert not calls._calls
    assert not calls._streams


def test_an_address_that_fails_too_often_waits_longer_each_time() -> None:
    clock = Clock()
    logins = FailedLogins(3, clock)
    for _ in range(3):
        fail(logins, "192.0.2.1")
    pauses = []
    for _ in range(5):
        began = clock.now
        while refused(logins, "192.0.2.1"):
            clock.now += 0.5
        pauses.append(clock.now - began)
        fail(logins, "192.0.2.1")
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert not refused(logins, "192.0.2.2"), "its neighbours go on"
    clock.now += 300
    for _ in range(3):
        fail(logins, "192.0.2.1")
    assert refused(logins, "192.0.2.1")
    clock.now += 1
    assert not refused(logins, "192.0.2.1"), "who was quiet starts over"


def test_an_address_that_never_stops_fails_no_more_often_than_allowed() -> None:
    clock = Clock()
    logins = FailedLogins(30, clock)
    failures = 0
    for _ in range(36_000):
        clock.now += 0.1
        if not refused(logins, "192.0.2.1"):
            fail(logins, "192.0.2.1")
            failures += 1
    assert 60 < failures <= 30 + 30 * 60


def test_log_ins_that_succeed_cost_nothing() -> None:
    logins = FailedLogins(1, Clock())
    assert not any(refused(logins, "h") for _ in range(100))


def test_attempts_at_the_same_moment_wait_for_each_other() -> None:
    """No more are checked at once than may fail; honest ones are not refused for coming together."""
    logins = FailedLogins(2, Clock())
    checked, most, lock, outcomes = 0, 0, threading.Lock(), []

    def log_in(valid: bool) -> None:
        nonlocal checked, most
        try:
            with logins.attempt("h"):
                with lock:
                    checked += 1
                    most = max(most, checked)
                threading.Event().wait(0.01)
                with lock:
                    checked -= 1
                if not valid:
                    raise UnauthenticatedError("wrong")
            outcomes.append("ok")
        except UnauthenticatedError:
            outcomes.append("wrong")
        except LimitExceededError:
            outcomes.append("refused")

    for valid, expected in ((True, {"ok"}), (False, {"wrong", "refused"})):
        outcomes.clear()
        threads = [threading.Thread(target=log_in, args=(valid,)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert set(outcomes) == expected
        assert len(outcomes) == 12
    assert most == 2
    assert outcomes.count("wrong") == 2


def test_the_memory_of_failures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_ADDRESSES", 3)
    logins = FailedLogins(1, Clock())
    for host in "abacd":
        if not refused(logins, host):
            fail(logins, host)
    assert list(logins._addresses) == ["b", "c", "d"], "the one that failed longest ago is forgotten"
    repetitions = Repetitions(Clock())
    assert [repetitions.is_first(Refusal(ANN, host, "read")) for host in "abcdef"] == [True] * 4 + [False] * 2


def test_a_flood_of_refusals_is_written_down_as_one_and_a_number() -> None:
    clock = Clock()
    repetitions = Repetitions(clock)
    refusal, other = Refusal(ANN, "h", "query"), Refusal(BOB, "h", "query")
    assert [repetitions.is_first(refusal) for _ in range(1000)] == [True] + [False] * 999
    assert repetitions.is_first(other)
    assert repetitions.due() == []
    clock.now += 10
    assert repetitions.due() == [(refusal, 999)], "one that was not repeated was written down already"
    assert repetitions.is_first(refusal)
    repetitions.is_first(refusal)
    assert repetitions.due(all_of_them=True) == [(refusal, 1)]
