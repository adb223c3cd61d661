import asyncio

import pytest
from livetree.entropy import Entropy, SystemClock, sleep
from livetree.testing import FakeClock, FakeRandom, settle


def test_ids_hold_the_time_and_differ():
    entropy = Entropy(FakeClock(now_ms=0x0123456789AB), FakeRandom())

    one, other = entropy.new_id(), entropy.new_id()

    assert one.startswith("01234567-89ab-7")
    assert one != other


def test_fractions_are_below_one():
    assert Entropy(FakeClock(), lambda count: b"\xff" * count).fraction() < 1
    assert Entropy(FakeClock(), bytes).fraction() == 0


async def test_sleep_ends_when_its_time_has_come():
    clock = FakeClock()
    sleeping = asyncio.create_task(sleep(clock, 2.0))

    await clock.elapse(1.9)
    assert not sleeping.done()
    await clock.elapse(0.2)
    assert sleeping.done()


async def test_a_cancelled_sleep_leaves_no_timer():
    clock = FakeClock()
    sleeping = asyncio.create_task(sleep(clock, 2.0))
    await settle()

    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping

    assert clock.due == []


async def test_the_system_clock_runs():
    clock = SystemClock()
    before = clock.monotonic()

    await asyncio.wait_for(sleep(clock, 0.001), 10)

    assert clock.monotonic() > before
    assert clock.now_ms() > 1_700_000_000_000
