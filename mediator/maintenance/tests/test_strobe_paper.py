"""The Strobe family on the examples of its paper: every query that is sent, every state of the view."""

from __future__ import annotations

from dataclasses import replace

import pytest

from algebra.consistency import Level, Scenario
from algebra.engines.embedded import EmbeddedEngine
from algebra.global_transaction import GlobalTransaction
from algebra.sweep import Query
from mediator.maintenance.c_strobe import CStrobe
from mediator.maintenance.c_tstrobe import CTStrobe
from mediator.maintenance.contract import Maintenance
from mediator.maintenance.g_strobe import GStrobe
from mediator.maintenance.strobe import Strobe
from mediator.maintenance.t_strobe import TStrobe
from mediator.maintenance.tests.hand_driver import HandDriver, HandView, bag, relation, view_over

R1, R2, R3 = 0, 1, 2
FAMILY = [Strobe(), TStrobe(), GStrobe(), CStrobe(), CTStrobe()]
QUIESCENT = [Strobe(), TStrobe(), GStrobe()]
COMPLETE = [CStrobe(), CTStrobe()]


def by_name(algorithm: Maintenance) -> str:
    return algorithm.name


@pytest.fixture
def chain() -> HandView:
    """V = r1 ⋈ r2 ⋈ r3 at sources x, y and z."""
    return view_over(
        "SELECT r1.A, r2.B, r3.C, r3.D FROM x.r1, y.r2, z.r3 WHERE r1.B = r2.B AND r2.C = r3.C",
        {
            "x": [relation("r1", "A B", "A")],
            "y": [relation("r2", "B C", "B")],
            "z": [relation("r3", "C D", "C")],
        },
    )


class TestExample1:
    """r1 = {[1,2]}, r2 = ∅, r3 = {[3,4]}; U1 = insert(r2, [2,3]), U2 = delete(r1, [1,2]).

    Reference: Strobe paper, section 1, Example 1, and section 5.2, Example 3.
    """

    def test_example_2_next_source_asks_x_then_z(self, chain: HandView) -> None:
        """Reference: Strobe paper, section 5.1, Example 2."""
        driver = HandDriver(Strobe(), chain)
        driver.update((+1, R2, (2, 3)))
        (first,) = driver.unanswered
        assert isinstance(first, Query)
        assert first.node == R1
        assert first.keys is not None
        assert first.keys.values.to_pylist() == [{"B": 2}]
        driver.answer((1, 2))
        (second,) = driver.unanswered
        assert isinstance(second, Query)
        assert second.node == R3
        assert second.keys is not None
        assert second.keys.values.to_pylist() == [{"C": 3}]

    @pytest.mark.parametrize("algorithm", QUIESCENT, ids=by_name)
    def test_example_3_strobe_remembers_the_deletion(self, algorithm: Maintenance, chain: HandView) -> None:
        driver = HandDriver(algorithm, chain)
        driver.update((+1, R2, (2, 3)))
        driver.answer((1, 2))
        driver.update((-1, R1, (1, 2)))
        assert driver.states == [bag()], "AL waits for Q1"
        driver.answer((3, 4))
        assert driver.states == [bag(), bag()]
        assert driver.reflected == [(1, 2)]
        assert driver.nodes_asked() == [R1, R3]

    @pytest.mark.parametrize("algorithm", QUIESCENT, ids=by_name)
    def test_a_deletion_before_the_query_reaches_its_source_needs_no_action(
        self, algorithm: Maintenance, chain: HandView
    ) -> None:
        driver = HandDriver(algorithm, chain)
        driver.update((+1, R2, (2, 3)))
        driver.update((-1, R1, (1, 2)))
        driver.answer()
        assert driver.states == [bag(), bag()]
        assert driver.nodes_asked() == [R1], "nothing to join, so z is not asked"

    @pytest.mark.parametrize("algorithm", COMPLETE, ids=by_name)
    def test_example_5_c_strobe_adds_a_duplicate_once(self, algorithm: Maintenance, chain: HandView) -> None:
        """Reference: Strobe paper, section 6, Example 5."""
        driver = HandDriver(algorithm, chain)
        driver.update((+1, R2, (2, 3)))
        driver.answer((1, 2))
        driver.update((-1, R1, (1, 2)))
        driver.answer((3, 4))
        assert driver.states == [bag()], "Q_{1,2,1} = [1,2] ⋈ [2,3] ⋈ r3 is unanswered"
        driver.answer((3, 4))
        assert driver.states == [bag(), bag((1, 2, 3, 4)), bag()]
        assert driver.reflected == [(1,), (2,)]
        assert driver.nodes_asked() == [R1, R3, R3]

    @pytest.mark.parametrize("algorithm", COMPLETE, ids=by_name)
    def test_example_6_c_strobe_needs_the_compensating_query(
        self, algorithm: Maintenance, chain: HandView
    ) -> None:
        """Reference: Strobe paper, section 6, Example 6."""
        driver = HandDriver(algorithm, chain)
        driver.update((+1, R2, (2, 3)))
        driver.update((-1, R1, (1, 2)))
        driver.answer()
        driver.answer((3, 4))
        assert driver.states == [bag(), bag((1, 2, 3, 4)), bag()]
        assert driver.reflected == [(1,), (2,)]
        assert driver.nodes_asked() == [R1, R3]


