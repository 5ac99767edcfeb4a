"""How hard the fuzz tests try, and the corpus: inputs that were found or thought of, tried in every run.

A run without `LOCKSTEP_FUZZ` tries the same few examples per test, and every file of the corpus.
`LOCKSTEP_FUZZ=5000 make test ARGS="-m fuzz"` tries 5,000 new examples per test. What such a run finds, shrunk
to the least that fails, it writes to `integration_tests/corpus/DECODER/found-…`: commit that file with the
fix, under a name that says what it is, so that it is tried forever after.

A file of the corpus is the input itself, as bytes. `python -m integration_tests.corpus_seeds` wrote the first
ones; a test reads whatever is there.
"""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings

from algebra.errors import LockstepError

CORPUS = Path(__file__).with_name("corpus")

_MANY = int(os.environ.get("LOCKSTEP_FUZZ", "0"))

FUZZ = settings(
    max_examples=_MANY or 60,
    derandomize=not _MANY,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def refused_or_fine(work: Callable[[], None]) -> None:
    """Return if the work is done, or refused with a line that says why; any other exception is a bug."""
    try:
        work()
    except LockstepError as error:
        if not str(error).strip():
            raise AssertionError("a refusal without words") from error


def corpus_files() -> list[Path]:
    """Every input that is kept, by decoder and name."""
    return sorted(path for path in CORPUS.glob("*/*") if path.is_file())


def keep(decoder: str, data: bytes, error: BaseException) -> Path:
    """Write down what made a decoder fail. The same failure has the same file: the last one is the smallest,
    for Hypothesis ends with it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{type(error).__name__} {frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
    path = CORPUS / decoder / f"found-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def tried(decoder: str, decode: Callable[[bytes], None], data: bytes) -> None:
    """Decode what is refused or fine; on a long run, what is neither is kept in the corpus."""
    try:
        refused_or_fine(lambda: decode(data))
    except Exception as error:
        if _MANY:
            error.add_note(f"kept as {keep(decoder, data, error)}")
        raise
