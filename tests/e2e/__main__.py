"""
Play a conversation of any export: ``python -m tests.e2e FILE``.

It prints what was played, and ends with a traceback if any two copies differ.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from tests.e2e.play import play
from tests.faults.process import Server


async def main(file: Path, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Server(Path(folder)) as server:
            print(await play(server, file, seed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Play a conversation and compare all its copies.")
    parser.add_argument("file", type=Path, help="an export that `livetree import` takes")
    parser.add_argument("--seed", type=int, default=1, help="decides what is done")
    given = parser.parse_args()
    asyncio.run(main(given.file, given.seed))
