"""Files that come in over HTTP, where the disk is full or the file is too large."""

import pytest
from livetree_server import app as app_module
from livetree_server.app import Application
from livetree_server.storage.memory import MemoryStore


async def pieces(*chunks: bytes):
    for chunk in chunks:
        yield chunk


async def told(application: Application, *chunks: bytes) -> list[dict]:
    bring_in = application._bring_in
    return [each async for each in bring_in(pieces(*chunks), "x.json", "ann", strict=False)]


async def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch):
    async def full(_body, _path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(app_module, "_keep", full)
    async with Application(MemoryStore()) as application:
        (answer,) = await told(application, b"[]")
    assert answer["type"] == "error"
    assert "No space left" in answer["reason"]


async def test_a_file_that_is_too_large_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app_module, "MAX_IMPORT_BYTES", 10)
    async with Application(MemoryStore()) as application:
        (answer,) = await told(application, b"[1,2,3", b",4,5,6]")
    assert answer == {"type": "error", "reason": "the file is larger than 10 bytes"}


async def test_an_unknown_format_is_told():
    async with Application(MemoryStore()) as application:
        (answer,) = await told(application, b'{"nothing": "known"}')
    assert answer["type"] == "error"
