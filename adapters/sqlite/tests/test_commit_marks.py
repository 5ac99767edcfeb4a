"""Known ends of transactions: what is split, what is batched, what is never split."""

from adapters.sqlite.commit_marks import CommitMarks, Entries
from adapters.sqlite.wal import UNKNOWN


def entries(*ends: int, batched: tuple[int, ...] = ()) -> Entries:
    return Entries(ends, frozenset(batched))


def test_a_history_followed_from_its_first_row_is_exact() -> None:
    marks = CommitMarks()
    marks.add([0, 2, 3, 9])
    assert marks.entries(0, 9) == entries(2, 3, 9)
    assert marks.entries(2, 9) == entries(3, 9)
    assert marks.entries(9, 9) == entries()


def test_the_first_commit_after_unseen_ones_is_batched() -> None:
    marks = CommitMarks()
    marks.add([5, 7])
    assert marks.entries(0, 7) == entries(5, 7, batched=(0,))
    assert marks.entries(5, 7) == entries(7)


def test_a_snapshot_shows_only_what_it_contains_and_more_later() -> None:
    marks = CommitMarks()
    marks.add([0, 2, 5, 6])
    assert marks.entries(0, 5) == entries(2, 5)
    assert marks.entries(5, 6) == entries(6)


def test_a_snapshot_beyond_all_known_commits_ends_in_a_batch_and_goes_on_exactly() -> None:
    marks = CommitMarks()
    marks.add([0, 2])
    marks.confirm(8)
    marks.add([9])
    assert marks.entries(0, 9) == entries(2, 8, 9, batched=(1,))


def test_a_gap_makes_the_next_commit_a_batch() -> None:
    marks = CommitMarks()
    marks.add([0, 2])
    marks.confirm(2)
    marks.skip()
    marks.add([6, 7])
    assert marks.entries(0, 7) == entries(2, 6, 7, batched=(1,))


def test_a_gap_takes_back_what_no_snapshot_confirmed() -> None:
    """Another history may have been restored there, and gone on from the last snapshot."""
    marks = CommitMarks()
    marks.add([0, 2, 3])
    marks.confirm(2)
    marks.skip()
    marks.add([6, 7])
    assert marks.entries(0, 7) == entries(2, 6, 7, batched=(1,))


def test_a_lost_history_says_nothing_and_the_commit_after_it_is_batched() -> None:
    marks = CommitMarks()
    marks.add([0, 2, 3])
    marks.confirm(3)
    marks.lose()
    marks.confirm(2)
    marks.add([5, 6])
    assert marks.entries(0, 6) == entries(2, 5, 6, batched=(0, 1))


def test_commits_that_append_nothing_are_no_entries() -> None:
    marks = CommitMarks()
    marks.add([0, 4, 4, 4, 6])
    assert marks.entries(0, 6) == entries(4, 6)


def test_a_new_log_begins_a_new_history() -> None:
    marks = CommitMarks()
    marks.add([0, 1, 2, 3])
    marks.confirm(3)
    marks.add([0, 3])
    assert marks.entries(0, 3) == entries(3)


def test_an_unknown_commit_takes_back_what_no_snapshot_confirmed() -> None:
    marks = CommitMarks()
    marks.add([0, 2])
    marks.confirm(2)
    marks.add([50, UNKNOWN, 60])
    assert marks.entries(0, 60) == entries(2, 60, batched=(1,))


def test_an_unknown_commit_may_lie_beyond_the_snapshot() -> None:
    marks = CommitMarks()
    marks.add([0, 2])
    marks.confirm(2)
    marks.add([UNKNOWN])
    marks.confirm(3)
    marks.add([9, 10])
    assert marks.entries(2, 10) == entries(3, 9, 10, batched=(0, 1))


def test_forgetting_keeps_the_start_of_what_follows() -> None:
    marks = CommitMarks()
    marks.add([0, 2, 4, 6, 8])
    marks.forget(5)
    assert marks.entries(4, 8) == entries(6, 8)
    assert marks.entries(6, 8) == entries(8)


def test_a_position_that_is_no_known_end_starts_with_a_batch() -> None:
    marks = CommitMarks()
    marks.add([0, 2, 9])
    assert marks.entries(4, 9) == entries(9, batched=(0,))


def test_a_run_ends_with_a_transaction_and_has_as_many_rows_as_asked_for_or_one_transaction() -> None:
    marks = CommitMarks()
    marks.add([0, 2, 3, 9, 10])
    assert marks.entries(0, 10, 1) == entries(2)
    assert marks.entries(0, 10, 3) == entries(2, 3)
    assert marks.entries(3, 10, 3) == entries(9)
    assert marks.entries(3, 10, 7) == entries(9, 10)
    assert marks.entries(9, 10, 7) == entries(10)


def test_an_unseen_stretch_is_in_a_run_as_a_whole() -> None:
    marks = CommitMarks()
    marks.add([0, 2])
    assert marks.entries(0, 8, 8) == entries(2, 8, batched=(1,))
    assert marks.entries(0, 8, 7) == entries(2)
    assert marks.entries(2, 8, 1) == entries(8, batched=(0,))
