"""Who watches the list of topics is told the truth, in order, and nothing that isn't theirs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import livetree
import msgspec
import pytest
from livetree.client import Client
from livetree.core import protocol as p
from livetree.core.errors import Forbidden, LivetreeError, NotFound, Validation
from livetree.topic_list import TopicList
from livetree_server.app import Application, listen, serve
from livetree_server.auth import issue
from livetree_server.hub.hub import Hub
from livetree_server.storage.memory import MemoryStore
from livetree_server.storage.sqlite import SqliteStore
from livetree_server.topics import listing as listing_module
from livetree_server.topics import watching as watching_module
from livetree_server.topics.listing import listed_entries
from livetree_server.topics.marking import Marking
from livetree_server.topics.ports import Seen, StoreError
from livetree_server.topics.rooms import Rooms
from livetree_server.topics.watching import Watcher
from msgspec import Raw

from tests.server.test_endpoint import connect

SECRET = "a secret of more than thirty-two bytes"
HOUR = 3_600_000


class Reader:
    """A connection made by hand: it keeps what it is told, and reads when the test says."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.full = False
        self.closed = False
        self.frames: list[dict[str, Any]] = []

    @property
    def writable(self) -> bool:
        return not self.full and not self.closed

    def send(self, frame: bytes) -> None:
        if not self.closed:
            self.frames.append(msgspec.json.decode(frame))

    @property
    def write(self) -> Callable[[bytes], None]:
        return self.send

    async def wait_writable(self) -> None:
        raise AssertionError("nobody waits for the list's sake")

    def take(self) -> list[dict[str, Any]]:
        frames, self.frames = self.frames, []
        return frames


