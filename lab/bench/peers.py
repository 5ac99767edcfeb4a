"""Figures of other systems for the same streams, read from the result file of their benchmark.

The file has one JSON object per line with `label`, `sf`, `stream`, `tx_per_s`, `view_rows_per_s` and
`verify`. Only runs whose view was verified count; of several runs of one system the median does.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algebra.errors import ConfigurationError

_NOT_VIEWS = frozenset({"pg-base"})
"""Labels that apply the stream without keeping a view."""


@dataclass(frozen=True)
class PeerFigure:
    """One system on one stream: medians over its verified runs."""

    label: str
    sf: str
    stream: str
    transactions_per_second: float
    view_rows_per_second: float | None
    runs: int


def read_peers(path: Path) -> list[PeerFigure]:
    """The figures in a result file; raises ConfigurationError if it cannot be read as one."""
    try:
        runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} is not a result file of the peers: {error}") from error
    return _figures(runs)


def best_peer(figures: Iterable[PeerFigure], sf: str, stream: str) -> PeerFigure | None:
    """The fastest system on that stream, or None if nobody ran it."""
    matching = [figure for figure in figures if (figure.sf, figure.stream) == (sf, stream)]
    return max(matching, key=lambda figure: figure.transactions_per_second, default=None)


def _figures(runs: Iterable[Mapping[str, Any]]) -> list[PeerFigure]:
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        label = str(run.get("label", ""))
        if label not in _NOT_VIEWS and run.get("tx_per_s") and _verified(run.get("verify")):
            groups.setdefault((label, str(run["sf"]), str(run["stream"])), []).append(run)
    return [
        PeerFigure(
            label=label,
            sf=sf,
            stream=stream,
            transactions_per_second=statistics.median(run["tx_per_s"] for run in group),
            view_rows_per_second=_median([run.get("view_rows_per_s") for run in group]),
            runs=len(group),
        )
        for (label, sf, stream), group in groups.items()
    ]


def _verified(verify: object) -> bool:
    return isinstance(verify, Mapping) and verify.get("equal") is True


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
