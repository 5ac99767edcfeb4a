from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.sqlite.tests.support import Writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a shop, 100% œuf?.db"


@pytest.fixture(scope="session")
def writer_process() -> Iterator[Writer]:
    process = Writer()
    yield process
    process.close()


@pytest.fixture
def writer(writer_process: Writer, path: Path) -> Iterator[Writer]:
    writer_process.open(path)
    yield writer_process
    writer_process.open(":memory:")
