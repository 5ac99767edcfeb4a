"""The log: one record, one line, and nothing of what a client sent passes for another."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from algebra.redaction import remember
from cli import logs
from cli.logs import LogFormat, LogLevel


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root, sqlglot = logging.getLogger(), logging.getLogger("sqlglot")
    handlers, level, of_sqlglot = root.handlers[:], root.level, sqlglot.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    sqlglot.setLevel(of_sqlglot)


FORGED = "no view 'x\n2026-01-01T00:00:00.000Z ERROR   lockstep: all is lost\r\x1b[2J\u2028\x85'"


@pytest.mark.parametrize("debug", [False, True])
def test_a_message_cannot_forge_a_line(capsys: pytest.CaptureFixture[str], debug: bool) -> None:
    logs.configure(LogLevel.INFO, debug=debug)
    logging.getLogger("a").warning("%s", FORGED)
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text
    assert "all is lost" in text


def test_a_trace_keeps_its_lines_and_a_secret_with_a_line_break_is_hidden(
    capsys: pytest.CaptureFixture[str],
) -> None:
    remember("log\ncanary")
    logs.configure(LogLevel.INFO, debug=True)
    try:
        raise ValueError("reason")
    except ValueError:
        logging.getLogger("a").exception("it broke: log\ncanary")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("it broke: ***")
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: reason"


@pytest.mark.parametrize("form", list(LogFormat))
@pytest.mark.parametrize("secret", ["tab\tcanary", "bell\x07canary", "back\\canary", "two  blanks, canary"])
def test_a_secret_is_hidden_however_it_is_spelled(
    capsys: pytest.CaptureFixture[str], secret: str, form: LogFormat
) -> None:
    """Control characters are spelled out in traces, and exceptions quote what they name as Python does."""
    remember(secret)
    logs.configure(LogLevel.INFO, debug=True, form=form)
    try:
        raise KeyError(secret) from ValueError(f"no port: {secret}")
    except KeyError as error:
        logging.getLogger("a").exception("it broke: %r, %s", secret, " ".join(secret.split()))
        logs.redacted_trace(type(error), error, None)
    said = capsys.readouterr().err
    assert "canary" not in said
    assert "no port: ***" in said


@pytest.mark.parametrize("form", list(LogFormat))
def test_sql_of_a_client_is_not_logged_by_the_parser(
    capsys: pytest.CaptureFixture[str], form: LogFormat
) -> None:
    logs.configure(LogLevel.INFO, debug=True, form=form)
    logging.getLogger("sqlglot").warning("contains unsupported syntax: %s", "SELECT 'canary'")
    assert capsys.readouterr().err == ""
    logging.getLogger("sqlglot").error("broken")
    assert "broken" in capsys.readouterr().err
