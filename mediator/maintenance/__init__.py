"""Maintenance algorithms: one file each, named after its paper, chosen per view by `maintenance:`."""

from __future__ import annotations

from collections.abc import Mapping

from algebra.errors import ConfigurationError
from mediator.maintenance.c_strobe import CStrobe
from mediator.maintenance.c_tstrobe import CTStrobe
from mediator.maintenance.contract import Maintenance
from mediator.maintenance.copies import Copies
from mediator.maintenance.eca import Eca
from mediator.maintenance.eca_key import EcaKey
from mediator.maintenance.g_strobe import GStrobe
from mediator.maintenance.ivma import Ivma
from mediator.maintenance.nested_sweep import NestedSweep
from mediator.maintenance.psweep import Psweep
from mediator.maintenance.recompute import Recompute
from mediator.maintenance.strobe import Strobe
from mediator.maintenance.sweep import BatchedSweep, ParallelSweep, PublishedSweep
from mediator.maintenance.t_strobe import TStrobe

ALGORITHMS: Mapping[str, Maintenance] = {
    algorithm.name: algorithm
    for algorithm in (
        BatchedSweep(),
        PublishedSweep(),
        ParallelSweep(),
        NestedSweep(),
        Psweep(),
        Recompute(),
        Copies(),
        Eca(),
        EcaKey(),
        Strobe(),
        TStrobe(),
        GStrobe(),
        CStrobe(),
        CTStrobe(),
        Ivma(),
    )
}
DEFAULT = BatchedSweep.name


def algorithm(name: str) -> Maintenance:
    """The algorithm of that name; an empty name means the default."""
    try:
        return ALGORITHMS[name or DEFAULT]
    except KeyError:
        raise ConfigurationError(
            f"unknown maintenance algorithm {name!r}; there are: {', '.join(ALGORITHMS)}"
        ) from None
