"""The papers' examples, as transcripts: a rewrite must not change what a paper says.

`test_transcripts.py` compares every word, and `--rewrite` accepts new ones. What is written here is what the
papers print, and stays: the level, every state of the view, and whom the warehouse asks in which order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from algebra.consistency import Level
from lab.history import History
from lab.oracle import check_vectors, judge
from lab.scenario_text import format_bag
from lab.transcript import Transcript, format_history

FOLDER = Path(__file__).parent.parent / "transcripts"
ALGORITHMS_PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"

NONE, CONVERGENT, WEAK, STRONG, COMPLETE = (
    Level.NONE,
    Level.CONVERGENT,
    Level.WEAK,
    Level.STRONG,
    Level.COMPLETE,
)


@dataclass(frozen=True)
class Example:
    """What a transcript must tell: the level, the states of the view, and the relations that are asked."""

    file: str
    level: Level
    views: tuple[str, ...]
    asked: str = ""


def grid(*columns: Iterable[int]) -> str:
    """All combinations of values, as the transcripts write a view."""
    return format_bag((row, 1) for row in product(*columns))


ROW = "{(1, 2, 3, 4)}"
FIGURE_5 = ("{(7, 8)[2]}", "{(5, 6)[2], (7, 8)[2]}", "{(5, 6)[2]}", "{(5, 6)}")
SECTION_3 = ("{(7, 2, 9, 5)}", "{(1, 2, 3, 4), (1, 2, 9, 5), (7, 2, 3, 4), (7, 2, 9, 5)}")
ALL_OF_6_1 = grid([1], [20, 21], [30], [40, 41], [6])
ALL_OF_6_2 = grid(range(1, 5), range(1, 5))
ALL_TERMS = grid([1, 2], [1, 2], [1, 2])

EXAMPLES = (
    Example("slides-correct", COMPLETE, ("{(1)}", "{(1)[2]}"), "r1"),
    Example("slides-insertion-anomaly", NONE, ("{}", "{(1), (4)}", "{(1), (4)[2]}"), "r1, r2[x]"),
    Example("slides-insertion-eca", STRONG, ("{}", "{(1), (4)}"), "+ r1 ⋈ [+(2)], + [+(4, 2)] ⋈ r2[x]"),
    Example(
        "slides-insertion-eca-key",
        STRONG,
        ("{}", "{(1, 3), (4, 3)}"),
        "+ r1 ⋈ [+(2, 3)], + [+(4, 2)] ⋈ r2",
    ),
    Example("slides-deletion-anomaly", NONE, ("{(1, 3)}", "{(1, 3)}", "{(1, 3)}"), "r2, r1"),
    Example("slides-deletion-eca", STRONG, ("{(1, 3)}", "{}"), "+ [-(1, 2)] ⋈ r2, + r1 ⋈ [-(2, 3)]"),
    Example("slides-deletion-eca-key", COMPLETE, ("{(1, 3)}", "{}", "{}")),
    Example("slides-multiple-views-v1", COMPLETE, ("{}", "{(1, 2, 3)}"), "r"),
    Example("slides-multiple-views-v2", COMPLETE, ("{}", "{(2, 3, 4)}"), "t"),
    Example("strobe-example-1", COMPLETE, ("{}", ROW, "{}"), "r1, r3, r2, r3"),
    Example("strobe-example-1-anomaly", NONE, ("{}", "{}", "{(1, 2, 3, 4)[-1]}"), "r1, r2, r3"),
    Example("strobe-example-1-copies", COMPLETE, ("{}", ROW, "{}"), "all of r1, all of r2, all of r3"),
    Example(
        "strobe-example-1-recompute",
        COMPLETE,
        ("{}", ROW, "{}"),
        "all of r1, all of r2, all of r3, all of r1, all of r2, all of r3",
    ),
    Example("strobe-example-2", COMPLETE, ("{}", ROW), "r1, r3"),
    Example("strobe-example-3", STRONG, ("{}", "{}"), "r1, r3"),
    Example("strobe-example-3-earlier-deletion", COMPLETE, ("{}", "{}", "{}"), "r1"),
    Example("strobe-example-4-strobe", CONVERGENT, ("{(1, 2)}", "{}", "{(3, 4)}")),
    Example("strobe-example-4-t-strobe", COMPLETE, ("{(1, 2)}", "{(3, 4)}")),
    Example("strobe-example-5", COMPLETE, ("{}", ROW, "{}"), "r1, r3, r3"),
    Example("strobe-example-6", COMPLETE, ("{}", ROW, "{}"), "r1, r3"),
    Example(
        "strobe-section-5-4-t-strobe",
        WEAK,
        ("{(1, 1)}", "{(1, 1), (5, 1)}", "{(5, 1)}", "{(5, 1), (5, 3)}"),
        "r2, r1",
    ),
    Example("strobe-section-5-4-g-strobe", STRONG, ("{(1, 1)}", "{(5, 1), (5, 3)}"), "r2, r1"),
    Example(
        "sweep-section-3-eca",
        STRONG,
        SECTION_3,
        "+ [+(1, 2)] ⋈ r2 ⋈ r3, + r1 ⋈ [+(2, 3)] ⋈ r3 - [+(1, 2)] ⋈ [+(2, 3)] ⋈ r3",
    ),
    Example("sweep-section-3-strobe", STRONG, SECTION_3, "r2, r1, r3, r3"),
    Example("sweep-section-3-c-strobe", COMPLETE, ("{}", ROW, "{}", "{}"), "r2, r3, r4"),
    Example(
        "sweep-section-4",
        COMPLETE,
        ("{}", "{(1, 3, 4)}", "{(1, 3, 4), (9, 3, 4)}", "{(9, 3, 4)}", "{(9, 3, 4)}"),
        "r2, r1, r1, r3, r1, r3, r2",
    ),
    Example("sweep-figure-5-sequential", COMPLETE, FIGURE_5, "r1[b], r3, r2, r1[b], r2, r3"),
    Example("sweep-figure-5", COMPLETE, FIGURE_5, "r1[b], r3, r2, r1[b], r2, r3"),
    Example("sweep-figure-5-batched", COMPLETE, FIGURE_5, "r2, r2, r1[b], r3"),
    Example("sweep-figure-5-parallel", COMPLETE, FIGURE_5, "r1[b], r3, r2, r1[b], r2, r3"),
    Example("sweep-figure-5-psweep", COMPLETE, FIGURE_5, "r1[b], r2, r2, r3, r1[b], r3"),
    Example(
        "sweep-section-6-1-sweep",
        COMPLETE,
        ("{(1, 20, 30, 40, 6)}", grid([1], [20], [30], [40, 41], [6]), ALL_OF_6_1),
        "r3, r2, r1, r5, r1, r3, r4, r5",
    ),
    Example(
        "sweep-section-6-1-dovetail",
        STRONG,
        ("{(1, 20, 30, 40, 6)}", ALL_OF_6_1),
        "r3, r2, r3, r4, r1, r5",
    ),
    Example(
        "sweep-section-6-1-right-sweep",
        STRONG,
        ("{(1, 20, 30, 40, 6)}", ALL_OF_6_1),
        "r1, r3, r4, r3, r2, r1, r5",
    ),
    Example("sweep-section-6-2-oscillation", STRONG, ("{(1, 1)}", ALL_OF_6_2), "r2, r1, r2, r1, r2, r1"),
    Example(
        "sweep-section-6-2-forced-end",
        STRONG,
        ("{(1, 1)}", grid([1, 2, 3], [1, 2]), ALL_OF_6_2),
        "r2, r1, r2, r1, r2, r1",
    ),
    Example("wrapper-example-1", NONE, ("{}", "{(1, 7), (2, 7)}", "{(1, 7), (2, 7)[2]}"), "r1⋈r2[a, e], r3"),
    Example("wrapper-example-2", COMPLETE, ("{}", "{(1, 7)}", "{(1, 7), (2, 7)}"), "r2, r1, r1, r3"),
    Example("wrapper-example-3", COMPLETE, ("{}", "{(1, 7)}", "{(1, 7), (3, 7)}"), "r2, r1, r2, r3"),
    Example(
        "wrapper-example-4",
        COMPLETE,
        ("{(1, 7)}", "{(1, 7)}", "{(1, 7), (3, 7)}", "{(1, 7), (2, 8), (3, 7)}"),
        "r3, r1⋈r2[a, e]",
    ),
    Example(
        "wrapper-example-5",
        COMPLETE,
        (
            "{(1, 100), (2, 200)}",
            "{(1, 100), (2, 200), (3, 200)}",
            "{(1, 100), (2, 200), (2, 300), (3, 200), (3, 300)}",
        ),
        "r2, r1",
    ),
    Example(
        "wrapper-example-6",
        COMPLETE,
        ("{}", "{(1, 7)}", "{(1, 7), (2, 7)}", "{(2, 7)}"),
        "r1⋈r2[a, e], r3, r3",
    ),
    Example(
        "delta-propagation-expression-1",
        COMPLETE,
        ("{(1, 1, 1)}", ALL_TERMS),
        "+ [+(2, 5)] ⋈ r2 ⋈ r3 + r1 ⋈ [+(5, 2, 6)] ⋈ r3 - [+(2, 5)] ⋈ [+(5, 2, 6)] ⋈ r3"
        " + r1 ⋈ r2 ⋈ [+(6, 2)] - [+(2, 5)] ⋈ r2 ⋈ [+(6, 2)] - r1 ⋈ [+(5, 2, 6)] ⋈ [+(6, 2)]",
    ),
    Example("delta-propagation-expression-3", COMPLETE, ("{(1, 1, 1)}", ALL_TERMS), "r2, r3, r1, r3, r2, r1"),
    Example("delta-propagation-expression-4", COMPLETE, ("{(1, 1, 1)}", ALL_TERMS), "r2, r2, r1, r3"),
)

WRONG_ON_PURPOSE = {
    "slides-insertion-anomaly",
    "slides-deletion-anomaly",
    "strobe-example-1-anomaly",
    "strobe-example-4-strobe",
    "wrapper-example-1",
}


@cache
def replayed(file: str) -> History:
    return Transcript.parse((FOLDER / f"{file}.txt").read_text(encoding="utf-8")).replay()


def lines(file: str) -> list[str]:
    """What happened, without the actions."""
    return [line.strip() for line in format_history(replayed(file)).splitlines() if line.startswith("    ")]


def asked(file: str) -> list[str]:
    """What the warehouse asked for, without the values that it asked with."""
    sent = [line.partition(": ")[2] for line in lines(file) if line.startswith("warehouse -> ")]
    return [query.partition(" where ")[0] for query in sent]


def in_order(file: str, *expected: str) -> bool:
    """Whether all these lines occur, one after the other, perhaps with others in between."""
    told = iter(lines(file))
    return all(line in told for line in expected)


def vectors(file: str) -> list[tuple[int, ...]]:
    return [state.vector for state in replayed(file).states]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.file)
def test_a_transcript_tells_what_the_paper_says(example: Example) -> None:
    history = replayed(example.file)
    assert tuple(format_bag(state.contents) for state in history.states) == example.views
    assert judge(history).level is example.level
    assert history.world.scenario.promise <= example.level
    assert ", ".join(asked(example.file)) == example.asked
    assert bool(check_vectors(history)) == (example.file in WRONG_ON_PURPOSE)


def test_every_transcript_with_a_reference_is_in_the_table() -> None:
    found = {
        file.stem
        for file in FOLDER.glob("*.txt")
        if Transcript.parse(file.read_text(encoding="utf-8")).scenario.reference
    }
    assert found == {example.file for example in EXAMPLES}


def test_the_documentation_lists_every_transcript_with_its_algorithm_and_level() -> None:
    page = ALGORITHMS_PAGE.read_text(encoding="utf-8")
    rows = [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith("| ")]
    listed = {
        (file.strip("`"), algorithm.strip("`"), level)
        for _, files, algorithm, level in (row for row in rows if len(row) == 4)
        for file in files.split(", ")
    }
    for example in EXAMPLES:
        algorithm = replayed(example.file).world.scenario.algorithm
        assert (example.file, algorithm, str(example.level)) in listed


class TestSlides:
    def test_eca_answers(self) -> None:
        """A1 = {[1], [4]}; the slide's A2 = {} is [4] less the [4] that the warehouse computes itself.

        Reference: slides, the example after "The Eager Compensating Algorithm (ECA)".
        """
        assert in_order(
            "slides-insertion-eca",
            "answer of s: +(1) +(4) for + r1 ⋈ [+(2)] at s@2",
            "answer of s: +(4) for + [+(4, 2)] ⋈ r2[x] at s@2",
            "view: {(1), (4)}  vector s@2",
        )

    def test_both_answers_of_the_deletion_anomaly_are_empty(self) -> None:
        """Reference: slides, second "Example - A View Maintenance Anomaly"."""
        for file in ("slides-deletion-anomaly", "slides-deletion-eca"):
            answers = [line for line in lines(file) if line.startswith("answer of ")]
            assert len(answers) == 2
            assert all(": no rows for " in line or ": nothing for " in line for line in answers)

    def test_the_two_views_have_the_insertion_in_common(self) -> None:
        """Reference: slides, "Multiple View Consistency for DW", t1 to t3."""
        for file in ("slides-multiple-views-v1", "slides-multiple-views-v2"):
            assert in_order(file, "y@1: +s(2, 3)", "update y@1: s +(2, 3)")


class TestStrobe:
    @pytest.mark.parametrize("file", ["strobe-example-1", "strobe-example-3", "strobe-example-5"])
    def test_the_events_of_example_1(self, file: str) -> None:
        """Reference: Strobe paper, Examples 1, 3 and 5, steps 1 to 4."""
        assert in_order(
            file,
            "update y@1: r2 +(2, 3)",
            "warehouse -> x: r1 where b in (2)",
            "answer of x: (1, 2) for r1 where b in (2) at x@0",
            "warehouse -> z: r3 where c in (3)",
            "update x@1: r1 -(1, 2)",
            "answer of z: (3, 4) for r3 where c in (3) at z@0",
        )

    def test_example_3_one_version_for_both(self) -> None:
        """Reference: Strobe paper, Example 3, step 4."""
        assert vectors("strobe-example-3") == [(0, 0, 0), (1, 1, 0)]

    def test_example_6_the_deletion_comes_before_the_answer(self) -> None:
        """Reference: Strobe paper, Example 6, steps 2 to 6."""
        assert in_order(
            "strobe-example-6",
            "update x@1: r1 -(1, 2)",
            "answer of x: no rows for r1 where b in (2) at x@1",
            "warehouse -> z: r3 where c in (3)",
            "answer of z: (3, 4) for r3 where c in (3) at z@0",
            "view: {(1, 2, 3, 4)}  vector x@0 y@1 z@0",
            "view: {}  vector x@1 y@1 z@0",
        )

    def test_t_strobe_and_g_strobe_meet_the_same_events(self) -> None:
        """Reference: Strobe paper, section 5.4."""
        t_strobe, g_strobe = (replayed(f"strobe-section-5-4-{name}-strobe") for name in "tg")
        assert t_strobe.actions == g_strobe.actions
        assert vectors("strobe-section-5-4-t-strobe")[1] == (1, 0), "one part of the transaction"
        assert vectors("strobe-section-5-4-g-strobe") == [(0, 0), (2, 1)]


class TestSweep:
    def test_figure_5_is_compensated_as_in_the_text(self) -> None:
        """{(1,3,5)} gets (2,3,5) back; for R3 the error term is empty; likewise for ΔR3 at R1.

        Reference: SWEEP paper, section 5.2.
        """
        assert in_order(
            "sweep-figure-5",
            "answer of s1: (3) for r1[b] where b in (3) at s1@1",
            "still queued: r1[b] -(3)",
            "answer of s3: (5, 6) for r3 where e in (5) at s3@1",
            "still queued: r3 -(7, 8)",
            "view: {(5, 6)[2], (7, 8)[2]}  vector s1@0 s2@1 s3@0",
            "answer of s2: (3, 7) for r2 where d in (7) at s2@1",
            "answer of s1: (3) for r1[b] where b in (3) at s1@1",
            "still queued: r1[b] -(3)",
            "view: {(5, 6)[2]}  vector s1@0 s2@1 s3@1",
        )

    def test_figure_5_costs_n_minus_1_queries_per_update_and_less_in_a_batch(self) -> None:
        """Reference: SWEEP paper, section 5.3; docs/adr/0003-batched-sweep-on-a-join-tree.md."""
        counts = {file: replayed(f"sweep-figure-5{file}").counts() for file in ("", "-sequential")}
        assert {count.queries for count in counts.values()} == {3 * 2}
        assert counts["-sequential"].compensations == 0
        assert len(asked("sweep-figure-5-batched")) == 2 * 2

    def test_parallel_sweeps_leave_together(self) -> None:
        """Reference: SWEEP paper, section 5.3, the two loops in parallel."""
        told = lines("sweep-figure-5-parallel")
        first = told.index("update s2@1: r2 +(3, 5)")
        assert told[first + 1 : first + 3] == [
            "warehouse -> s1: r1[b] where b in (3)",
            "warehouse -> s3: r3 where e in (5)",
        ]

    def test_psweep_asks_for_all_updates_before_any_answer(self) -> None:
        """Reference: SWEEP paper, section 5.3, pipelining."""
        told = lines("sweep-figure-5-psweep")
        before = told[: next(i for i, line in enumerate(told) if line.startswith("answer of "))]
        assert sum(line.startswith("warehouse -> ") for line in before) == 3

    def test_section_3_the_error_term(self) -> None:
        """A1 has it; Q2 takes it out under ECA, and under Strobe it is brought twice.

        Reference: SWEEP paper, section 3.
        """
        assert in_order(
            "sweep-section-3-eca",
            "answer of s: +(1, 2, 3, 4) +(1, 2, 9, 5) for + [+(1, 2)] ⋈ r2 ⋈ r3 at s@2",
            "answer of s: +(7, 2, 3, 4) for + r1 ⋈ [+(2, 3)] ⋈ r3 - [+(1, 2)] ⋈ [+(2, 3)] ⋈ r3 at s@2",
        )
        assert in_order(
            "sweep-section-3-strobe",
            "answer of y: (2, 3), (2, 9) for r2 where b in (2) at y@1",
            "answer of x: (1, 2), (7, 2) for r1 where b in (2) at x@1",
        )

    def test_section_4_only_what_interferes_is_compensated(self) -> None:
        """Reference: SWEEP paper, section 4."""
        told = lines("sweep-section-4")
        until = told.index("view: {(1, 3, 4)}  vector s1@0 s2@0 s3@1")
        queued = [line for line in told[:until] if line.startswith("still queued: ")]
        assert queued == ["still queued: r2 +(8, 3)", "still queued: r1 +(7, 2)"]
        assert "update s2@2: r2 -(2, 3)" in told[:until]

    def test_section_6_1_the_dovetail_shares_queries(self) -> None:
        """R_1 .. R_{j-1} and R_{i+1} .. R_n are asked once for both updates, j = 2 and i = 4.

        Reference: SWEEP paper, section 6.1.
        """
        once = Counter(asked("sweep-section-6-1-dovetail"))
        twice = Counter(asked("sweep-section-6-1-sweep"))
        assert (once["r1"], once["r5"]) == (1, 1)
        assert (twice["r1"], twice["r5"]) == (2, 2)
        assert once.total() < twice.total() == 2 * 4
        assert Counter(asked("sweep-section-6-1-right-sweep")).total() < 2 * 4
        assert vectors("sweep-section-6-1-dovetail") == [(0, 0, 0, 0, 0), (0, 1, 0, 1, 0)]

    def test_section_6_2_the_switch_ends_the_recursion(self) -> None:
        """The same events, in the same order; the first version does not wait for the sources to stop.

        Reference: SWEEP paper, sections 6.2 and 7.
        """
        oscillation, ended = (replayed(f"sweep-section-6-2-{name}") for name in ("oscillation", "forced-end"))
        assert oscillation.actions == ended.actions
        assert vectors("sweep-section-6-2-oscillation") == [(0, 0), (3, 3)]
        assert vectors("sweep-section-6-2-forced-end") == [(0, 0), (2, 1), (3, 3)]
        shown = "view: {(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)}  vector x@2 y@1"
        assert in_order("sweep-section-6-2-forced-end", shown, "x@3: +r1(4, 0)", "y@3: +r2(0, 4)")


class TestWrapper:
    def test_examples_1_and_6_ask_once_where_example_2_asks_twice(self) -> None:
        """Reference: wrapper paper, section 1.1, Examples 1 and 2."""
        for_delta_r3 = {}
        for file, first in (("1", "(1, 7), (2, 7)"), ("2", "(1, 7)"), ("6", "(1, 7)")):
            told = lines(f"wrapper-example-{file}")
            until = told.index(f"view: {{{first}}}  vector is1@0 is2@1")
            for_delta_r3[file] = sum(line.startswith("warehouse -> is1") for line in told[:until])
        assert for_delta_r3 == {"1": 1, "2": 2, "6": 1}

    def test_example_4_the_local_views(self) -> None:
        """V_IS1 shows A and E, V_IS2 shows B and F.

        Reference: wrapper paper, section 3.3, Example 4, Figures 4 and 5.
        """
        local_views = replayed("wrapper-example-4").world.local_views
        assert [(v.source, [c.source.column for c in v.columns]) for v in local_views] == [
            ("is1", ["a", "e"]),
            ("is2", ["b", "f"]),
        ]

    def test_example_5_the_correction(self) -> None:
        """LQR = ΔR1 ⋈ (R2 + ΔR2), less ΔR1 ⋈ ΔR2.

        Reference: wrapper paper, section 4.2, Example 5.
        """
        assert in_order(
            "wrapper-example-5",
            "update is1@1: r1 +(3, 20)",
            "update is1@2: r2 +(20, 300)",
            "answer of is1: (20, 200), (20, 300) for r2 where d in (20) at is1@2",
            "still queued: r2 +(20, 300)",
            "view: {(1, 100), (2, 200), (3, 200)}  vector is1@1",
        )

    def test_example_6_the_order_of_messages(self) -> None:
        """ΔIS_1(R2), the MQR that shows it, the ΔIS of what came after.

        Reference: wrapper paper, section 4.4, Example 6; section 3.1, function (3).
        """
        assert in_order(
            "wrapper-example-6",
            "update is1@1: r1⋈r2[a, e] +(2, 100)",
            "answer of is1: (1, 100), (2, 100) for r1⋈r2[a, e] where e in (100) at is1@1",
            "still queued: r1⋈r2[a, e] +(2, 100)",
            "update is1@2: r1⋈r2[a, e] -(1, 100)",
        )
        assert replayed("wrapper-example-6").counts().compensations == 1


class TestDeltaPropagation:
    def test_accesses_to_base_relations(self) -> None:
        """n-1 each with one join per delta; the ends of the chain once in a batch.

        Reference: delta propagation paper, section 1.2, expressions (3) and (4); section 3.2, Theorem 2.
        """
        assert Counter(asked("delta-propagation-expression-3")) == {"r1": 2, "r2": 2, "r3": 2}
        assert Counter(asked("delta-propagation-expression-4")) == {"r1": 1, "r2": 2, "r3": 1}

    def test_the_terms_of_expression_1(self) -> None:
        """2^n - 1 of them; the one without base relations is not sent.

        Reference: delta propagation paper, section 1.1, expression (1).
        """
        (query,) = asked("delta-propagation-expression-1")
        assert query.count("⋈") // 2 == 2**3 - 1 - 1
