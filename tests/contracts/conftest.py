"""The implementations of each port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from livetree_server.storage import MemoryStore, SqliteStore
from livetree_server.topics.ports import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a database file may be made."""
    return tmp_path / "livetree.db"


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Store]:
    """Every implementation of `Store`, empty."""
    made: Store
    if request.param == "sqlite":
        made = await SqliteStore.open(path)
    else:
        made = MemoryStore()
    yield made
    await made.close()