class House:
    """Rooms on a store in memory, with everyone who watches them."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now = 1_700_000_000_000
        self.numbers = itertools.count()
        self.rooms = Rooms(
            self.store,
            Hub(),
            clock=lambda: self.now,
            new_id=lambda: f"id{next(self.numbers)}",
        )
        self.reads: list[str] = []
        for name in ("topics", "listed", "seen", "mark_read"):
            setattr(self.store, name, self._counted(name, getattr(self.store, name)))

    def _counted(self, name: str, method: Any) -> Any:
        async def counted(*args: Any, **options: Any) -> Any:
            self.reads.append(name)
            return await method(*args, **options)

        return counted

    async def do(self, command: p.Mutation, subject: str = "ann") -> None:
        self.now += 1
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.rooms.command(command, subject, done.set_result)
        if isinstance(outcome := await done, LivetreeError):
            raise outcome

    async def create(self, topic_id: str, name: str = "", **fields: Any) -> None:
        await self.do(p.TopicCreate(topic=topic_id, name=name or topic_id, **fields))

    async def say(self, topic_id: str, subject: str = "ann") -> None:
        await self.do(p.MessageCreate(topic=topic_id, role="user", text="hi"), subject)

    def watch(
        self,
        subject: str = "ann",
        *,
        reader: Reader | None = None,
        allowed: Callable[[str], bool] = lambda _: True,
        limit: int = 50,
    ) -> Reader:
        reader = reader or Reader()
        self.rooms.watching.watch(Watcher(reader, subject, allowed, limit))
        return reader

    async def quiet(self) -> None:
        """Wait until nothing is done any more."""
        async with asyncio.timeout(20):
            while self.rooms._tasks:
                await asyncio.wait(self.rooms._tasks)

    async def told(self, reader: Reader) -> list[dict[str, Any]]:
        await self.quiet()
        return reader.take()

    async def mark(self, topic_id: str, seq: int, subject: str = "ann") -> Seen | None:
        return await self.rooms.marking.mark(subject, topic_id, seq)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching_module, "ROUND_SECONDS", 0.0)
    monkeypatch.setattr(watching_module, "RETRY_SECONDS", 0.0)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    await house.rooms.__aexit__()


def names(frame: dict[str, Any]) -> list[str]:
    return [topic["id"] for topic in frame["topics"]]


async def test_S9_first_the_whole_list_is_told_and_then_only_what_changes(house: House):
    await house.create("a")
    await house.create("b")
    reader = house.watch()
    (first,) = await house.told(reader)
    assert (first["type"], first["whole"], names(first)) == ("topics", True, ["b", "a"])
    assert first["next"] is None
    assert first["topics"][0]["unread"] == first["topics"][0]["readSeq"] == 0

    await house.do(p.TopicUpdate(topic="a", name="renamed"))
    (change,) = await house.told(reader)
    assert (change["whole"], names(change), change["gone"]) == (False, ["a"], [])
    assert (change["topics"][0]["name"], change["topics"][0]["seq"]) == ("renamed", 2)

    await house.create("c")
    assert names((await house.told(reader))[0]) == ["c"]
    await house.do(p.TopicDelete(topic="a"))
    (gone,) = await house.told(reader)
    assert (names(gone), gone["gone"]) == ([], ["a"])
    await house.do(p.TopicRestore(topic="a"))
    (back,) = await house.told(reader)
    assert (names(back), back["gone"]) == (["a"], [])
    await house.say("b")
    (active,) = await house.told(reader)
    assert active["topics"][0]["lastActivityAt"] == house.now


async def test_the_whole_is_a_page_and_says_what_is_below(house: House):
    for topic_id in "abcde":
        await house.create(topic_id)
    (first,) = await house.told(house.watch(limit=2))
    assert names(first) == ["e", "d"]
    entries, cursor = await listed_entries(
        house.store, lambda _: True, "ann", p.TopicList(cursor=first["next"], limit=10)
    )
    assert [entry.id for entry in entries] == ["c", "b", "a"]
    assert cursor is None


async def test_S10_temporary_topics_are_never_told_until_they_are_kept(house: House):
    reader = house.watch()
    await house.told(reader)
    for topic_id in ("kept", "deleted"):
        await house.create(topic_id, temporary=True)
        await house.say(topic_id)
    await house.do(p.TopicDelete(topic="deleted"))
    assert await house.told(reader) == []
    assert names((await house.told(house.watch()))[0]) == []

    await house.do(p.TopicPersist(topic="kept"))
    assert names((await house.told(reader))[0]) == ["kept"]


async def test_H3_and_S12_what_is_hidden_is_never_named(house: House):
    await house.create("mine-1")
    await house.create("secret-1")
    reader = house.watch(allowed=lambda topic_id: topic_id.startswith("mine"))
    other = house.watch()
    for each in ("mine-2", "secret-2"):
        await house.create(each)
        await house.say(each, "bob")
    for each in ("secret-1", "mine-1"):
        await house.do(p.TopicDelete(topic=each))
    await house.quiet()
    for each in ("secret-1", "mine-1"):
        house.rooms.watching.changed(each)  # told in one round
    await house.quiet()
    for each in ("secret-1", "mine-1"):
        await house.do(p.TopicRestore(topic=each))
    await house.mark("secret-2", 1)
    await house.mark("mine-2", 1)
    frames = await house.told(reader)
    assert "secret" not in str(frames)
    assert {each for frame in frames if "topics" in frame for each in names(frame)} == {
        "mine-1",
        "mine-2",
    }
    assert "secret-2" in str(await house.told(other))


async def test_S7_who_reads_slowly_gets_the_whole_when_it_reads_again(house: House):
    reader, fast = house.watch(), house.watch()
    await house.told(reader)
    reader.full = True
    for topic_id in "abc":
        await house.create(topic_id)
    await house.mark("a", 1)
    assert await house.told(reader) == []
    assert house.rooms.watching.statistics() == {"watchers": 2, "watchersBehind": 1}
    reader.full = False
    house.rooms.watching.reads_again(reader)
    house.rooms.watching.reads_again(fast)
    (frame,) = await house.told(reader)
    assert frame["whole"]
    assert sorted(names(frame)) == ["a", "b", "c"]
    await house.create("d")
    assert [frame["whole"] for frame in await house.told(reader)] == [False]
    assert house.rooms.watching.statistics()["watchersBehind"] == 0


async def test_S7_a_watcher_whose_buffer_was_full_from_the_start_is_told_later(house: House):
    reader = Reader()
    reader.full = True
    house.watch(reader=reader)
    assert await house.told(reader) == []
    reader.full = False
    house.rooms.watching.reads_again(reader)
    assert [frame["whole"] for frame in await house.told(reader)] == [True]


async def test_S7_who_fills_up_amid_what_is_told_misses_nothing(house: House):
    await house.create("a")
    await house.mark("a", 1)
    reader = house.watch()
    await house.told(reader)
    send = reader.send

    def fill(frame: bytes) -> None:
        send(frame)
        reader.full = True

    reader.send = fill  # type: ignore[method-assign]
    house.rooms.watching.changed("a")
    house.rooms.watching.read("ann", "a")
    await house.quiet()
    assert [frame["type"] for frame in reader.frames] == ["topics"]
    reader.full = False
    house.rooms.watching.reads_again(reader)
    frames = await house.told(reader)
    assert frames[-1]["whole"]
    assert frames[-1]["topics"][0]["readSeq"] == 1


@pytest.mark.parametrize("method", ["topics", "listed", "seen"])
async def test_what_could_not_be_read_is_tried_again_and_told_whole(
    house: House, monkeypatch: pytest.MonkeyPatch, method: str
):
    await house.create("a")
    reader = house.watch()
    if method != "topics":
        await house.told(reader)
    works = getattr(house.store, method)
    failures = itertools.count()

    async def fail(*args: Any, **options: Any) -> Any:
        if next(failures) < 3:
            raise StoreError("the disk is away")
        return await works(*args, **options)

    monkeypatch.setattr(house.store, method, fail)
    await house.do(p.TopicUpdate(topic="a", name="new"))
    frames = await house.told(reader)
    assert True in [frame["whole"] for frame in frames]
    assert frames[-1]["topics"][0]["name"] == "new"


async def test_a_creation_whose_outcome_was_unknown_is_told_if_it_happened(house: House):
    reader = house.watch()
    await house.told(reader)
    house.store.fail_next(after_commit=True)
    await house.create("a", mutation="m")
    assert [names(frame) for frame in await house.told(reader)] == [["a"]]
    await house.do(p.TopicDelete(topic="a"))
    await house.told(reader)
    house.store.fail_next(after_commit=True)
    await house.do(p.TopicRestore(topic="a", mutation="n"))
    assert names((await house.told(reader))[-1]) == ["a"]


async def test_S11_one_subject_sees_one_position_on_all_devices_and_others_their_own(house: House):
    await house.create("a")
    for _ in range(3):
        await house.say("a", "bob")
    laptop, phone, bob = house.watch(), house.watch(), house.watch("bob")
    for reader, unread in ((laptop, 3), (phone, 3), (bob, 0)):
        assert (await house.told(reader))[0]["topics"][0]["unread"] == unread

    assert await house.mark("a", 3) == Seen(3, 1)
    position = {"type": "read", "topic": "a", "readSeq": 3, "unread": 1}
    assert await house.told(laptop) == await house.told(phone) == [position]
    assert await house.told(bob) == []
    assert await house.mark("a", 1) == Seen(3, 1)  # never back
    assert await house.mark("a", 1 << 50) == Seen(4, 0)  # nor past what there is
    assert await house.mark("nothing", 1) is None


async def test_S9_what_is_told_never_goes_back(house: House):
    await house.create("a")
    readers = [house.watch() for _ in range(3)]

    async def write() -> None:
        for _ in range(30):
            await house.say("a", "bob")

    async def read() -> None:
        for seq in range(1, 25):
            await house.mark("a", seq)

    async def come_again() -> None:
        for _ in range(20):
            house.watch(reader=readers[0])
            await asyncio.sleep(0)

    await asyncio.gather(write(), read(), come_again())
    await house.quiet()
    for reader in readers:
        frames = reader.take()
        seqs = [topic["seq"] for frame in frames for topic in frame.get("topics", ())]
        positions = [each["readSeq"] for frame in frames for each in frame.get("topics", [frame])]
        assert seqs == sorted(seqs)
        assert positions == sorted(positions)
        last = await house.store.seen("ann", ["a"])
        assert (seqs[-1], positions[-1]) == (31, last["a"].read_seq)


async def test_who_is_forgotten_is_told_nothing_even_while_it_is_being_read(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    await house.create("a")
    stays, goes, ends = house.watch(), house.watch(), house.watch()
    for reader in (stays, goes, ends):
        await house.told(reader)
    listed = house.store.listed

    async def meanwhile(topic_ids: Any) -> Any:
        found = await listed(topic_ids)
        house.rooms.watching.forget(goes)
        house.rooms.closed(ends)
        return found

    monkeypatch.setattr(house.store, "listed", meanwhile)
    await house.create("b")
    assert len(await house.told(stays)) == 1
    assert goes.frames == ends.frames == []

    topics = house.store.topics
    changed_its_mind = Reader()

    async def asks_for_less(**options: Any) -> Any:
        found = await topics(**options)
        if options["limit"] == 50:
            house.watch(reader=changed_its_mind, limit=1)
        return found

    monkeypatch.setattr(house.store, "topics", asks_for_less)
    house.watch(reader=changed_its_mind)
    assert [len(frame["topics"]) for frame in await house.told(changed_its_mind)] == [1]

    closed = Reader()
    closed.closed = True
    house.watch(reader=closed)
    assert house.rooms.watching.statistics()["watchers"] == 2


async def test_nobody_watching_costs_nothing(house: House):
    await house.create("a")
    await house.mark("a", 1)
    await house.quiet()
    assert house.reads == ["mark_read"]
    assert repr(house.rooms.watching) == "<Watching {'watchers': 0, 'watchersBehind': 0}>"


async def test_R6_asking_ten_thousand_times_costs_a_few_reads(house: House):
    await house.create("a")
    reader = Reader()
    for _ in range(10_000):
        house.watch(reader=reader)
    assert len(await house.told(reader)) == 1
    assert house.reads == ["topics", "seen"]
    house.reads.clear()

    answers = [asyncio.ensure_future(house.mark("a", number)) for number in range(10_000)]
    assert set(await asyncio.gather(*answers)) <= {Seen(0, 0), Seen(1, 0)}
    assert house.reads.count("mark_read") <= 2
    await house.quiet()
    assert repr(house.rooms.marking) == "<Marking writing=0 waiting=0>"


async def test_R6_rounds_keep_their_distance(house: House, monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(delay: float) -> None:
        slept.append(delay)
        await sleep(0)

    monkeypatch.setattr(watching_module, "ROUND_SECONDS", 100.0)
    monkeypatch.setattr(watching_module.asyncio, "sleep", note)
    reader = house.watch()
    await house.told(reader)
    house.watch(reader=reader)
    await house.told(reader)
    assert [delay > 90 for delay in slept if delay] == [True]


async def test_R6_many_who_come_at_once_do_not_keep_the_others_waiting(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watching_module, "WHOLE_AT_ONCE", 2)
    monkeypatch.setattr(watching_module, "CHANGED_AT_ONCE", 2)
    first = house.watch()
    await house.told(first)
    others = [house.watch() for _ in range(5)]
    for topic_id in "abcde":
        await house.create(topic_id)
    house.reads.clear()
    for topic_id in "abcde":
        house.rooms.watching.changed(topic_id)
    await house.quiet()
    frames = first.take()
    assert sorted({each for frame in frames for each in names(frame)}) == [*"abcde"]
    assert max(len(frame["topics"]) for frame in frames) <= 2
    for other in others:
        assert other.frames[0]["whole"]


async def test_R6_who_asks_again_waits_behind_those_who_have_not_been_told(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watching_module, "WHOLE_AT_ONCE", 1)
    order: list[str] = []
    readers = {name: Reader() for name in ("greedy", "patient")}
    for name, reader in readers.items():
        reader.send = lambda _, name=name: order.append(name)  # type: ignore[misc]
        house.watch(reader=reader)
    house.watch(reader=readers["greedy"])
    await house.quiet()
    assert order == ["patient", "greedy"]


async def test_R6_a_list_of_which_little_may_be_seen_is_looked_through_in_large_pages(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    await house.create("mine-1")
    await house.create("mine-2")
    for number in range(300):
        await house.create(f"t-{number}")
    house.reads.clear()

    async def page(cursor: str | None, limit: int) -> tuple[list[str], str | None]:
        command = p.TopicList(cursor=cursor, limit=limit)
        allowed = lambda topic_id: topic_id.startswith("mine")  # noqa: E731
        entries, after = await listed_entries(house.store, allowed, "ann", command)
        return [entry.id for entry in entries], after

    found, cursor = await page(None, 1)
    assert found == ["mine-2"]
    assert house.reads.count("topics") <= 4
    assert await page(cursor, 1) == (["mine-1"], None)

    monkeypatch.setattr(listing_module, "LOOKED_THROUGH", 100)
    found, cursor = await page(None, 1)
    assert found == []
    assert (await page(cursor, 2))[0] == ["mine-2", "mine-1"]


async def test_S6_a_frame_carries_so_much_metadata(house: House, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listing_module, "ANSWER_BYTES", 250)
    metadata = Raw(msgspec.json.encode({"x": "y" * 100}))
    reader = house.watch()
    await house.told(reader)
    for topic_id in "abcde":
        await house.create(topic_id, metadata=metadata)
    frames = await house.told(reader)
    for topic_id in "abcde":
        house.rooms.watching.changed(topic_id)
    frames = await house.told(reader)
    assert sorted(each for frame in frames for each in names(frame)) == [*"abcde"]
    assert [len(frame["topics"]) for frame in frames] == [2, 2, 1]

    (first,) = await house.told(house.watch())
    assert names(first) == ["e", "d"]
    command = p.TopicList(cursor=first["next"], limit=50)
    entries, _ = await listed_entries(house.store, lambda _: True, "ann", command)
    assert [entry.id for entry in entries] == ["c", "b"]


async def test_a_fault_in_telling_ends_nothing(house: House, monkeypatch: pytest.MonkeyPatch):
    reader = house.watch()
    await house.told(reader)

    listed = house.store.listed

    async def broken(_: Any) -> Any:
        monkeypatch.setattr(house.store, "listed", listed)
        raise RuntimeError("a fault")

    monkeypatch.setattr(house.store, "listed", broken)
    await house.create("a")
    assert names((await house.told(reader))[-1]) == ["a"]


async def test_C1_stopping_waits_for_no_watcher(house: House, monkeypatch: pytest.MonkeyPatch):
    async def fail(**_: Any) -> Any:
        raise StoreError("the disk is away")

    monkeypatch.setattr(house.store, "topics", fail)
    house.watch()
    for _ in range(5):
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await house.rooms.__aexit__()
    reader = house.watch()
    assert house.rooms.watching.statistics()["watchers"] == 0
    assert reader.frames == []


async def test_a_mark_that_fails_is_told_to_all_who_wait_for_it():
    held = asyncio.Event()
    seqs: list[int] = []

    class Store:
        async def mark_read(self, _: str, __: str, seq: int) -> Seen | None:
            seqs.append(seq)
            await held.wait()
            if seq == 9:
                raise StoreError("the disk is away")
            return Seen(seq, 0)

    tasks: set[asyncio.Task[None]] = set()
    moved: list[str] = []
    marking = Marking(
        Store(),  # type: ignore[arg-type]
        lambda work, _: tasks.add(asyncio.create_task(work)),
        lambda _, topic_id: moved.append(topic_id),
    )
    first = asyncio.create_task(marking.mark("ann", "a", 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rest = [asyncio.create_task(marking.mark("ann", "a", seq)) for seq in (7, 9, 8)]
    given_up = asyncio.create_task(marking.mark("ann", "a", 3))
    await asyncio.sleep(0)
    given_up.cancel()
    held.set()
    assert await first == Seen(1, 0)
    assert {type(each) for each in await asyncio.gather(*rest, return_exceptions=True)} == {
        StoreError
    }
    assert await marking.mark("ann", "a", 10) == Seen(10, 0)
    assert seqs == [1, 9, 10]
    assert moved == ["a", "a"]


# Temporary topics -----------------------------------------------------------------------


async def is_there(house: House, topic_id: str) -> bool:
    await house.quiet()
    return await house.store.load(topic_id) is not None


async def open_topic(house: House, topic_id: str, reader: Reader) -> None:
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    house.rooms.open(p.TopicOpen(topic=topic_id), reader, opened.set_result)
    assert isinstance(await opened, bytes)


async def test_S10_a_temporary_topic_is_erased_an_hour_after_its_last_use(house: House):
    for topic_id in ("unused", "spoken", "watched", "kept"):
        await house.create(topic_id, temporary=True)
    await house.create("plain")
    await house.do(p.TopicPersist(topic="kept"))
    reader = Reader()
    await open_topic(house, "watched", reader)

    house.now += HOUR // 2
    await house.say("spoken")
    await house.rooms.sweep()
    house.now += HOUR // 2 + 60_000
    await house.rooms.sweep()
    assert not await is_there(house, "unused")
    for topic_id in ("spoken", "watched", "kept", "plain"):
        assert await is_there(house, topic_id)

    house.now += HOUR * 2
    await house.rooms.sweep()
    assert not await is_there(house, "spoken")
    assert await is_there(house, "watched")
    house.rooms.ended("watched", reader)
    house.now += HOUR - 60_000
    await house.rooms.sweep()
    assert await is_there(house, "watched")
    house.now += 120_000
    await house.rooms.sweep()
    assert not await is_there(house, "watched")
    assert await is_there(house, "kept")


async def test_a_temporary_topic_whose_use_was_noted_outlives_the_one_who_noted_it(house: House):
    await house.create("t", temporary=True)
    reader = Reader()
    await open_topic(house, "t", reader)
    house.now += HOUR - 60_000
    await house.rooms.sweep()
    again = Rooms(house.store, Hub(), clock=lambda: house.now, new_id=house.rooms.new_id)
    house.now += HOUR - 60_000
    await again.sweep()
    assert await is_there(house, "t")
    house.now += 120_000
    await again.sweep()
    await again.__aexit__()
    assert not await is_there(house, "t")


async def test_a_temporary_topic_that_is_opened_while_it_is_swept_stays(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    await house.create("t", temporary=True)
    house.now += HOUR * 2
    reader = Reader()
    unused = house.store.unused

    async def meanwhile(before: int) -> list[str]:
        found = await unused(before)
        await open_topic(house, "t", reader)
        return found

    monkeypatch.setattr(house.store, "unused", meanwhile)
    await house.rooms.sweep()
    assert await is_there(house, "t")
    assert "gone" not in {frame["type"] for frame in reader.frames}


# Over the wire --------------------------------------------------------------------------


async def test_R6_a_connection_that_asks_in_a_flood_is_answered_each_time_and_told_once():
    async with Application(MemoryStore()) as application:
        peer = connect(application)
        await peer.hear()
        for number in range(500):
            peer.say(id=number, op="topics.watch")
        frames = await peer.hear()
        assert [frame["type"] for frame in frames].count("result") == 500
        assert [frame["type"] for frame in frames].count("topics") <= 5
        peer.say(id=1, op="topics.watch", watching=False)
        await peer.hear()
        assert application.rooms.statistics()["watchers"] == 0
        peer.say(id=2, op="topics.watch")
        await peer.hear()
        assert application.rooms.statistics()["watchers"] == 1
        peer.cut()
        assert application.rooms.statistics()["watchers"] == 0
        refused = await connect(application).ask(id=9, op="topics.watch", limit=201)
        assert refused["code"] == "VALIDATION"


@contextlib.asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Callable[..., Client]]:
    """Serve a SQLite file on a port; gives what makes clients of subjects."""
    application = Application(await SqliteStore.open(path), secret=SECRET)
    sock = listen("127.0.0.1", 0)
    started = asyncio.Event()
    running = asyncio.create_task(serve(application, sock, started=started))
    await started.wait()

    def client(subject: str, pattern: str = "*", level: str = "admin") -> Client:
        token = issue(SECRET, subject, [(pattern, level)], seconds=600)
        return livetree.connect(f"ws://127.0.0.1:{sock.getsockname()[1]}", token=token)

    try:
        async with asyncio.timeout(60):
            yield client
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def shows(topics: TopicList, client: Client) -> None:
    """Wait until a list shows what the server lists, to the last field."""
    async with asyncio.timeout(20):
        while True:
            listed = (await client.topics(limit=200)).topics
            if sorted(topics.entries, key=_id) == sorted(listed, key=_id):
                return
            await asyncio.sleep(0.01)


def _id(entry: p.TopicEntry) -> str:
    return entry.id


async def test_two_devices_and_another_subject_on_a_real_server(tmp_path: Path):
    async with (
        serving(tmp_path / "livetree.db") as client,
        client("ann") as laptop,
        client("ann") as phone,
        client("bob") as bob,
        laptop.watch_topics() as on_laptop,
        phone.watch_topics() as on_phone,
        bob.watch_topics() as of_bob,
    ):
        lists = ((on_laptop, laptop), (on_phone, phone), (of_bob, bob))
        trip = await laptop.create_topic("Trip")
        other = await bob.create_topic("Other")
        for text in ("one", "two", "three"):
            await bob.create_message(trip.id, text, parent=trip.root_id)
        await laptop.create_message(trip.id, "mine", parent=trip.root_id)
        for topics, asking in lists:
            await shows(topics, asking)
        assert on_laptop.unread == on_phone.unread == 3
        assert of_bob.unread == 1

        read = await on_laptop.mark_read(trip.id)
        assert read.unread == on_laptop.unread == 0
        await on_phone.wait_for(lambda topics: topics.unread == 0)
        assert of_bob.unread == 1
        assert (await phone.mark_read(trip.id, 2)).read_seq == read.read_seq
        with pytest.raises(NotFound):
            await phone.mark_read("nothing")

        await bob.rename_topic(trip.id, "Renamed")
        hidden = await bob.create_topic("Hidden", temporary=True)
        await laptop.delete_topic(other.id)
        for topics, asking in lists:
            await shows(topics, asking)
            assert [each.name for each in topics.entries] == ["Renamed"]
        await laptop.restore_topic(other.id)
        await bob.persist_topic(hidden.id)
        for topics, asking in lists:
            await shows(topics, asking)
            assert {each.name for each in topics.entries} == {"Renamed", "Other", "Hidden"}


async def test_S12_paging_and_names_and_narrow_tokens_on_a_real_server(tmp_path: Path):
    async with serving(tmp_path / "livetree.db") as client, client("ann") as admin:
        for number in range(12):
            await admin.create_topic(f"Straße {number}", topic_id=f"t-{number}")
        await admin.create_topic("Private", topic_id="mine")

        ids: list[str] = []
        cursor = None
        while True:
            page = await admin.topics(cursor=cursor, limit=5, name="STRASSE 1")
            ids += [each.id for each in page.topics]
            if (cursor := page.next) is None:
                break
        assert ids == ["t-11", "t-10", "t-1"]
        with pytest.raises(Validation):
            await admin.topics(cursor="nonsense")

        async with (
            client("bob", "mine", "read") as narrow,
            narrow.watch_topics(limit=1) as topics,
        ):
            assert [each.id for each in topics.entries] == ["mine"]
            await admin.rename_topic("t-3", "STRASSE")
            await admin.delete_topic("t-4")
            await admin.create_message("mine", "hi", parent=(await admin.topic("mine")).root_id)
            await topics.wait_for(lambda topics: topics.unread == 1)
            assert [each.id for each in topics.entries] == ["mine"]
            assert (await narrow.topics(name="strasse")).topics == []
            with pytest.raises(Forbidden):
                await narrow.mark_read("t-3")
            assert (await topics.mark_read("mine")).unread == 0
            await admin.delete_topic("mine")
            await topics.wait_for(lambda topics: topics.entries == ())
