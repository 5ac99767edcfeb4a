"""The write-ahead log reader on real log files, whole, rewritten, and with more in them than counts."""

import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.sqlite.tests.support import Writer, captured
from adapters.sqlite.wal import Commits, LogRoot, WalReader
from adapters.sqlite.wal_index import checksum

NOTHING = LogRoot(0, -1)
HEADER, FRAME, PAGE = 32, 24, 1024
SIZE = FRAME + PAGE
INDEX_HEADER = 48


@pytest.fixture
def log(path: Path, writer: Writer, tmp_path: Path) -> Iterator[Path]:
    """A copy of a database's log and its index, beside where the database would be: capture and five
    transactions. The index is held open, as SQLite would."""
    copy = tmp_path / "copy.db"
    with captured(path, writer, f"PRAGMA page_size = {PAGE}", "CREATE TABLE t (a INT, b TEXT)"):
        for size in (1, 2, 3):
            rows = ", ".join(f"({i}, hex(randomblob(900)))" for i in range(size))
            writer(f"INSERT INTO t VALUES {rows}")
        writer("INSERT INTO t VALUES (1, '')", "DELETE FROM t")
        shutil.copy(f"{path}-wal", f"{copy}-wal")
        shutil.copy(f"{path}-shm", f"{copy}-shm")
    descriptor = os.open(f"{copy}-shm", os.O_RDWR)
    yield copy
    os.close(descriptor)


EXPECTED = (0, 1, 3, 6, 7, 14)


def wal_of(database: Path) -> Path:
    return Path(f"{database}-wal")


def index_of(database: Path) -> Path:
    return Path(f"{database}-shm")


def frames(content: bytes) -> list[bytes]:
    return [content[at : at + SIZE] for at in range(HEADER, len(content), SIZE)]


def commits(content: bytes) -> list[int]:
    """The numbers of the frames that end a transaction, from one."""
    return [n for n, frame in enumerate(frames(content), 1) if frame[4:8] != b"\0\0\0\0"]


def publish(database: Path, upto: int) -> None:
    """Let the index say that so many frames of the log count."""
    content = wal_of(database).read_bytes()
    index = index_of(database).read_bytes()
    last = struct.unpack_from(">II", content, HEADER + (upto - 1) * SIZE + 16) if upto else (0, 0)
    header = index[:16] + struct.pack("=I", upto) + index[20:24] + struct.pack("=II", *last) + content[16:24]
    header += struct.pack("=II", *checksum("<", header, (0, 0)))
    with index_of(database).open("r+b") as file:
        file.write(header * 2)


def rewrite(database: Path, content: bytes) -> None:
    """Another log, of which all frames count."""
    wal_of(database).write_bytes(content)
    publish(database, len(frames(content)))


def test_each_commit_is_reported_once(log: Path) -> None:
    reader = WalReader(log)
    assert reader.poll(NOTHING).last_rows == EXPECTED
    assert reader.poll(NOTHING).last_rows == ()


def test_commits_are_reported_as_they_are_published(log: Path) -> None:
    """Whatever else lies in the file: the frames behind are whole, and continue those that count."""
    content = wal_of(log).read_bytes()
    reader = WalReader(log)
    for end, row in zip(commits(content), EXPECTED, strict=True):
        publish(log, end)
        assert reader.poll(NOTHING).last_rows == (row,)
        assert reader.poll(NOTHING).last_rows == ()
        assert reader.bytes_read == HEADER + end * SIZE


def test_no_log_is_no_commits(tmp_path: Path) -> None:
    assert WalReader(tmp_path / "none.db").poll(NOTHING) == Commits()


@pytest.mark.parametrize("place", [7, 8, 16])
def test_a_log_that_is_not_what_was_published_is_not_read(log: Path, place: int) -> None:
    """Be it in the last frame's mark of a commit, its salts, or its checksum."""
    content = bytearray(wal_of(log).read_bytes())
    start = len(content) - SIZE
    content[start + place] = content[start + place] ^ 0x40 if place != 7 else 0
    wal_of(log).write_bytes(content)
    assert WalReader(log).poll(NOTHING) == Commits()


