"""Rows that cannot be read: named by file and line, then refused or put into quarantine."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from adapters.files.options import QUARANTINE
from algebra.errors import DataError
from algebra.private_files import private

RAW_LIMIT = 10_000
"""Characters of a malformed row that are kept."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MalformedRow:
    """One row that was left out. `line` is the first line of the row in its file, from 1; in a workbook it
    is the row of the sheet, and `file` names the sheet too."""

    relation: str
    file: str
    line: int
    reason: str
    raw: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"

    @property
    def place(self) -> str:
        """Where it is, without a word of what it holds."""
        return f"{self.file}:{self.line}"


class UnfinishedError(DataError):
    """A row that may be malformed, or still being written: it is looked at again, for a while."""


class Malformed:
    """What becomes of the malformed rows of one reading of one relation."""

    def __init__(self, source: str, relation: str, policy: str, limit: int) -> None:
        self._source = source
        self._relation = relation
        self._policy = policy
        self._limit = limit
        self.rows: list[MalformedRow] = []

    @classmethod
    def ignored(cls) -> Malformed:
        """For a look at the good rows only: the others are named when the file is read."""
        return cls("", "", QUARANTINE, sys.maxsize)

    @property
    def leaves_out(self) -> bool:
        """Whether malformed rows are left out, and the others taken."""
        return self._policy == QUARANTINE

    def report(self, file: str, line: int, reason: str, raw: bytes | str, *, last: bool = False) -> None:
        """Note a malformed row; DataError if it is refused, or if there are too many. `last`: the file ends
        inside of it."""
        if isinstance(raw, bytes):
            raw = raw[: 4 * RAW_LIMIT].decode("utf-8", "backslashreplace")
        row = MalformedRow(self._relation, file, line, reason, raw[:RAW_LIMIT].rstrip("\r\n"))
        if not self.leaves_out:
            advice = f"mend the file, or set `malformed: {QUARANTINE}`"
            raise (UnfinishedError if last else DataError)(
                f"source {self._source!r}: {row}; {advice}",
                told=f"source {self._source!r}: {row.place} is malformed; {advice}",
            )
        self.rows.append(row)
        if len(self.rows) > self._limit:
            too_many = (
                f"relation {self._relation!r} has more than {self._limit} malformed rows "
                "(option `quarantine_limit`), so none of it is taken"
            )
            raise DataError(
                f"source {self._source!r}: {row}; {too_many}", told=f"source {self._source!r}: {too_many}"
            )


class QuarantineFile:
    """The rows that are left out now, one JSON object per line; there is no file when there are none."""

    def __init__(self, source: str, path: Path) -> None:
        self._source = source
        self.path = path

    def rows(self) -> list[MalformedRow]:
        """What the file tells; nothing if there is none."""
        try:
            lines = self.path.read_text("utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [MalformedRow(**json.loads(line)) for line in lines if line]

    def replace(self, relations: Sequence[str], found: Iterable[MalformedRow]) -> None:
        """These relations were read again, and these are their malformed rows now."""
        before = self.rows()
        found = list(found)
        after = [row for row in before if row.relation not in relations] + found
        if after == before:
            return
        fresh = [row for row in found if row not in before]
        if fresh:
            log.warning(
                "source %s: %d malformed rows are in quarantine (%s), the first new one: %s",
                self._source, len(after), self.path, fresh[0],
            )  # fmt: skip
        if not after:
            self.path.unlink(missing_ok=True)
            return
        text = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in after)
        temporary = self.path.with_name(self.path.name + ".new")
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace", opener=private) as file:
            file.write(text)
        os.replace(temporary, self.path)

    def files(self) -> list[Path]:
        """What is there to be removed."""
        return [p for p in (self.path, self.path.with_name(self.path.name + ".new")) if p.exists()]
