"""Transaction boundaries read from SQLite's write-ahead log.

Problem. SQLite has no transaction ids, and triggers cannot tell where a transaction ends. But every
commit that changed captured relations appends to the change log table, and so writes that table's
rightmost leaf page into the write-ahead log (WAL), followed by a frame that is marked as a commit. The
last rowid on that page is the change log's length after that very transaction.

Wrong ways. *Trust whatever lies in the file*: behind the last commit there may be frames of a rolled back
or unfinished transaction, of an older generation of the log, or half-written ones. *Trust the checksums, by
which each frame continues the one before it*: a writer that was killed leaves whole transactions that never
count, and that the next one overwrites only in part.

Chosen way. The wal-index says how many frames count (`wal_index`); these are never rewritten within one
generation (one pair of salts). All of them that are new are read. At the end the header is read again: a new
generation writes it before anything else, so if it is the same, all frames were of this one; else all is
redone.

A leaf page of the change log is known by its records. Wide rows spill to overflow pages, but the start
of the record header never does, so the mark is there: the table's first columns always hold the same
empty values, whose type codes are a constant byte string (`RECORD_MARK`) at a fixed place.

Which leaf page is the last one? Not simply the one with the largest rowid: a large transaction writes
pages before it commits, and after ROLLBACK TO a savepoint pages that are free again may still look like
leaves (and their parents like parents). So `_LogTree` follows the change log's tree from its root along
the right edge, by the newest frame of each page. Where it meets a page it knows nothing about, it says
so, and the stretch is treated as unknown.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from adapters.sqlite.wal_index import Published, WalIndex, checksum

MARK_VALUES = ("x''", "''", "NULL", "x''", "NULL", "''", "''", "x''")
"""What the columns after the change log's rowid hold in every row, as SQL: values without content."""

_TYPE_CODES = {"NULL": 0, "x''": 12, "''": 13}
RECORD_MARK = bytes([0, *(_TYPE_CODES[value] for value in MARK_VALUES)])
"""The type codes a change log record starts with: the rowid (stored as NULL), then the mark."""
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}
"""The type codes of integers, and how many bytes they take; the last two are 0 and 1 themselves."""

_HEADER = struct.Struct(">IIIIIIII")
_FRAME = struct.Struct(">IIIIII")
_PAGE_AND_COMMIT = struct.Struct(">II")
_MAGIC_LITTLE, _MAGIC_BIG = 0x377F0682, 0x377F0683
_VERSION = 3007000
_LEAF_PAGE, _INTERIOR_PAGE = 0x0D, 0x05
_OTHER = -1
_MAX_DEPTH = 40
_CHUNK_BYTES = 1 << 20
_ATTEMPTS = 16

UNKNOWN = -2
"""In place of a row: a commit appended to the change log, but how far cannot be told."""
_REPLACED = -3
"""In place of a row: a commit put another change log in the place of the one that was followed."""


@dataclass(frozen=True)
class Generation:
    """One run of the WAL from its start: the header that all of its frames refer to."""

    page_size: int
    salts: tuple[int, int]

    @property
    def frame_size(self) -> int:
        return _FRAME.size + self.page_size

    def directly_follows(self, other: Generation) -> bool:
        """True if exactly one reset of the log lies between the two: each adds one to the first salt."""
        return (other.salts[0] + 1) & 0xFFFFFFFF == self.salts[0]


@dataclass(frozen=True)
class LogRoot:
    """The change log's root page, and the schema version that says so."""

    page: int
    schema_version: int


@dataclass(frozen=True)
class Commits:
    """What a poll found: the change log's last rowid after each commit that touched it, in commit order.

    `restarted`: these come from a new generation. `consecutive`: that generation is the one right after
    what was there at the last poll; otherwise whole generations passed unseen. If a commit put another
    history in place of this one (a restore by SQLite's backup API), all of them together are UNKNOWN: some
    are of the one and some of the other, and a snapshot may show either.
    """

    last_rows: tuple[int, ...] = ()
    restarted: bool = False
    consecutive: bool = True