def test_a_log_that_is_shorter_than_what_was_published_is_not_read(log: Path) -> None:
    content = wal_of(log).read_bytes()
    wal_of(log).write_bytes(content[:-SIZE])
    assert WalReader(log).poll(NOTHING) == Commits()


def test_a_damaged_header_is_no_log(log: Path) -> None:
    content = bytearray(wal_of(log).read_bytes())
    content[20] ^= 1
    wal_of(log).write_bytes(content)
    assert WalReader(log).poll(NOTHING) == Commits()


@pytest.mark.parametrize("place", [0, 3, 12, 17, 40, INDEX_HEADER, INDEX_HEADER + 17])
def test_without_word_of_what_counts_nothing_is_read_and_a_gap_follows(log: Path, place: int) -> None:
    """As when a writer was killed while it published, and nobody has mended that yet."""
    content = wal_of(log).read_bytes()
    reader = WalReader(log)
    publish(log, commits(content)[2])
    assert reader.poll(NOTHING).last_rows == EXPECTED[:3]
    good = index_of(log).read_bytes()
    with index_of(log).open("r+b") as file:
        file.seek(place)
        file.write(bytes([good[place] ^ 1]))
    assert reader.poll(NOTHING) == Commits()
    index_of(log).write_bytes(good)
    publish(log, len(frames(content)))
    found = reader.poll(NOTHING)
    assert (found.last_rows, found.consecutive) == (EXPECTED, False)


def test_an_index_that_this_process_does_not_hold_is_not_opened(log: Path) -> None:
    """Closing it would drop locks."""
    content = index_of(log).read_bytes()
    index_of(log).unlink()
    index_of(log).write_bytes(content)
    assert WalReader(log).poll(NOTHING) == Commits()


def test_frames_of_an_older_generation_are_not_read(log: Path) -> None:
    content = wal_of(log).read_bytes()
    old = b"".join(frame[:8] + b"\x07" * 8 + frame[16:] for frame in frames(content))
    wal_of(log).write_bytes(content + old)
    assert WalReader(log).poll(NOTHING).last_rows == EXPECTED


def test_a_big_endian_log_reads_the_same(log: Path) -> None:
    content = wal_of(log).read_bytes()
    header = struct.pack(">I", 0x377F0683) + content[4:24]
    running = checksum(">", header, (0, 0))
    rewritten = [header + struct.pack(">II", *running)]
    for frame in frames(content):
        running = checksum(">", frame[FRAME:], checksum(">", frame[:8], running))
        rewritten.append(frame[:16] + struct.pack(">II", *running) + frame[FRAME:])
    rewrite(log, b"".join(rewritten))
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
        rewrite(log, b"".join(rewritten))
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
    rewrite(log, with_salt(content, salt))
    found = reader.poll(NOTHING)
    assert (found.restarted, found.consecutive) == (True, consecutive)
    assert found.last_rows == EXPECTED


def test_a_short_new_generation_over_a_long_old_one_is_found(log: Path) -> None:
    content = wal_of(log).read_bytes()
    salt = (struct.unpack(">I", content[16:20])[0] + 1) & 0xFFFFFFFF
    new = with_salt(content, salt)
    reader = WalReader(log)
    reader.poll(NOTHING)
    for end in commits(content):
        part = HEADER + end * SIZE
        wal_of(log).write_bytes(new[:part] + content[part:])
        publish(log, end)
        reader.poll(NOTHING)
        assert reader.bytes_read == part


def test_a_generation_that_is_published_before_its_log_is_written_is_not_read(log: Path) -> None:
    """A reset publishes the new salts first; a writer may be killed right then."""
    content = wal_of(log).read_bytes()
    new = with_salt(content, (struct.unpack(">I", content[16:20])[0] + 1) & 0xFFFFFFFF)
    wal_of(log).write_bytes(new)
    publish(log, 0)
    wal_of(log).write_bytes(content)
    reader = WalReader(log)
    assert reader.poll(NOTHING) == Commits()
    rewrite(log, new)
    assert reader.poll(NOTHING).last_rows == EXPECTED
