"""One correlation id per source transaction: `source@ordinal`, the same in the logs of wrapper and
mediator."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from algebra.position import Position

MOST = 1000
"""Ids in one record at most; a record for a longer run says how many are left out."""


def log_transactions(
    log: logging.Logger,
    what: str,
    source: str,
    positions: Sequence[Position],
    versions: Sequence[int] = (),
    **extra: object,
) -> None:
    """Log at level debug what happened to these transactions; costs nothing if that level is off.

    `versions` are those of a view that show them, one for each.
    """
    if not positions or not log.isEnabledFor(logging.DEBUG):
        return
    ids = [f"{source}@{position.ordinal}" for position in positions[:MOST]]
    left = len(positions) - len(ids)
    log.debug(
        "%s: %s%s",
        what,
        " ".join(ids),
        f" and {left} more" if left else "",
        extra={
            "source": source,
            "transactions": ids,
            **({"versions": list(versions[:MOST])} if versions else {}),
            **extra,
        },
    )
