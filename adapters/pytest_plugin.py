"""The pytest plugin of the conformance kit: what its tests need of a project's pytest run.

It is loaded into every pytest run of an environment in which Lockstep is installed. So it imports nothing:
the kit itself is imported by the test modules that use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

MARKER = "conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep", "Lockstep's adapter conformance kit")
    group.addoption(
        "--conformance-case",
        action="append",
        default=[],
        metavar="NAME",
        help="of the conformance tests, run only this case (may be repeated)",
    )
    group.addoption(
        "--conformance-report",
        action="store_true",
        help="at the end, list for each adapter what does not apply to its source, and why",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}(case): a case of Lockstep's adapter conformance kit")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = set(config.getoption("--conformance-case"))
    if not wanted:
        return
    names = {item: marker.args[0] for item in items if (marker := item.get_closest_marker(MARKER))}
    unknown = sorted(wanted - set(names.values()))
    if unknown and names:
        import pytest

        raise pytest.UsageError(f"there is no conformance case {unknown[0]!r}")
    left_out = [item for item, name in names.items() if name not in wanted]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--conformance-report"):
        return
    kept: dict[str, int] = {}
    excused: dict[str, list[tuple[str, str]]] = {}
    for report in terminalreporter.getreports("passed"):
        if MARKER in report.keywords and report.when == "call":
            harness, _ = _names(report.nodeid)
            kept[harness] = kept.get(harness, 0) + 1
    for report in terminalreporter.getreports("skipped"):
        if MARKER in report.keywords:
            harness, case = _names(report.nodeid)
            reason = str(report.longrepr[2]).removeprefix("Skipped: ")
            excused.setdefault(harness, []).append((case, reason))
    terminalreporter.section("conformance")
    for harness in sorted({*kept, *excused}):
        reasons = excused.get(harness, [])
        terminalreporter.line(f"{harness}: keeps {kept.get(harness, 0)} cases, {len(reasons)} do not apply")
        for case, reason in sorted(reasons):
            terminalreporter.line(f"  {case}: {reason}")


def _names(nodeid: str) -> tuple[str, str]:
    """The test class and the case in `path::TestClass::test[case]`."""
    head, _, case = nodeid.partition("[")
    return head.rpartition("::")[0], case.removesuffix("]")
