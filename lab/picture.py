"""Table 1 as a picture: queries per update against the number of sources, and against concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from algebra.errors import ConfigurationError
from lab.table1 import MIDDLE_SOURCES, Table

_STYLES = ("-", "--", "-.", ":")


def draw(table: Table, algorithms: Sequence[str], file: Path) -> None:
    """Write the picture; its format follows from the file's name (.svg, .png, .pdf)."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigurationError("pictures need an extra: pip install 'lockstep[lab]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    # The same table always gives the same file.
    matplotlib.rcParams["svg.hashsalt"] = "lockstep"
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), sharey=True)
    for i, name in enumerate(algorithms):
        style = _STYLES[i // 10 % len(_STYLES)]
        sources = table.by_sources(name)
        xs = sorted(sources)
        left.plot(xs, [sources[n].queries_per_update for n in xs], style, marker=".", label=name)
        cells = sorted(table.by_commits(name).items())
        # An algorithm that asks nothing has no concurrency of its own: it is drawn at the others' biases.
        right.plot(
            range(len(cells)), [cell.queries_per_update for _, cell in cells], style, marker=".", label=name
        )
    left.set_xlabel("sources n")
    left.set_ylabel("queries per update")
    left.set_xticks(xs)
    right.set_xlabel(f"concurrency (commits : other actions), n = {MIDDLE_SOURCES}")
    right.set_xticks(range(len(cells)), [f"{commits:g}" for commits, _ in cells])
    right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.set_ylim(bottom=0)
    figure.tight_layout()
    metadata = {"Date": None} if file.suffix == ".svg" else None
    figure.savefig(file, metadata=metadata)
    pyplot.close(figure)