class TestExample4:
    """V = r1 with key A; T1 = ⟨delete(r1, [1,2]), insert(r1, [3,4])⟩ and MV = ([1,2]).

    Reference: Strobe paper, section 5.3, Example 4.
    """

    @pytest.fixture
    def view(self) -> HandView:
        return view_over("SELECT A, B FROM x.r1", {"x": [relation("r1", "A B", "A")]})

    @pytest.mark.parametrize("algorithm", [Strobe(), CStrobe()], ids=by_name)
    def test_single_updates_show_the_middle(self, algorithm: Maintenance, view: HandView) -> None:
        driver = HandDriver(algorithm, view, [(1, 2)])
        driver.update((-1, 0, (1, 2)), (+1, 0, (3, 4)))
        assert driver.states == [bag((1, 2)), bag(), bag((3, 4))]
        assert driver.reflected == [(), (1,)]
        assert driver.asked == []

    @pytest.mark.parametrize("algorithm", [TStrobe(), GStrobe(), CTStrobe()], ids=by_name)
    def test_transactions_are_shown_whole(self, algorithm: Maintenance, view: HandView) -> None:
        driver = HandDriver(algorithm, view, [(1, 2)])
        driver.update((-1, 0, (1, 2)), (+1, 0, (3, 4)))
        assert driver.states == [bag((1, 2)), bag((3, 4))]
        assert driver.reflected == [(1,)]
        assert driver.asked == []


def test_t_strobe_asks_once_for_all_insertions_of_a_transaction(chain: HandView) -> None:
    """Reference: Strobe paper, section 5.3, "reduces the number of query messages"."""
    rows = [(2, 3), (5, 3), (6, 7)]
    asked = {}
    for algorithm in (Strobe(), TStrobe()):
        driver = HandDriver(algorithm, chain)
        driver.update(*((+1, R2, row) for row in rows))
        while driver.unanswered:
            query = driver.unanswered[0]
            assert isinstance(query, Query)
            driver.answer(*([(1, 2), (8, 5), (9, 6)] if query.node == R1 else [(3, 4)]))
        assert driver.mv == bag((1, 2, 3, 4), (8, 5, 3, 4))
        asked[algorithm.name] = len(driver.asked)
    assert asked == {"strobe": 6, "t-strobe": 2}


@pytest.mark.parametrize("algorithm", QUIESCENT, ids=by_name)
def test_what_two_queries_both_bring_is_added_once(algorithm: Maintenance, chain: HandView) -> None:
    """Reference: Strobe paper, section 5.2, Algorithm 1, last rule; SWEEP paper, section 3."""
    driver = HandDriver(algorithm, chain)
    driver.update((+1, R1, (1, 2)))
    driver.update((+1, R2, (2, 3)))
    driver.answer((2, 3))
    driver.answer((1, 2))
    driver.answer((3, 4))
    driver.answer((3, 4))
    assert driver.mv == bag((1, 2, 3, 4))
    assert driver.reflected == [(1, 2)]


@pytest.mark.parametrize("algorithm", FAMILY, ids=by_name)
def test_a_row_that_is_there_already_is_not_added_again(algorithm: Maintenance, chain: HandView) -> None:
    """Reference: Strobe paper, section 5.2, "without adding duplicate tuples to MV"."""
    there = (1, 2, 3, 4)
    driver = HandDriver(algorithm, chain, [there])
    driver.update((+1, R2, (2, 3)))
    driver.answer((1, 2))
    driver.answer((3, 4))
    assert driver.mv == bag(there)


