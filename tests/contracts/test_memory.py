"""What tests can make of the twin that no database would do on demand."""

import asyncio

import pytest
from livetree_server.storage import MemoryStore
from livetree_server.topics.ports import SeqTaken, StoreError

from tests.contracts.building import Room, check_stored, create, say


async def test_a_commit_fails_without_having_been_kept():
    store, room = MemoryStore(), Room()
    await room.do(store, create())
    store.fail_next(after_commit=False)

    with pytest.raises(StoreError):
        await store.commit(room.plan(say("lost", mutation="m")))

    await check_stored(store, room)
    await room.do(store, say("a", mutation="m"))
    await check_stored(store, room)


async def test_a_commit_fails_although_it_was_kept():
    store, room = MemoryStore(), Room()
    await room.do(store, create())
    run = room.plan(say("a", mutation="m"))
    store.fail_next(after_commit=True)

    with pytest.raises(StoreError):
        await store.commit(run)

    room.keep(run)
    await check_stored(store, room)


async def test_a_commit_that_would_have_been_refused_is_refused():
    store, room = MemoryStore(), Room()
    run = room.plan(create())
    await store.commit(run)
    store.fail_next(after_commit=True)

    with pytest.raises(SeqTaken):
        await store.commit(run)


async def test_failures_that_have_not_happened_are_taken_back():
    store, room = MemoryStore(), Room()
    store.fail_next(after_commit=False)
    store.fail_next(after_commit=True)

    store.heal()

    await room.do(store, create())
    await check_stored(store, room)


async def test_commits_are_held_until_they_are_released_in_their_order():
    store, room = MemoryStore(), Room()
    with store.holding() as hold:
        commits = [asyncio.create_task(room.do(store, create()))]
        commits += [asyncio.create_task(store.commit(Room("other").plan(create())))]
        await hold.reached.acquire()
        await hold.reached.acquire()
        assert await store.load("topic") is None

        hold.release()
        await asyncio.gather(*commits)
        # Who comes after the release isn't held.
        await room.do(store, say("a"))

    await check_stored(store, room)
    assert await store.load("other") is not None


async def test_a_held_commit_whose_caller_is_cancelled_happens_all_the_same():
    store, room = MemoryStore(), Room()
    run = room.plan(create())
    with store.holding() as hold:
        caller = asyncio.create_task(store.commit(run))
        await hold.reached.acquire()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert await store.load("topic") is None

    room.keep(run)
    await room.do(store, say("a"))
    await check_stored(store, room)
