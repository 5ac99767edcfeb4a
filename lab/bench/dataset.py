"""Base tables and streams on disk, one directory per scale factor.

The layout is shared with the other systems that run this workload: `base/<table>.parquet`,
`k<count>.jsonl`, and, where somebody wrote it, `expected_k<count>.parquet` with the final view.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from algebra.errors import ConfigurationError, MissingExtraError
from lab.bench.errors import BenchmarkError
from lab.bench.streams import transactions, write_stream
from lab.bench.workload import SEED, TABLES, Row, Table

_STREAM = re.compile(r"k(\d+)\.jsonl")


@dataclass(frozen=True)
class Dataset:
    """One scale factor's directory in the shared layout."""

    sf: str
    directory: Path

    def base(self, table: str) -> Path:
        """The Parquet file of one base table before any transaction."""
        return self.directory / "base" / f"{table}.parquet"

    @property
    def base_bytes(self) -> int:
        """The size of all base tables as Parquet."""
        return sum(self.base(table).stat().st_size for table in TABLES)

    def stream(self, count: int) -> Path:
        """A stream file whose first `count` transactions are the stream of that length.

        Raises ConfigurationError if the directory has none that is long enough.
        """
        for length, path in self._streams():
            if length >= count:
                return path
        raise ConfigurationError(f"{self.directory} has no stream k<n>.jsonl of {count} transactions or more")

    def expected(self, count: int) -> Path | None:
        """The final view after `count` transactions as somebody else computed it, if it is there."""
        path = self.directory / f"expected_k{count}.parquet"
        return path if path.exists() else None

    def is_complete(self) -> bool:
        """Whether every base table is there."""
        return all(self.base(table).exists() for table in TABLES)

    def has_stream(self, count: int) -> bool:
        """Whether some stream is at least that long."""
        return any(length >= count for length, _ in self._streams())

    def _streams(self) -> list[tuple[int, Path]]:
        found = [(_STREAM.fullmatch(path.name), path) for path in self.directory.glob("k*.jsonl")]
        return sorted((int(match[1]), path) for match, path in found if match)


def existing_dataset(root: Path, sf: str) -> Dataset:
    """The dataset below a directory that somebody else filled: itself, `sf<SF>` or `data/sf<SF>` in it.

    Raises ConfigurationError if there is none.
    """
    candidates = [root / f"sf{sf}", root / "data" / f"sf{sf}"]
    if root.name == f"sf{sf}":
        candidates.insert(0, root)
    for directory in candidates:
        dataset = Dataset(sf, directory)
        if dataset.is_complete():
            return dataset
    raise ConfigurationError(f"no base/*.parquet of scale factor {sf} below {root}")


def generated_dataset(root: Path, sf: str, count: int) -> Dataset:
    """A dataset of our own in `root/sf<SF>` with a stream of `count` transactions; made where missing."""
    dataset = Dataset(sf, root / f"sf{sf}")
    if not dataset.is_complete():
        _generate_base(dataset)
    if not dataset.has_stream(count):
        write_stream(dataset.directory / f"k{count}.jsonl", transactions(base_rows(dataset), count, SEED))
    return dataset


def base_rows(dataset: Dataset) -> dict[str, list[Row]]:
    """Every base table as rows, in the order of its file (the streams' random choices depend on it)."""
    import duckdb

    with duckdb.connect() as connection:
        return {
            name: connection.execute(f"SELECT * FROM read_parquet('{dataset.base(name)}')").fetchall()
            for name in TABLES
        }


def tpch_generator() -> str:
    """The path of `tpchgen-cli`, beside this interpreter or on PATH.

    Raises MissingExtraError if it is not installed.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which("tpchgen-cli", path=beside) or shutil.which("tpchgen-cli")
    if found is None:
        raise MissingExtraError("the TPC-H data generator", "bench")
    return found


def _generate_base(dataset: Dataset) -> None:
    tool = tpch_generator()
    dataset.base("region").parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lockstep-tpch-") as raw:
        command = [tool, "parquet", "-s", dataset.sf, "--output-dir", raw, "--tables", ",".join(TABLES)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise BenchmarkError(f"tpchgen-cli failed: {' '.join(done.stderr.split())[-300:]}")
        for table in TABLES.values():
            _project(table, Path(raw) / f"{table.name}.parquet", dataset.base(table.name))


def _project(table: Table, raw: Path, target: Path) -> None:
    import duckdb

    columns = ", ".join(f"CAST({_value(name)} AS {kind}) AS {name}" for name, kind in table.columns)
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT {columns} FROM read_parquet('{raw}')) TO '{target}' (FORMAT parquet)"
        )


def _value(column: str) -> str:
    return f"{column} * 100" if column == "l_extendedprice" else column  # decimal currency to whole cents
