"""An imported conversation is changed by two over a failing network; all copies stay one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.play import play
from tests.e2e.sides import COMMANDS
from tests.faults.process import Server

FILE = Path(__file__).parent / "data" / "balcony.json"


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_copy_of_a_conversation_is_the_same(tmp_path: Path, seed: int):
    try:
        async with Server(tmp_path) as server:
            report = await play(server, FILE, seed)
        assert report.done == COMMANDS
        assert report.cuts > 10
        assert report.connections > 10
        assert report.replies["success"] > 10
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    print(report)


async def test_where_nothing_changes_nothing_is_proved(tmp_path: Path):
    async with Server(tmp_path) as server:
        with pytest.raises(AssertionError, match="nothing was told"):
            await play(server, FILE, 1, commands={})
