"""The durable store: one SQLite file, or an in-memory twin for tests."""

from .files import StoreInUse, StoreRefused
from .memory import MemoryStore
from .sqlite import SqliteStore

__all__ = ["MemoryStore", "SqliteStore", "StoreInUse", "StoreRefused"]
