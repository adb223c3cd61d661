import asyncio
import gc

import pytest
from livetree.changes import Changes, Gone, Loaded, Skipped, Streamed, Synced
from livetree.core.errors import Forbidden
from livetree.testing import settle


def synced(seq: int) -> Synced:
    return Synced(seq, "commit")


async def test_changes_come_in_order_until_the_end():
    changes = Changes()
    changes.put(synced(1))
    changes.put(synced(2))
    changes.end()
    changes.put(synced(3))

    assert [change async for change in changes] == [synced(1), synced(2)]


async def test_a_reader_waits_for_the_next_change():
    changes = Changes()
    reading = asyncio.create_task(anext(changes))
    await settle()
    assert not reading.done()

    changes.put(synced(1))

    assert await reading == synced(1)


async def test_R6_a_slow_reader_is_told_how_many_it_missed():
    changes = Changes(limit=3)
    for seq in range(1, 9):
        changes.put(synced(seq))
    changes.put(Gone("deleted"))
    changes.end()

    read = [change async for change in changes]

    skipped = [change for change in read if isinstance(change, Skipped)]
    assert len(skipped) == 1
    assert read[0] is skipped[0]
    assert skipped[0].count + len(read) - 2 == 8
    assert read[-1] == Gone("deleted")


async def test_the_queue_never_grows_beyond_its_bound():
    changes = Changes(limit=3)
    longest = 0
    for seq in range(1000):
        changes.put(synced(seq))
        longest = max(longest, len(changes))

    assert longest == 3


async def test_an_error_comes_after_what_waits():
    changes = Changes()
    changes.put(synced(1))
    changes.end(Forbidden("no"))
    changes.end()

    assert await anext(changes) == synced(1)
    for _ in range(2):
        with pytest.raises(Forbidden):
            await anext(changes)


async def test_cancelling_a_wait_loses_nothing():
    changes = Changes()
    for seq in range(3):
        reading = asyncio.create_task(anext(changes))
        await settle()
        changes.put(synced(seq))
        reading.cancel()  # arrives together with the change
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await anext(changes) == synced(seq)


async def test_two_readers_of_one_queue_share_it():
    changes = Changes()
    readers = [asyncio.create_task(anext(changes)) for _ in range(2)]
    await settle()
    changes.put(synced(1))
    changes.put(synced(2))

    assert {change.seq for change in await asyncio.gather(*readers)} == {1, 2}


async def test_it_says_how_it_is():
    changes = Changes()
    changes.put(Loaded(["m"]))
    changes.put(Streamed("m", 1, 1, [], reset=False))
    assert repr(changes) == "<Changes waiting=2>"
    changes.end()
    assert repr(changes) == "<Changes waiting=2 ended>"
    gc.collect()
