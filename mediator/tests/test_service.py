"""Work that goes on beside a stream: what its caller, and the audit log, are told when it fails."""

from __future__ import annotations

from typing import Any

import pytest

from algebra.errors import INTERNAL_ERROR, LockstepError
from mediator.service import _with_progress
from protos.security.guard import Call
from protos.security.principals import ANONYMOUS_LOOPBACK


def test_words_of_an_exception_are_for_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    def broken(progress: Any) -> None:
        raise ValueError("cannot convert 'canary'")

    call = Call(ANONYMOUS_LOOPBACK, "ipv4:127.0.0.1:1", "create", "v")
    with pytest.raises(LockstepError) as caught:
        list(_with_progress(call, broken))
    assert (str(caught.value), call.outcome, call.detail) == (INTERNAL_ERROR, "INTERNAL", INTERNAL_ERROR)
    assert "create failed unexpectedly" in caplog.text
    assert "canary" in caplog.text
