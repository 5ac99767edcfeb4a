"""The write-ahead log reader on real log files, whole, damaged and rewritten."""

import shutil
import struct
from pathlib import Path

import pytest

from adapters.sqlite.tests.support import Writer, captured
from adapters.sqlite.wal import Commits, LogRoot, WalReader, checksum

NOTHING = LogRoot(0, -1)
HEADER, FRAME, PAGE = 32, 24, 1024


@pytest.fixture
def log(path: Path, writer: Writer, tmp_path: Path) -> Path:
    """A copy of a database's log, beside where the database would be: capture and five transactions."""
    copy = tmp_path / "copy.db"
    with captured(path, writer, f"PRAGMA page_size = {PAGE}", "CREATE TABLE t (a INT, b TEXT)"):
        for size in (1, 2, 3):
            rows = ", ".join(f"({i}, hex(randomblob(900)))" for i in range(size))
            writer(f"INSERT INTO t VALUES {rows}")
        writer("INSERT INTO t VALUES (1, '')", "DELETE FROM t")
        shutil.copy(f"{path}-wal", f"{copy}-wal")
    return copy


EXPECTED = (0, 1, 3, 6, 7, 14)


def wal_of(database: Path) -> Path:
    return Path(f"{database}-wal")


def frames(content: bytes) -> list[bytes]:
    size = FRAME + PAGE
    return [content[at : at + size] for at in range(HEADER, len(content), size)]


def test_each_commit_is_reported_once(log: Path) -> None:
    reader = WalReader(log)
    assert reader.poll(NOTHING).last_rows == EXPECTED
    assert reader.poll(NOTHING).last_rows == ()


def test_commits_are_reported_as_they_become_complete(log: Path) -> None:
    """Whatever part of the file is there, only whole transactions are reported, and each exactly once."""
    content = wal_of(log).read_bytes()
    reader = WalReader(log)
    found: list[int] = []
    for end in [*range(0, len(content), 700), len(content)]:
        wal_of(log).write_bytes(content[:end])
        found += reader.poll(NOTHING).last_rows
        assert tuple(found) == EXPECTED[: len(found)]
    assert tuple(found) == EXPECTED


def test_no_log_is_no_commits(tmp_path: Path) -> None:
    assert WalReader(tmp_path / "none.db").poll(NOTHING) == Commits()


@pytest.mark.parametrize("place", [0, 16, 40, 300, FRAME + PAGE - 1])
def test_a_damaged_last_commit_is_not_reported(log: Path, place: int) -> None:
    """Be it in the frame's page number, its checksum, or the page."""
    content = bytearray(wal_of(log).read_bytes())
    start = len(content) - FRAME - PAGE
    content[start + place] ^= 0x40
    wal_of(log).write_bytes(content)
    assert WalReader(log).poll(NOTHING).last_rows == EXPECTED[:-1]


def test_a_damaged_header_is_no_log(log: Path) -> None:
    content = bytearray(wal_of(log).read_bytes())
    content[20] ^= 1
    wal_of(log).write_bytes(content)
    assert WalReader(log).poll(NOTHING) == Commits()


def test_frames_of_an_older_generation_are_not_read(log: Path) -> None:
    content = wal_of(log).read_bytes()
    old = b"".join(frame[:8] + b"\x07" * 8 + frame[16:] for frame in frames(content))
    wal_of(log).write_bytes(content + old)
    assert WalReader(log).poll(NOTHING).last_rows == EXPECTED


def test_frames_that_do_not_continue_the_chain_are_not_read(log: Path) -> None:
    """As after a rollback: same salts, even a commit mark, but not what the last commit was followed by."""
    content = wal_of(log).read_bytes()
    wal_of(log).write_bytes(content + b"".join(frames(content)[:4]) + frames(content)[-1])
    assert WalReader(log).poll(NOTHING).last_rows == EXPECTED


def test_a_big_endian_log_reads_the_same(log: Path) -> None:
    content = wal_of(log).read_bytes()
    header = struct.pack(">I", 0x377F0683) + content[4:24]
    running = checksum(">", header, (0, 0))
    rewritten = [header + struct.pack(">II", *running)]
    for frame in frames(content):
        running = checksum(">", frame[FRAME:], checksum(">", frame[:8], running))
        rewritten.append(frame[:16] + struct.pack(">II", *running) + frame[FRAME:])
    wal_of(log).write_bytes(b"".join(rewritten))
    assert WalReader(log).poll(NOTHING).last_rows == EXPECTED


def test_frames_that_sqlite_left_without_checksums_do_not_hide_what_follows(log: Path) -> None:
    """SQLite 3.40.1 does so when a spilled transaction is partly rolled back, and chains on from zero."""
    content = wal_of(log).read_bytes()
    for bare in (n for n, frame in enumerate(frames(content)) if frame[4:8] == b"\0\0\0\0"):
        rewritten = [content[:HEADER]]
        running = struct.unpack(">II", content[24:HEADER])
        for n, frame in enumerate(frames(content)):
            salts, running = frame[8:16], checksum("<", frame[FRAME:], checksum("<", frame[:8], running))
            if n == bare:
                salts, running = bytes(8), (0, 0)
            rewritten.append(frame[:8] + salts + struct.pack(">II", *running) + frame[FRAME:])
        wal_of(log).write_bytes(b"".join(rewritten))
        assert WalReader(log).poll(NOTHING).last_rows == EXPECTED


def with_salt(content: bytes, salt: int) -> bytes:
    """The same log as another generation."""
    header = content[:16] + struct.pack(">I", salt) + content[20:24]
    running = checksum("<", header, (0, 0))
    rewritten = [header + struct.pack(">II", *running)]
    for frame in frames(content):
        running = checksum("<", frame[FRAME:], checksum("<", frame[:8], running))
        salts = struct.pack(">I", salt) + content[20:24]
        rewritten.append(frame[:8] + salts + struct.pack(">II", *running) + frame[FRAME:])
    return b"".join(rewritten)


@pytest.mark.parametrize(("step", "consecutive"), [(1, True), (2, False), (-1, False)])
def test_generations_that_passed_unseen_are_noticed(log: Path, step: int, consecutive: bool) -> None:
    content = wal_of(log).read_bytes()
    reader = WalReader(log)
    reader.poll(NOTHING)
    salt = (struct.unpack(">I", content[16:20])[0] + step) & 0xFFFFFFFF
    wal_of(log).write_bytes(with_salt(content, salt))
    found = reader.poll(NOTHING)
    assert (found.restarted, found.consecutive) == (True, consecutive)
    assert found.last_rows == EXPECTED


def test_a_short_new_generation_over_a_long_old_one_is_found(log: Path) -> None:
    content = wal_of(log).read_bytes()
    salt = (struct.unpack(">I", content[16:20])[0] + 1) & 0xFFFFFFFF
    size = FRAME + PAGE
    new = with_salt(content, salt)
    reader = WalReader(log)
    reader.poll(NOTHING)
    ends = [n for n, frame in enumerate(frames(content), 1) if frame[4:8] != b"\0\0\0\0"]
    for end in ends:
        part = HEADER + end * size
        wal_of(log).write_bytes(new[:part] + content[part:])
        reader.poll(NOTHING)
        assert reader.bytes_read == part
