from __future__ import annotations

from itertools import permutations

from algebra.global_transaction import GlobalTransaction

X = GlobalTransaction("x", frozenset({"shop", "crm"}))
Y = GlobalTransaction("y", frozenset({"shop"}))
Z = GlobalTransaction("z", frozenset({"shop", "erp"}))


def test_one_mark_stays_what_it_is() -> None:
    assert GlobalTransaction.joined([X]) == X
    assert X.all == (X,)
    assert GlobalTransaction.joined([]) is None


def test_marks_of_one_part_are_joined_in_any_order() -> None:
    joined = {GlobalTransaction.joined(order) for order in permutations([X, Y, Z])}
    assert len(joined) == 1
    (one,) = joined
    assert one is not None
    assert one.all == (X, Y, Z)
    assert GlobalTransaction.joined([one]) == one


def test_joining_what_is_joined_adds_up() -> None:
    pair, wider = GlobalTransaction.joined([X, Y]), GlobalTransaction("y", frozenset({"crm"}))
    assert pair is not None
    again = GlobalTransaction.joined([wider, pair])
    assert again is not None
    assert again.all == (X, GlobalTransaction("y", frozenset({"shop", "crm"})))
