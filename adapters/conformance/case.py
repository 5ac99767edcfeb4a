"""Cases: one named requirement of the contract each, and how one is run and reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from adapters.conformance.harness import Harness

if TYPE_CHECKING:
    from adapters.conformance.bench import Bench


class CaseFailure(AssertionError):
    """The adapter does not keep the contract; the text says what was expected and what was found."""


class CaseSkipped(Exception):
    """The case does not apply to this source; the text is the declared reason."""


@dataclass(frozen=True)
class Case:
    """One requirement: a stable name, what it demands, and the function that tries it."""

    name: str
    summary: str
    check: Callable[[Bench], None]


def case(check: Callable[[Bench], None]) -> Case:
    """The case that a function with a docstring describes; its name is the function's, with dashes."""
    return Case(check.__name__.replace("_", "-"), (getdoc(check) or "").split("\n\n")[0], check)


def fail(explanation: str) -> NoReturn:
    raise CaseFailure(explanation)


def require(holds: bool, explanation: str) -> None:
    if not holds:
        fail(explanation)


def run_case(case: Case, harness: type[Harness], directory: Path) -> None:
    """Try one case on a fresh source; raises CaseFailure ("case X failed: …") or CaseSkipped."""
    from adapters.conformance.bench import Bench

    if case.name in harness.quirks.skips:
        raise CaseSkipped(harness.quirks.skips[case.name])
    bench = Bench(harness(directory))
    try:
        case.check(bench)
    except CaseSkipped:
        raise
    except CaseFailure as failure:
        raise CaseFailure(f"case {case.name} failed: {failure}") from failure
    except Exception as error:
        raise CaseFailure(f"case {case.name} failed with {type(error).__name__}: {error}") from error
    finally:
        bench.close()