class WalReader:
    """Follows the WAL of a database that this process has open, each commit once.

    Plain file reads: no locks live on this file.
    """

    def __init__(self, database: Path) -> None:
        self._path = Path(f"{database}-wal")
        self._index = WalIndex(database)
        self._generation: Generation | None = None
        self._offset = _HEADER.size
        self._was_empty = False
        self._tree = _LogTree()

    @property
    def bytes_read(self) -> int:
        """How far into the present generation the reader has come."""
        return self._offset if self._generation else 0

    def rewind(self) -> None:
        """Forget everything; the next poll starts at the beginning of what the WAL then holds."""
        self._generation, self._offset, self._was_empty = None, _HEADER.size, False
        self._tree = _LogTree()

    @property
    def is_lost(self) -> bool:
        """True if, after a poll, it is unknown which page is the change log's last; `learn` helps."""
        return not self._tree.is_known and (self._generation is not None or self._was_empty)

    def learn(self, edge: Sequence[int], row: int, nonce: int) -> None:
        """Take the change log's pages from root to last leaf, and its last row with the nonce, as seen by a
        transaction that was already open at the last poll."""
        self._tree.learn(edge, row, nonce)

    def poll(self, root: LogRoot) -> Commits:
        """Every commit since the last poll; a transaction that was open before shows none beyond them."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            self._was_empty = True
            return Commits()
        try:
            for _ in range(_ATTEMPTS):
                found = self._poll(descriptor, root)
                if found is not None:
                    return found
        finally:
            os.close(descriptor)
        # Resets faster than we read, or no word of what counts: the next poll finds a gap, rather than guess.
        self.rewind()
        return Commits()

    def _poll(self, descriptor: int, root: LogRoot) -> Commits | None:
        generation = read_generation(descriptor)
        if generation is None:
            self._was_empty = True
            return Commits()
        end = _published_end(descriptor, generation, self._index.published())
        restarted = generation != self._generation
        start = _HEADER.size if restarted else self._offset
        if end is None or end < start:
            return None
        consecutive = not restarted or self._directly_before(generation)
        tree = self._tree.copy() if consecutive else _LogTree()
        last_rows = _follow(descriptor, generation, start, end, tree, root)
        if last_rows is None or read_generation(descriptor) != generation:
            return None
        self._generation, self._offset, self._was_empty = generation, end, False
        if self._tree.is_known and not tree.is_known:
            # What the frames before told is forgotten, so they have to be read again.
            self.rewind()
        else:
            self._tree = tree
        if _REPLACED in last_rows:
            last_rows = [UNKNOWN]
        return Commits(tuple(last_rows), restarted, consecutive)

    def _directly_before(self, generation: Generation) -> bool:
        """True if what was there at the last poll is what came right before that generation."""
        if self._generation is None:
            return self._was_empty
        return generation.directly_follows(self._generation)


def read_generation(descriptor: int) -> Generation | None:
    """The WAL header, or None if there is no valid one (an empty file, or one being written)."""
    header = os.pread(descriptor, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return None
    magic, version, page_size, _, salt1, salt2, sum1, sum2 = _HEADER.unpack(header)
    if magic not in (_MAGIC_LITTLE, _MAGIC_BIG) or version != _VERSION:
        return None
    word_format = "<" if magic == _MAGIC_LITTLE else ">"
    if checksum(word_format, header[:24], (0, 0)) != (sum1, sum2):
        return None
    return Generation(page_size, (salt1, salt2))


def _published_end(descriptor: int, generation: Generation, published: Published | None) -> int | None:
    """Where the frames that count end; None if that is not said, or said of another generation or file."""
    if published is None or published.salts != generation.salts:
        return None
    end = _HEADER.size + published.frames * generation.frame_size
    if published.frames:
        frame = os.pread(descriptor, _FRAME.size, end - generation.frame_size)
        if len(frame) < _FRAME.size:
            return None
        _, pages_after_commit, *salts, sum1, sum2 = _FRAME.unpack(frame)
        if not pages_after_commit or tuple(salts) != generation.salts or (sum1, sum2) != published.checksum:
            return None
    return end


class _LogTree:
    """The right edge of the change log's tree, and so its last row after each commit.

    It starts out exploring: it keeps all that frames say about interior pages, of whatever table, until
    that leads from the root to the last leaf, or `learn` fills in what no frame told. From then on the
    edge is known, and a page that comes to be on it is always written by the transaction that puts it
    there. What a page holds is one number: the last row (0 or more) of a change log leaf, `_OTHER`, or,
    below that, minus the right child of an interior page.
    """

    def __init__(self) -> None:
        self._right_child: dict[int, int] = {}
        self._root = self._last_leaf = 0
        self._last: tuple[int, int | None] | None = None
        self._explored: set[int] = set()
        self._schema: int | None = None

    def copy(self) -> _LogTree:
        result = _LogTree()
        result._right_child, result._explored = dict(self._right_child), set(self._explored)
        result._root, result._last_leaf, result._schema = self._root, self._last_leaf, self._schema
        result._last = self._last
        return result

    @property
    def is_known(self) -> bool:
        return self._last_leaf != 0

    def learn(self, edge: Sequence[int], row: int, nonce: int) -> None:
        """Fill in edge and last row as the database has them; frames know better about what they held."""
        self._last = self._last or (row, nonce)
        for page, child in pairwise(edge):
            if page not in self._explored:
                self._right_child[page] = child
        self._know(self._edge_from(edge[0], {}))

    def commit(
        self,
        written: dict[int, int],
        nonces: dict[int, int | None],
        pages: int,
        schema: int | None,
        root: LogRoot,
    ) -> int | None:
        """Follow one transaction: the last row if it wrote the last leaf, None if it did not.

        `nonces`: of the last rows of leaves. `pages`: how many the database has then. Who writes all of them
        is VACUUM, which changes no row, or another database that is restored; only the nonce tells the one
        from the other if both have as many rows. And a change log never gets shorter.
        """
        is_rewritten = (
            len(written) >= pages - 1
        )  # the page of SQLite's locks, if there is one, is never written
        row = self._last_row(written, schema, root, is_rewritten=is_rewritten)
        if row is None or row == UNKNOWN:
            return row
        nonce = nonces[self._last_leaf]
        before, self._last = self._last, (row, nonce)
        if row and before is not None:
            is_same = nonce is not None and before == self._last
            if row < before[0] or (is_rewritten and not is_same):
                return _REPLACED
        return row

    def _last_row(
        self, written: dict[int, int], schema: int | None, root: LogRoot, *, is_rewritten: bool
    ) -> int | None:
        """See `commit`. `schema` is the schema version if page 1 was written.

        A root is good for one schema version only: VACUUM moves it.
        """
        if schema is not None:
            self._schema = schema
        largest = max(written.values())
        if largest == 0:
            # The only row 0 there ever is: a new change log, one page that is root and leaf.
            self._know([next(page for page, row in written.items() if row == 0)])
            return 0
        if self.is_known and largest < 0 and self._right_child.keys().isdisjoint(written):
            return None
        if not self.is_known:
            self._explore(written)
        roots = [root.page] if self._schema == root.schema_version else []
        if self.is_known and not is_rewritten:
            roots.append(self._root)
        for candidate in roots:
            edge = self._edge_from(candidate, written)
            if edge[-1] == self._last_leaf and edge[-1] not in written:
                self._know(edge)
                return None
            if written.get(edge[-1], _OTHER) >= 0:
                self._know(edge)
                return written[edge[-1]]
        if largest < 0 and not self.is_known:
            return None
        self._last_leaf = 0
        return UNKNOWN

    def _edge_from(self, page: int, written: dict[int, int]) -> list[int]:
        """Pages from this one to the right and down, as far as they are interior pages."""
        edge = [page]
        while len(edge) < _MAX_DEPTH:
            content = written.get(page)
            if content is None:
                child = self._right_child.get(page, 0)
            else:
                child = -content if content < _OTHER else 0
            if not child:
                break
            edge.append(child)
            page = child
        return edge

    def _explore(self, written: dict[int, int]) -> None:
        self._explored.update(written)
        for page, content in written.items():
            if content < _OTHER:
                self._right_child[page] = -content
            else:
                self._right_child.pop(page, None)

    def _know(self, edge: list[int]) -> None:
        self._right_child = dict(pairwise(edge))
        self._root, self._last_leaf = edge[0], edge[-1]
        self._explored = set()


def _follow(
    descriptor: int, generation: Generation, start: int, end: int, tree: _LogTree, root: LogRoot
) -> list[int] | None:
    """The change log's last row after each commit in [start, end); None if `end` is not a commit's end."""
    size = generation.frame_size
    chunk = max(1, _CHUNK_BYTES // size) * size
    # One buffer for all chunks: fresh memory for each would cost more than reading the file.
    frames = bytearray(min(chunk, end - start))
    last_rows: list[int] = []
    written: dict[int, int] = {}
    nonces: dict[int, int | None] = {}
    schema = None
    for chunk_start in range(start, end, chunk):
        length = min(chunk, end - chunk_start)
        if os.preadv(descriptor, [memoryview(frames)[:length]], chunk_start) < length:
            return None
        for frame in range(0, length, size):
            content = frame + _FRAME.size
            page, pages_after_commit = _PAGE_AND_COMMIT.unpack_from(frames, frame)
            # Assigning, not a maximum: of a page written several times the last frame counts.
            if frames[content] == _LEAF_PAGE:
                written[page], nonces[page] = _last_row(frames, content, generation.page_size)
            elif frames[content] == _INTERIOR_PAGE:
                written[page] = -int.from_bytes(frames[content + 8 : content + 12])
            else:
                written[page] = _OTHER
                if page == 1:
                    schema = int.from_bytes(frames[content + 40 : content + 44])
            if pages_after_commit:
                row = tree.commit(written, nonces, pages_after_commit, schema, root)
                written, nonces, schema = {}, {}, None
                if row is not None:
                    last_rows.append(row)
    return None if written else last_rows


def _last_row(page: bytes | bytearray, start: int, size: int) -> tuple[int, int | None]:
    """The largest rowid on a change log leaf page that begins at `start`, or `_OTHER` if it is another page,
    and that row's nonce, or None if it cannot be read there.

    Page 1 begins with the file header instead, and so never looks like a leaf of the change log.
    """
    cells = page[start + 3] << 8 | page[start + 4]
    if not cells:
        return _OTHER, None
    pointer = start + 6 + 2 * cells
    cell = position = start + (page[pointer] << 8 | page[pointer + 1])
    try:
        while page[position] & 0x80:  # payload length; at most 5 bytes in practice
            position += 1
        position += 1
        row, position = _varint(page, position)
        record = position
        while page[position] & 0x80:  # length of the record header
            position += 1
        position += 1
        if page[position : position + len(RECORD_MARK)] != RECORD_MARK:
            return _OTHER, None
        return row, _nonce(page, size, _varint(page, cell)[0], record, position + len(RECORD_MARK))
    except IndexError:
        return _OTHER, None


def _nonce(page: bytes | bytearray, size: int, length: int, record: int, types: int) -> int | None:
    """The nonce in the record of that length at `record`, whose type codes after the mark begin at `types`.

    None where it may lie on an overflow page, or where a log of the older layout has something else.
    """
    relation, sign, nonce = page[types], page[types + 1], page[types + 2]
    if relation not in _INTEGERS or sign not in _INTEGERS or nonce not in _INTEGERS:
        return None
    start = record + _varint(page, record)[0] + _INTEGERS[relation] + _INTEGERS[sign]
    end = start + _INTEGERS[nonce]
    # At least so much of a record is on the page itself, however many bytes of each page are reserved.
    usable = max(480, size - 255)
    local = length if length <= usable - 35 else (usable - 12) * 32 // 255 - 23
    if end > record + local:
        return None
    return int.from_bytes(page[start:end], signed=True) if end > start else nonce - 8


def _varint(page: bytes | bytearray, position: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        byte = page[position]
        position += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, position
    return value << 8 | page[position], position + 1
