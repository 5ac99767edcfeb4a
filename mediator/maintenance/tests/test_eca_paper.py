"""ECA and ECA-Key on the examples of the slides and the papers: every term sent, every state of the view."""

from __future__ import annotations

import pytest

from algebra.consistency import Level, Scenario
from algebra.delta import Delta
from mediator.maintenance.contract import Maintenance, SourceQuery
from mediator.maintenance.eca import Eca
from mediator.maintenance.eca_key import EcaKey
from mediator.maintenance.tests.hand_driver import HandDriver, HandView, Row, bag, relation, view_over

R1, R2, R3 = 0, 1, 2


def terms(driver: HandDriver) -> list[tuple[int, dict[int, dict[Row, int]]]]:
    """The last query: for each term its sign, and the rows in place of each relation with their counts."""
    query = driver.asked[-1]
    assert isinstance(query, SourceQuery)
    return [
        (term.sign, {node: Delta(rows).to_dict() for node, rows in term.substituted.items()})
        for term in query.terms
    ]


def two_relations(select: str) -> HandView:
    """A view over r1(W, X) ⋈ r2(X, Y), both in one source."""
    return view_over(
        f"SELECT {select} FROM s.r1, s.r2 WHERE r1.X = r2.X",
        {"s": [relation("r1", "W X"), relation("r2", "X Y")]},
        keys=False,
        per_relation=True,
    )


@pytest.fixture
def chain() -> HandView:
    """R1 ⋈ R2 ⋈ R3 in one source."""
    return view_over(
        "SELECT r1.A, r2.B, r3.C, r3.D FROM s.r1, s.r2, s.r3 WHERE r1.B = r2.B AND r2.C = r3.C",
        {"s": [relation("r1", "A B", "A"), relation("r2", "B C", "B"), relation("r3", "C D", "C")]},
        per_relation=True,
    )


class TestEca:
    def test_duplicates_are_retained(self) -> None:
        """r1 = {[1,2]}, r2 = {[2,4]}, V = π_W(r1 ⋈ r2); [2,3] is inserted into r2.

        Reference: slides, "Example - Correct View Maintenance".
        """
        driver = HandDriver(Eca(), two_relations("r1.W"), [(1,)])
        driver.update((+1, R2, (2, 3)))
        assert terms(driver) == [(1, {R2: {(2,): 1}})], "Y is not shown"
        driver.answer((1,))
        assert driver.mv == bag((1,), (1,))

    def test_the_insertion_anomaly_is_compensated(self) -> None:
        """r1 = {[1,2]}, r2 = ∅, V = π_W(r1 ⋈ r2); U1 = (+, r2, [2,3]), U2 = (+, r1, [4,2]).

        The term [4,2] ⋈ [2,3] of Q2 needs no source and is not sent, so the source answers [4] where the
        slides have A2 = {}.

        Reference: slides, "The Eager Compensating Algorithm (ECA)", the example after it.
        """
        driver = HandDriver(Eca(), two_relations("r1.W"))
        driver.update((+1, R2, (2, 3)))
        assert terms(driver) == [(1, {R2: {(2,): 1}})], "Y is not shown"
        driver.update((+1, R1, (4, 2)))
        assert terms(driver) == [(1, {R1: {(4, 2): 1}})]
        driver.answer((1,), (4,))
        assert driver.states == [bag()], "Q2 is unanswered: COLLECT = {[1], [4]} waits"
        driver.answer((4,))
        assert driver.states == [bag(), bag((1,), (4,))]
        assert driver.reflected == [(1, 2)]
        assert len(driver.asked) == 2

    def test_the_deletion_anomaly_is_compensated(self) -> None:
        """r1 = {[1,2]}, r2 = {[2,3]}, V = π_{W,Y}(r1 ⋈ r2); U1 = (-, r1, [1,2]), U2 = (-, r2, [2,3]).

        Reference: slides, the second "Example - A View Maintenance Anomaly".
        """
        driver = HandDriver(Eca(), two_relations("r1.W, r2.Y"), [(1, 3)])
        driver.update((-1, R1, (1, 2)))
        driver.update((-1, R2, (2, 3)))
        driver.answer()
        driver.answer()
        assert driver.states == [bag((1, 3)), bag()]

    def test_compensation_is_compensated_in_turn(self, chain: HandView) -> None:
        """Reference: SWEEP paper, section 3, Q2 = (R1 ⋈ ΔR2 ⋈ R3) − (ΔR1 ⋈ ΔR2 ⋈ R3); then ΔR3 as well."""
        d1, d2, d3 = {(1, 2): 1}, {(2, 3): 1}, {(3, 4): 1}
        driver = HandDriver(Eca(), chain)
        driver.update((+1, R1, (1, 2)))
        assert terms(driver) == [(1, {R1: d1})]
        driver.update((+1, R2, (2, 3)))
        assert terms(driver) == [(1, {R2: d2}), (-1, {R1: d1, R2: d2})]
        driver.update((+1, R3, (3, 4)))
        # And + ΔR1 ⋈ ΔR2 ⋈ ΔR3, which is evaluated here.
        assert terms(driver) == [(1, {R3: d3}), (-1, {R1: d1, R3: d3}), (-1, {R2: d2, R3: d3})]
        # All three are evaluated after ΔR3: each of them sees the one row, and the last takes two away again.
        driver.answer((1, 2, 3, 4))
        driver.answer(counts=[])
        driver.answer((1, 2, 3, 4), counts=[-1])
        assert driver.states == [bag(), bag((1, 2, 3, 4))]

    def test_only_unanswered_queries_are_compensated(self) -> None:
        """Reference: slides, UQS(we)."""
        driver = HandDriver(Eca(), two_relations("r1.W"))
        driver.update((+1, R2, (2, 3)))
        driver.answer((1,))
        driver.update((+1, R1, (4, 2)))
        driver.answer((4,))
        assert driver.states == [bag(), bag((1,)), bag((1,), (4,))]

    def test_a_transaction_is_a_sequence_of_updates_and_one_query(self, chain: HandView) -> None:
        d1, d2 = {(1, 2): 1}, {(2, 3): 1}
        driver = HandDriver(Eca(), chain)
        driver.update((+1, R1, (1, 2)), (+1, R2, (2, 3)))
        assert terms(driver) == [(1, {R1: d1}), (1, {R2: d2}), (-1, {R1: d1, R2: d2})]
        driver.answer((1, 2, 3, 4))
        assert driver.states == [bag(), bag((1, 2, 3, 4))]
        assert driver.reflected == [(1,)]

    def test_a_view_of_one_relation_needs_no_query(self) -> None:
        view = view_over("SELECT A FROM s.r1", {"s": [relation("r1", "A B")]}, keys=False, per_relation=True)
        driver = HandDriver(Eca(), view)
        driver.update((+1, R1, (1, 2)), (+1, R1, (1, 3)))
        driver.update((-1, R1, (1, 3)))
        assert driver.states == [bag(), bag((1,), (1,)), bag((1,))]
        assert driver.asked == []


