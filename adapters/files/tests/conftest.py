from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.files.adapter import FilesAdapter
from adapters.spi import SourceConfig

MakeAdapter = Callable[..., FilesAdapter]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    return inbox


@pytest.fixture
def make(folder: Path) -> Iterator[MakeAdapter]:
    """Makes adapters for the test's folder that give up at once; all are closed in the end.

    `settings` are those of single relations.
    """
    made: list[FilesAdapter] = []

    def create(
        settings: dict[str, Any] | None = None,
        shown: tuple[str, ...] | None = None,
        reports: bool = True,
        **options: Any,
    ) -> FilesAdapter:
        given = {"patience": 0, **({"relations": settings} if settings else {}), **options}
        config = SourceConfig("shop", "files", f"files:///{folder}", shown, None, given)
        made.append(FilesAdapter(config, reports=reports))
        return made[-1]

    yield create
    for adapter in made:
        adapter.close()
