"""Audit records are JSON whatever a caller sends, and hold no secret."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from algebra.redaction import remember
from protos.security.audit import AuditLog


@pytest.mark.parametrize(
    "name",
    ["a?token=x", "a?token=x'", 'a?token="x"', "a&password=", "?secret=\\", "x://u:p@", "ü?token=\n\x00é"],
)
def test_a_record_is_one_line_of_json_whatever_is_asked_for(tmp_path: Path, name: str) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl", "mediator")
    audit.record(
        None, f"ipv4:{name}", "drop", name, "UNAUTHENTICATED", f"there is no view {name!r}; try another"
    )
    (line,) = (tmp_path / "audit.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["action"], entry["outcome"]) == ("drop", "UNAUTHENTICATED")
    assert entry["detail"].endswith("try another")


def test_a_secret_is_hidden_also_where_a_field_is_cut(tmp_path: Path) -> None:
    remember('audit-"canary"')
    audit = AuditLog(tmp_path / "audit.jsonl", "mediator")
    audit.record(
        None, "", "drop", "x" * 495 + 'audit-"canary"', "ok", 'saw audit-"canary" and a?token=abcdef'
    )
    entry = json.loads((tmp_path / "audit.jsonl").read_text())
    assert entry["target"] == "x" * 495 + "***"
    assert entry["detail"] == "saw *** and a?token=***"


def test_a_file_that_is_moved_away_is_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = AuditLog(file, "mediator")
    audit.record(None, "", "drop", "one", "ok")
    file.rename(tmp_path / "old.jsonl")
    audit.record(None, "", "drop", "two", "ok")
    targets = [json.loads(path.read_text())["target"] for path in (tmp_path / "old.jsonl", file)]
    assert targets == ["one", "two"]


def test_a_record_that_cannot_be_written_is_logged_as_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "audit"
    audit = AuditLog(folder / "audit.jsonl", "mediator")
    folder.rename(tmp_path / "elsewhere")
    audit.record(None, "", "drop", "orders", "ok")
    assert "the audit record is lost" in caplog.text
    assert "orders" in caplog.text


def test_a_record_that_was_written_in_part_is_lost_and_harms_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a disk does that becomes full: it takes the beginning, and then nothing."""
    write, room = os.write, [100]

    def until_full(handle: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data[: room.pop()])

    file = tmp_path / "audit.jsonl"
    audit = AuditLog(file, "mediator")
    audit.record(None, "", "drop", "one", "ok")
    with monkeypatch.context() as full:
        full.setattr(os, "write", until_full)
        audit.record(None, "", "drop", "two", "ok")
        audit.record(None, "", "drop", "three", "ok")
    for lost in ("two", "three"):
        assert any("is lost" in line and f'"{lost}"' in line for line in caplog.messages)
    audit.record(None, "", "drop", "four", "ok")
    audit.record(None, "", "drop", "five", "ok")
    first, torn, *others = file.read_text().splitlines()
    assert len(torn) == 100
    assert [json.loads(line)["target"] for line in (first, *others)] == ["one", "four", "five"]