class TestEcaKey:
    def test_a_deletion_asks_nobody(self, chain: HandView) -> None:
        driver = HandDriver(EcaKey(), chain, [(1, 2, 3, 4), (7, 2, 3, 4)])
        driver.update((-1, R1, (1, 2)))
        assert driver.states[1:] == [bag((7, 2, 3, 4))]
        assert driver.asked == []

    def test_insertions_are_not_compensated_and_duplicates_suppressed(self, chain: HandView) -> None:
        driver = HandDriver(EcaKey(), chain)
        driver.update((+1, R1, (1, 2)))
        driver.update((+1, R2, (2, 3)))
        assert terms(driver) == [(1, {R2: {(2, 3): 1}})]
        driver.answer((1, 2, 3, 4))
        assert driver.states == [bag()]
        driver.answer((1, 2, 3, 4))
        assert driver.states == [bag(), bag((1, 2, 3, 4))]
        assert driver.reflected == [(1, 2)]

    def test_a_deletion_removes_what_an_answer_brought_before(self, chain: HandView) -> None:
        driver = HandDriver(EcaKey(), chain)
        driver.update((+1, R1, (1, 2)))
        driver.update((+1, R1, (7, 2)))
        driver.answer((1, 2, 3, 4))
        driver.update((-1, R1, (1, 2)))
        driver.answer((7, 2, 3, 4))
        assert driver.states == [bag(), bag((7, 2, 3, 4))]
        assert driver.reflected == [(1, 2, 3)]

    def test_a_row_deleted_before_its_own_answer_arrives_does_not_come_back(self, chain: HandView) -> None:
        """The query for U1 carries [1,2] itself, so that its answer holds it whatever the source has done."""
        driver = HandDriver(EcaKey(), chain)
        driver.update((+1, R1, (1, 2)))
        driver.update((-1, R1, (1, 2)))
        driver.answer((1, 2, 3, 4))
        assert driver.states == [bag(), bag()]
        assert driver.reflected == [(1, 2)]

    def test_an_answer_after_a_deletion_is_not_touched_by_it(self, chain: HandView) -> None:
        """The row was inserted again before the query was evaluated; its own query brings it, too."""
        driver = HandDriver(EcaKey(), chain)
        driver.update((+1, R2, (2, 3)))
        driver.update((-1, R1, (1, 2)))
        driver.update((+1, R1, (1, 2)))
        driver.answer((1, 2, 3, 4))
        driver.answer((1, 2, 3, 4))
        assert driver.states == [bag(), bag((1, 2, 3, 4))]

    def test_two_insertions_of_one_transaction_that_join_are_one_row(self, chain: HandView) -> None:
        driver = HandDriver(EcaKey(), chain)
        driver.update((+1, R1, (1, 2)), (+1, R2, (2, 3)))
        assert len(driver.asked) == 1
        driver.answer((1, 2, 3, 4), counts=[2])
        assert driver.states == [bag(), bag((1, 2, 3, 4))]


@pytest.mark.parametrize("algorithm", [Eca(), EcaKey()], ids=lambda a: a.name)
def test_consistency_spectrum(algorithm: Maintenance) -> None:
    """Reference: Strobe paper, section 7, Figure 2."""
    assert algorithm.single_source
    assert {algorithm.guarantee[scenario] for scenario in Scenario} == {Level.STRONG}