@pytest.mark.parametrize("algorithm", FAMILY, ids=by_name)
def test_deletions_ask_nobody(algorithm: Maintenance, chain: HandView) -> None:
    """Reference: Strobe paper, section 5.2, Algorithm 1: key_delete."""
    rows = [(1, 2, 3, 4), (7, 2, 3, 4)]
    driver = HandDriver(algorithm, chain, rows)
    driver.update((-1, R1, (1, 2)))
    driver.update((-1, R3, (3, 4)))
    assert driver.asked == []
    assert driver.states == [bag((1, 2, 3, 4), (7, 2, 3, 4)), bag((7, 2, 3, 4)), bag()]


class TestModifications:
    """A modification is a deletion and an insertion with the same key.

    Reference: Strobe paper, section 5.1 (last paragraph) and section 6, key_delete*.
    """

    @pytest.fixture
    def pair(self) -> HandView:
        """r1 and r2 meet in B, which the view does not show."""
        return view_over(
            "SELECT r1.A, r2.K FROM x.r1, y.r2 WHERE r1.B = r2.B",
            {"x": [relation("r1", "A B", "A")], "y": [relation("r2", "K B", "K")]},
        )

    @pytest.mark.parametrize("algorithm", QUIESCENT, ids=by_name)
    def test_an_old_version_in_an_answer_goes(self, algorithm: Maintenance, pair: HandView) -> None:
        driver = HandDriver(algorithm, pair)
        driver.update((+1, 0, (5, 2)))
        driver.update((-1, 1, (1, 2)), (+1, 1, (1, 3)))
        driver.answer((1, 2))
        assert driver.states == [bag()], "the query for the new version is unanswered"
        driver.answer()
        assert driver.states == [bag(), bag()]

    @pytest.mark.parametrize("algorithm", COMPLETE, ids=by_name)
    def test_the_old_version_is_put_back_although_it_has_the_key_of_the_new_one(
        self, algorithm: Maintenance, pair: HandView
    ) -> None:
        """B tells the versions apart, and the view does not show it: Δ needs all columns."""
        driver = HandDriver(algorithm, pair)
        driver.update((+1, 0, (5, 2)))
        driver.update((-1, 1, (1, 2)), (+1, 1, (1, 3)))
        driver.answer()
        assert driver.states[:2] == [bag(), bag((5, 1))]
        driver.answer()
        assert driver.mv == bag()

    @pytest.mark.parametrize("algorithm", COMPLETE, ids=by_name)
    def test_a_new_version_is_taken_out_although_its_key_was_deleted_before(
        self, algorithm: Maintenance, pair: HandView
    ) -> None:
        """The paper's "same tuple" cannot mean the same key here."""
        driver = HandDriver(algorithm, pair)
        driver.update((+1, 0, (5, 3)))
        driver.update((-1, 1, (1, 2)), (+1, 1, (1, 3)))
        driver.answer((1, 3))
        assert driver.states[:2] == [bag(), bag()]
        driver.answer((5, 3))
        assert driver.mv == bag((5, 1))

    @pytest.mark.parametrize("algorithm", COMPLETE, ids=by_name)
    def test_a_tuple_that_was_inserted_and_deleted_again_was_not_there(
        self, algorithm: Maintenance, pair: HandView
    ) -> None:
        """Among the deleted rows, and yet not to be put back: its insertion came first."""
        driver = HandDriver(algorithm, pair)
        driver.update((+1, 0, (5, 2)))
        driver.update((+1, 1, (1, 2)))
        driver.update((-1, 1, (1, 2)))
        driver.answer()
        assert driver.states[:2] == [bag(), bag()]

    @pytest.mark.parametrize("algorithm", COMPLETE, ids=by_name)
    def test_a_tuple_that_was_deleted_and_inserted_again_stays(
        self, algorithm: Maintenance, pair: HandView
    ) -> None:
        """Reference: Strobe paper, section 6, Algorithm 3, the condition on U_j < U_k."""
        driver = HandDriver(algorithm, pair)
        driver.update((+1, 0, (5, 2)))
        driver.update((-1, 1, (1, 2)))
        driver.update((+1, 1, (1, 2)))
        driver.answer((1, 2))
        assert driver.states[:2] == [bag(), bag((5, 1))]
        driver.answer((5, 2))
        assert driver.states == [bag(), bag((5, 1)), bag(), bag((5, 1))]


