"""The warehouse: views, their versions and their whole history in Delta Lake tables."""

from __future__ import annotations

from mediator.warehouse.records import CompactResult, StoredView, VersionRecord, VersionRow, ViewInstall
from mediator.warehouse.scan import Scan
from mediator.warehouse.warehouse import Warehouse

__all__ = [
    "CompactResult",
    "Scan",
    "StoredView",
    "VersionRecord",
    "VersionRow",
    "ViewInstall",
    "Warehouse",
]
