"""Rights: what is missing is said before anything is done."""

from __future__ import annotations

import functools
from contextlib import closing

import pyarrow as pa

from adapters.conformance.bench import Bench
from adapters.conformance.case import case, fail, require
from adapters.conformance.operations import Insert, Transaction
from adapters.conformance.queries import table
from algebra.errors import ConfigurationError

ITEM = table("item", {"id": pa.int64(), "name": pa.string()}, key=["id"])
NOTE = table("note", {"text": pa.string()})


@case
def a_missing_right_is_one_clear_line(bench: Bench) -> None:
    """A user that lacks a right gets ConfigurationError from catalog or prepare, in one line, and nothing is
    half installed; with the right, prepare works."""
    bench.require_has("rights", bench.quirks.no_rights)
    bench.create(ITEM, NOTE)
    require(bool(bench.harness.rights), "the harness names no rights, and no reason in Quirks.no_rights")
    before = bench.harness.objects()
    for right in bench.harness.rights:
        with closing(bench.harness.without_right(right)) as adapter:
            try:
                bench.patiently(adapter.catalog)
                bench.patiently(functools.partial(adapter.prepare, ("item", "note")))
            except ConfigurationError as error:
                require("\n" not in str(error), f"without {right}, the error has several lines: {error}")
            except Exception as error:
                fail(f"without {right}, prepare raised {type(error).__name__}: {error}")
            else:
                fail(f"without {right}, prepare was not refused")
        left = bench.harness.objects() ^ before
        require(not left, f"without {right}, a refused prepare changed {sorted(left)}")
    bench.prepare()
    start = bench.position()
    bench.write(Transaction((Insert("item", ((1, "a"),)), Insert("note", (("x",),)))))
    bench.require_agreement(start, "with all rights")


CASES = (a_missing_right_is_one_clear_line,)