class TestCompensatingQueries:
    """Reference: Strobe paper, section 6: grouped by base relation, each with one relation fewer."""

    def test_the_deletions_of_one_relation_are_one_query(self, chain: HandView) -> None:
        driver = HandDriver(CTStrobe(), chain)
        driver.update((+1, R2, (2, 3)))
        for a in (1, 7, 8):
            driver.update((-1, R1, (a, 2)))
        driver.answer()
        (compensating,) = driver.unanswered
        assert isinstance(compensating, Query)
        assert compensating.node == R3
        driver.answer((3, 4))
        assert driver.states[1] == bag((1, 2, 3, 4), (7, 2, 3, 4), (8, 2, 3, 4))

    def test_a_steady_stream_of_deletions_ends_in_a_factorial_number_of_queries(self) -> None:
        """Four relations, and a deletion from each other one before every answer.

        One query for the insertion, 3 compensating ones, and 3·2 that compensate those and ask one source
        each: (n-1)! in the last round. The 3·2·1 that compensate these have rows for all relations.
        """
        view = view_over(
            "SELECT h.k AS hk, a.k AS ak, b.k AS bk, c.k AS ck FROM w.h, x.a, y.b, z.c "
            "WHERE h.j = a.j AND h.j = b.j AND h.j = c.j",
            {source: [relation(name, "k j", "k")] for source, name in zip("wxyz", "habc", strict=True)},
        )
        driver = HandDriver(CTStrobe(), view)
        driver.update((+1, 0, (0, 1)))
        answers = 0
        while not driver.reflected:
            for node in (1, 2, 3):
                driver.update((-1, node, (answers, 1)))
            answers += 1
            driver.answer()
        assert answers == len(driver.asked) == 1 + 3 + 3 * 2


@pytest.mark.parametrize("algorithm", COMPLETE, ids=by_name)
def test_the_embedded_engine_agrees(algorithm: Maintenance, chain: HandView) -> None:
    """Δ with all columns of all nodes is a view of its own to the engine."""
    engine = EmbeddedEngine(few_rows=0)
    driver = HandDriver(algorithm, replace(chain, context=replace(chain.context, engine=engine)))
    driver.update((+1, R2, (2, 3)))
    driver.update((-1, R1, (1, 2)), (+1, R1, (1, 9)))
    driver.answer()
    driver.answer((3, 4))
    assert driver.states[:2] == [bag(), bag((1, 2, 3, 4))]
    driver.answer()
    assert driver.mv == bag()
    engine.close()


class TestGlobalTransactions:
    """Reference: Strobe paper, section 5.4."""

    WHOLE = GlobalTransaction("T1", frozenset({"x", "z", "elsewhere"}))

    def test_t_strobe_shows_a_part(self, chain: HandView) -> None:
        driver = HandDriver(TStrobe(), chain, [(1, 2, 3, 4), (7, 2, 3, 4)])
        driver.update((-1, R1, (1, 2)), part_of=self.WHOLE)
        assert driver.states[1:] == [bag((7, 2, 3, 4))]

    def test_g_strobe_waits_for_all_parts_from_sources_of_the_view(self, chain: HandView) -> None:
        driver = HandDriver(GStrobe(), chain, [(1, 2, 3, 4), (7, 2, 3, 4)])
        driver.update((-1, R1, (1, 2)), part_of=self.WHOLE)
        driver.update((-1, R1, (7, 2)))
        assert len(driver.states) == 1
        driver.update((-1, R3, (3, 4)), part_of=self.WHOLE)
        assert driver.states[1:] == [bag()]
        assert driver.reflected == [(1, 2, 3)]


@pytest.mark.parametrize(
    ("algorithm", "levels"),
    [
        (Strobe(), (Level.STRONG, Level.CONVERGENT, Level.CONVERGENT)),
        (TStrobe(), (Level.STRONG, Level.STRONG, Level.WEAK)),
        (GStrobe(), (Level.STRONG, Level.STRONG, Level.STRONG)),
        (CStrobe(), (Level.COMPLETE, Level.CONVERGENT, Level.CONVERGENT)),
        (CTStrobe(), (Level.COMPLETE, Level.COMPLETE, Level.WEAK)),
    ],
    ids=lambda value: value.name if isinstance(value, Maintenance) else "",
)
def test_consistency_spectrum(algorithm: Maintenance, levels: tuple[Level, ...]) -> None:
    """Reference: Strobe paper, section 7, Figure 2."""
    assert tuple(algorithm.guarantee[scenario] for scenario in Scenario) == levels
    assert algorithm.needs_keys
