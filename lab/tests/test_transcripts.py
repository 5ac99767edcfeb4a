"""Every transcript, replayed: the same actions must still tell the same story, word by word."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

from algebra.consistency import Level
from lab.errors import ScheduleError
from lab.history import History
from lab.oracle import judge
from lab.scenario_text import format_bag
from lab.transcript import Transcript, format_history

FILES = sorted((Path(__file__).parent.parent / "transcripts").glob("*.txt"))


def text_of(name: str) -> str:
    (file,) = (file for file in FILES if file.stem == name)
    return file.read_text(encoding="utf-8")


def replayed(name: str) -> History:
    return Transcript.parse(text_of(name)).replay()


def views(history: History) -> list[str]:
    return [format_bag(state.contents) for state in history.states]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_transcript_tells_what_happens(file: Path) -> None:
    """To accept a change: lockstep lab replay FILE --rewrite."""
    text = file.read_text(encoding="utf-8")
    now = format_history(Transcript.parse(text).replay())
    assert now == text, "\n".join(unified_diff(text.splitlines(), now.splitlines(), "written", "replayed"))


def test_slides_the_insertion_anomaly() -> None:
    """Reference: slides, first "Example - A View Maintenance Anomaly"; MV = {[1], [4], [4]}."""
    history = replayed("slides-insertion-anomaly")
    assert views(history)[-1] == "{(1), (4)[2]}"
    assert judge(history).level is Level.NONE


def test_slides_the_deletion_anomaly() -> None:
    """Reference: slides, second "Example - A View Maintenance Anomaly"; MV stays ([1, 3])."""
    history = replayed("slides-deletion-anomaly")
    assert views(history) == ["{(1, 3)}"] * 3
    assert judge(history).level is Level.NONE


def test_sweep_figure_5_with_concurrent_updates() -> None:
    """Reference: SWEEP paper, section 5.2 and Figure 5: the same states as without concurrency."""
    history = replayed("sweep-figure-5")
    assert views(history) == ["{(7, 8)[2]}", "{(5, 6)[2], (7, 8)[2]}", "{(5, 6)[2]}", "{(5, 6)}"]
    assert judge(history).level is Level.COMPLETE


def test_an_action_that_cannot_happen_is_named_with_its_line() -> None:
    text = text_of("slides-correct")
    head = text[: text.index("schedule\n")]
    line = head.count("\n") + 2
    with pytest.raises(ScheduleError, match=f"line {line}: 'answer s' cannot happen now"):
        Transcript.parse(f"{head}schedule\n  answer s\n").replay()
    with pytest.raises(ScheduleError, match=f"line {line}: unknown action 'sleep s'"):
        Transcript.parse(f"{head}schedule\n  sleep s\n")


def test_a_schedule_may_end_early_and_the_rest_follows_calmly() -> None:
    text = text_of("slides-correct")
    history = Transcript.parse(text[: text.index("schedule\n")]).replay()
    assert judge(history).level is Level.COMPLETE
