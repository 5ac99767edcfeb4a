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
    """Makes adapters for the test's folder, which give up at once; all are closed in the end."""
    made: list[FilesAdapter] = []

    def create(
        relations: tuple[str, ...] | None = None, reports: bool = True, **options: Any
    ) -> FilesAdapter:
        config = SourceConfig(
            "shop", "files", f"files:///{folder}", relations, None, {"patience": 0, **options}
        )
        made.append(FilesAdapter(config, reports=reports))
        return made[-1]

    yield create
    for adapter in made:
        adapter.close()
