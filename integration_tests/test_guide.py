"""The guide to writing adapters shows the code of its example, not something like it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "writing-adapters.md"
EXAMPLE = ROOT / "examples" / "rest-adapter"


def test_the_steps_of_the_guide_are_code_of_the_example() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    steps = text[text.index("## An adapter, step by step") : text.index("## Register it")]
    blocks = re.findall(r"```python\n(.*?)```", steps, flags=re.DOTALL)
    files = [bare(path.read_text(encoding="utf-8")) for path in sorted(EXAMPLE.rglob("*.py"))]
    assert len(blocks) >= 10
    for block in blocks:
        assert any(bare(block) in file for file in files), f"not in {EXAMPLE.name}:\n{block}"


def bare(code: str) -> str:
    """The code without what the formatter decides: it sets a block of the guide as if it stood alone."""
    return re.sub(r",([)\]}])", r"\1", re.sub(r"\s+", "", code))


def test_every_step_has_a_heading_in_order() -> None:
    numbers = re.findall(r"^### (\d+)\.", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert numbers == [str(i) for i in range(1, len(numbers) + 1)]
