"""A command that is registered by name only."""

from __future__ import annotations

from typing import Annotated

import typer


def sample(rounds: Annotated[int, typer.Option("--rounds")] = 1) -> None:
    """Say how many rounds."""
    print(f"{rounds} rounds")
