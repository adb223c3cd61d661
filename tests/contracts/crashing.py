"""A server that is killed while it writes: run as a module, with the database's path."""

import asyncio
import os
import sys
from itertools import count
from pathlib import Path

from livetree.core import protocol as p
from livetree_server.storage import SqliteStore

from tests.contracts.building import Room, create, say

TOPICS = 8


async def write(path: Path) -> None:
    """Write for ever, and print each commit once it is acknowledged: topic, seq and commit id."""
    store = await SqliteStore.open(path)

    async def write_one(room: Room) -> None:
        await acknowledge(room, create())
        for place in count():
            await acknowledge(
                room,
                say(
                    f"m{place}",
                    text="x" * (place * 37 % 5_000),
                    mutation=f"{room.tree.topic_id}-{place}",
                ),
                p.TopicUpdate(name=f"{place}"),
                *([p.MessageDelete(message_id=f"m{place - 1}")] if place % 5 == 4 else []),
            )

    async def acknowledge(room: Room, *commands: p.Mutation) -> None:
        run = await room.do(store, *commands)
        # One write, so that a line is there whole or not at all.
        os.write(1, f"{run.topic_id} {run.seq} {run.commit}\n".encode())

    await asyncio.gather(*(write_one(Room(f"t{place}")) for place in range(TOPICS)))


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
