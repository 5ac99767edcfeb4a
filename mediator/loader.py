"""Extents: the whole local views of a view's sources, each source in one snapshot, spooled to disk.

Extents pass through; they are dropped as soon as they are joined. The sources are read side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from algebra.arrow_ipc import from_ipc
from algebra.errors import DataError, LimitExceededError
from algebra.local_view import LocalView
from algebra.position import Position
from algebra.scratch import ScratchFolder
from algebra.weight import weight
from mediator.channel import SourceChannel
from mediator.storage_errors import storage_error
from protos.convert import position_from_proto

Progress = Callable[[str, str, int, int | None], None]
"""progress(phase, local view, rows so far, rows expected)"""

CHUNK_ROWS = 16_384
"""What a chunk counts as at least: each costs memory until the load ends. Wrappers send 4 MiB at once."""


@dataclass(frozen=True)
class Loaded:
    """Extents as Parquet files by local view name, and each source's position."""

    files: Mapping[str, tuple[Path, ...]]
    vector: Mapping[str, Position]


@contextmanager
def loaded_extents(
    views: Sequence[LocalView], channels: Mapping[str, SourceChannel], progress: Progress, most_rows: int
) -> Iterator[Loaded]:
    """The extents of these local views, at most so many rows of each source; gone when the block ends."""
    with ScratchFolder("extents") as spool:
        try:
            loaded = _load(views, channels, spool, progress, most_rows)
        except OSError as error:
            raise storage_error(error, f"the temporary folder {spool.parent}") or error from None
        yield loaded


def _load(
    views: Sequence[LocalView],
    channels: Mapping[str, SourceChannel],
    spool: Path,
    progress: Progress,
    most_rows: int,
) -> Loaded:
    by_source: dict[str, list[tuple[int, LocalView]]] = {}
    for number, view in enumerate(views):
        by_source.setdefault(view.source, []).append((number, view))
    with ThreadPoolExecutor(len(by_source), thread_name_prefix="load") as pool:
        loads = {
            source: pool.submit(_load_source, channels[source], numbered, spool, progress, most_rows)
            for source, numbered in by_source.items()
        }
        results = {source: load.result() for source, load in loads.items()}
    files = {name: paths for found, _ in results.values() for name, paths in found.items()}
    return Loaded(files, {source: position for source, (_, position) in results.items()})


def _load_source(
    channel: SourceChannel,
    views: Sequence[tuple[int, LocalView]],
    spool: Path,
    progress: Progress,
    most_rows: int,
) -> tuple[dict[str, tuple[Path, ...]], Position]:
    schemas = {view.name: (spool / f"{number}.parquet", view.arrow) for number, view in views}
    writers = {
        name: pq.ParquetWriter(path, schema, compression="snappy") for name, (path, schema) in schemas.items()
    }
    position: Position | None = None
    finished = False
    room = most_rows
    try:
        for chunk in channel.load([view for _, view in views]):
            at = position_from_proto(chunk.position)
            if finished or (position is not None and at != position):
                raise DataError(f"source {channel.source!r} sent an extent that is not of one snapshot")
            position, finished = at, chunk.last
            rows = from_ipc(chunk.arrow) if chunk.arrow else None
            room -= max(weight(rows) if rows is not None else 0, CHUNK_ROWS)
            if room < 0:
                raise LimitExceededError(
                    f"source {channel.source!r} sent more than {most_rows:,} rows for one load; "
                    "if it has that many, raise extent_rows"
                )
            if rows is None:
                continue
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
