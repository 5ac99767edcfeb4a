"""The in-memory source: the reference adapter, and the source of tests and of the lab."""

from adapters.memory.adapter import MemoryAdapter
from adapters.memory.database import MemoryDatabase, Transaction

__all__ = ["MemoryAdapter", "MemoryDatabase", "Transaction"]
