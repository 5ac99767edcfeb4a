"""Extents: the whole local views of a view's sources, each source in one snapshot, spooled to disk.

Extents pass through; they are dropped as soon as they are joined. The sources are read side by side.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from algebra.arrow_ipc import from_ipc
from algebra.errors import DataError
from algebra.local_view import LocalView
from algebra.position import Position
from mediator.channel import SourceChannel
from protos.convert import position_from_proto

Progress = Callable[[str, str, int, int | None], None]
"""progress(phase, local view, rows so far, rows expected)"""


@dataclass(frozen=True)
class Loaded:
    """Extents as Parquet files by local view name, and each source's position."""

    files: Mapping[str, tuple[Path, ...]]
    vector: Mapping[str, Position]


@contextmanager
def loaded_extents(
    views: Sequence[LocalView], channels: Mapping[str, SourceChannel], progress: Progress
) -> Iterator[Loaded]:
    """The extents of these local views; they are gone when the block ends."""
    spool = Path(tempfile.mkdtemp(prefix="lockstep-extents-"))
    try:
        by_source: dict[str, list[tuple[int, LocalView]]] = {}
        for number, view in enumerate(views):
            by_source.setdefault(view.source, []).append((number, view))
        with ThreadPoolExecutor(len(by_source), thread_name_prefix="load") as pool:
            loads = {
                source: pool.submit(_load_source, channels[source], numbered, spool, progress)
                for source, numbered in by_source.items()
            }
            results = {source: load.result() for source, load in loads.items()}
        files = {name: paths for found, _ in results.values() for name, paths in found.items()}
        yield Loaded(files, {source: position for source, (_, position) in results.items()})
    finally:
        shutil.rmtree(spool, ignore_errors=True)


def _load_source(
    channel: SourceChannel, views: Sequence[tuple[int, LocalView]], spool: Path, progress: Progress
) -> tuple[dict[str, tuple[Path, ...]], Position]:
    schemas = {view.name: (spool / f"{number}.parquet", view.arrow) for number, view in views}
    writers = {
        name: pq.ParquetWriter(path, schema, compression="snappy") for name, (path, schema) in schemas.items()
    }
    position: Position | None = None
    finished = False
    try:
        for chunk in channel.load([view for _, view in views]):
            at = position_from_proto(chunk.position)
            if finished or (position is not None and at != position):
                raise DataError(f"source {channel.source!r} sent an extent that is not of one snapshot")
            position, finished = at, chunk.last
            if not chunk.arrow:
                continue
            rows = from_ipc(chunk.arrow)
            if chunk.local_view not in writers or not rows.schema.equals(schemas[chunk.local_view][1]):
                raise DataError(
                    f"source {channel.source!r} sent rows of {chunk.local_view!r} unasked or misshapen"
                )
            writers[chunk.local_view].write_table(rows)
            estimate = chunk.row_estimate if chunk.HasField("row_estimate") else None
            progress("load", chunk.local_view, chunk.rows, estimate)
    finally:
        for writer in writers.values():
            writer.close()
    if position is None or not finished:
        raise DataError(f"source {channel.source!r} ended the load early")
    return {name: (path,) for name, (path, _) in schemas.items()}, position
