"""Which failures mean that the disk does not take what is written: it is tried again until it does.

Problem. The same full disk shows itself as an `OSError` of Python or Arrow, as a text of Delta Lake's Rust,
as an error of DuckDB's spill files or as a Java trace. Treated as unexpected, it would pause views that are
right and only have to wait.

Chosen way: the error number where there is one, else the words that the operating system puts into all of
these texts. Everything else stays unexpected. The words of an error of ours may be a wrapper's, which speaks
of its own disk, or lies; what made it here is its cause.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from algebra.errors import LockstepError, StorageError

_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG)
_WORDS = {
    os.strerror(number).lower(): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
}
_WHAT_TO_DO = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space or raise it",
    errno.EFBIG: "a file would exceed the limit of this process; raise it",
    errno.EROFS: "it cannot be written, its file system is read-only; mount it for writing",
    errno.EACCES: "it cannot be written, permission is denied; give the mediator the right to write",
    errno.EPERM: "it cannot be written, permission is denied; give the mediator the right to write",
    errno.EIO: "the disk reports errors; look at the system's log",
}


def storage_error(error: BaseException | None, where: str) -> StorageError | None:
    """The failure as one line, if its cause is that `where` cannot be written; None for any other."""
    for cause in _causes(error):
        if isinstance(cause, StorageError):
            return cause
        number = None if isinstance(cause, LockstepError) else _number(cause)
        if number is not None:
            named = cause.filename if isinstance(cause, OSError) else None
            where = str(named) if named else where
            return StorageError(f"{where}: {_WHAT_TO_DO[number]} (versions are kept back, nothing is lost)")
    return None


def disk_problem(error: BaseException | None) -> str:
    """What is wrong with the disk and what to do, without the place; empty if the cause is another."""
    numbers = (_number(cause) for cause in _causes(error))
    return next((_WHAT_TO_DO[number] for number in numbers if number is not None), "")


def without_place(text: str) -> str:
    """What a line of `storage_error` says, for those who may not know where the warehouse lies."""
    what = next((what for what in _WHAT_TO_DO.values() if what in text), "it does not take what is written")
    return f"the warehouse: {what} (versions are kept back, nothing is lost)"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _number(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno in _NUMBERS:
        return error.errno
    text = str(error).lower()
    return next((number for words, number in _WORDS.items() if words in text), None)
