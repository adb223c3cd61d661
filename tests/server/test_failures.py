"""What the server does where something of its own fails: nobody waits for ever, nothing spins."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import livetree
import pytest
from livetree.core import protocol as p
from livetree.core.errors import Conflict, Internal, LivetreeError, NotFound, Unavailable
from livetree_server.app import Application
from livetree_server.storage.checking import Checker
from livetree_server.storage.erasing import Erasing
from livetree_server.storage.memory import MemoryStore
from livetree_server.topics.jobs import once
from livetree_server.topics.ports import StoreError
from livetree_server.topics.rooms import Settings
from sqlalchemy import create_engine

from tests.server.house import DAY, START, House

Answers = list[bytes | LivetreeError]


def now_and_ids() -> dict[str, Any]:
    numbers = iter(range(10**9))
    return {"clock": lambda: START, "ids": lambda: f"id-{next(numbers)}"}


async def quiet(application: Application) -> None:
    """Wait until no topic has anything to do."""
    while application.rooms._tasks:
        await asyncio.wait(application.rooms._tasks)


# Every job is answered once --------------------------------------------------------------------


def test_an_answer_is_given_once_and_its_failure_harms_nobody():
    told: list[int] = []
    answer = once(told.append)
    answer(1)
    answer(2)
    assert told == [1]

    def fail(_: int) -> None:
        raise ValueError

    once(fail)(1)


async def test_R1_who_asks_about_an_unknown_topic_is_answered_once_while_the_database_fails(
    monkeypatch: pytest.MonkeyPatch,
):
    store = MemoryStore()
    async with Application(store, **now_and_ids()) as application:
        rooms = application.rooms
        answers: dict[str, Answers] = {
            name: [] for name in ("read", "copy", "write", "create", "later")
        }
        read = p.TopicGet(topic="T")
        copy = p.TopicDuplicate(topic="T", node_id="x", mutation="m-copy")
        write = p.MessageCreate(topic="T", role="user", mutation="m-write")
        create = p.TopicCreate(topic="T", mutation="m-create")
        sound = store.mutations

        async def broken(keys: Any) -> Any:
            monkeypatch.setattr(store, "mutations", sound)
            raise StoreError("it can't be read")

        monkeypatch.setattr(store, "mutations", broken)
        rooms.ask(read, "T", answers["read"].append)
        rooms.duplicate(copy, "C", "ann", answers["copy"].append)
        rooms.command(write, "ann", answers["write"].append)
        rooms.command(create, "ann", answers["create"].append)
        await quiet(application)
        rooms.ask(read, "T", answers["later"].append)
        await quiet(application)

        assert {name: len(told) for name, told in answers.items()} == dict.fromkeys(answers, 1)
        assert isinstance(answers["create"][0], bytes)
        assert isinstance(answers["later"][0], bytes)
        assert isinstance(answers["write"][0], (NotFound, Unavailable, Internal))


async def test_T10_what_follows_on_a_repeated_restore_meets_the_topic_as_it_is():
    async with Application(MemoryStore(), **now_and_ids()) as application:
        told: Answers = []

        async def ask(command: p.Mutation) -> bytes | LivetreeError:
            answers: Answers = []
            application.rooms.command(command, "ann", answers.append)
            await quiet(application)
            return answers[0]

        await ask(p.TopicCreate(topic="T"))
        await ask(p.TopicDelete(topic="T"))
        restore = p.TopicRestore(topic="T", mutation="again")
        first = await ask(restore)
        await ask(p.TopicDelete(topic="T"))

        application.rooms.command(restore, "ann", told.append)
        application.rooms.command(p.TopicUpdate(topic="T", name="n"), "ann", told.append)
        await quiet(application)

        assert told[0] == first
        assert isinstance(told[1], NotFound), told[1]
        assert isinstance(await ask(p.TopicCreate(topic="T")), Conflict)


# The sweep -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", ["prune", "unused", "renew", "due"])
async def test_L10_what_fails_in_the_sweep_keeps_nothing_else_from_ending(
    monkeypatch: pytest.MonkeyPatch, fails: str
):
    store = MemoryStore()
    now = START
    settings = Settings(lease_grace_seconds=0, offer_seconds=5)
    numbers = iter(range(10**9))
    application = Application(
        store, clock=lambda: now, ids=lambda: f"id-{next(numbers)}", settings=settings
    )
    async with application:
        told: Answers = []
        turn = p.TurnSubmit(
            topic="T", user=p.Fresh(text="x"), placeholders=[p.Placeholder(message_id="a")]
        )
        application.rooms.command(p.TopicCreate(topic="T"), "ann", told.append)
        application.rooms.command(turn, "ann", told.append)
        await quiet(application)

        async def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("a fault")

        monkeypatch.setattr(store, fails, broken)
        now += 3 * 60 * 60 * 1000
        await application.rooms.sweep()
        await quiet(application)

        loaded = await store.load("T")
        assert loaded is not None
        ended = {node.id: node.status for node in loaded.nodes}["a"] == "error"
        assert ended == (fails != "due")


# Topics that can't be read -----------------------------------------------------------------------


@pytest.mark.parametrize("metadata", ["[]", "{", "7"])
async def test_a_topic_whose_row_cannot_be_read_is_refused_and_hides_no_other(
    tmp_path: Path, metadata: str
):
    async with House(tmp_path) as house:
        client = await house.client()
        await client.create_topic("broken", topic_id="B")
        await client.create_topic("sound", topic_id="S")
        await house.stop()
        with closing(sqlite3.connect(house.path)) as database, database:
            database.execute("UPDATE topic SET metadata = ? WHERE id = 'B'", (metadata,))
        await house.start()

        client = await house.client()
        async with asyncio.timeout(30):
            for _ in range(3):
                with pytest.raises(Internal, match="livetree check"):
                    await client.topic("B")
            with pytest.raises(Internal, match="livetree check"):
                await client.rename_topic("B", "x")
            assert [each.id for each in (await client.topics()).topics] == ["S"]
            async with client.watch_topics() as topics:
                assert [each.id for each in topics.entries] == ["S"]
            async with client.open("S") as live:
                await live.create("goes on")


async def test_a_refusal_names_what_was_asked_for_but_not_without_end(tmp_path: Path):
    async with House(tmp_path) as house:
        client = await house.client()
        topic = await client.create_topic("t")

        with pytest.raises(NotFound) as refusal:
            await client.path(topic.id, "x" * 500_000)

        assert len(str(refusal.value)) <= 1_000
        assert len(refusal.value.details["id"]) <= 200


async def fill(topic_id: str, client: livetree.Client) -> None:
    """Make more messages than are erased at once."""
    commands = [p.MessageCreate(role="user", parent="ROOT", text="x") for _ in range(200)]
    for _ in range(8):
        await client.batch(topic_id, commands)


# Erasing -----------------------------------------------------------------------------------------


async def test_T10_a_topic_that_was_restored_after_a_failed_erasing_stays(tmp_path: Path):
    async with House(tmp_path) as house:
        client = await house.client()
        await fill((await client.create_topic("t", topic_id="T")).id, client)
        await client.delete_topic("T")
        await house.stop()
        erasing = Erasing()
        engine = create_engine(f"sqlite:///{house.path}")
        with pytest.raises(OSError, match="full"), engine.begin() as tx:
            erasing(tx, house.now + 31 * DAY)
            raise OSError("the disk is full")
        with engine.begin() as tx:
            assert tx.exec_driver_sql("SELECT temporary FROM topic").scalar() == 0
            tx.exec_driver_sql("UPDATE topic SET deleted_at = NULL")

        with engine.begin() as tx:
            assert erasing(tx, house.now + 31 * DAY) == (False, False)

        assert house.ask("SELECT count(*) FROM message") == [(1_601,)]
        engine.dispose()


async def test_a_database_is_sound_while_a_topic_is_being_erased(tmp_path: Path):
    async with House(tmp_path) as house:
        client = await house.client()
        topic = await client.create_topic("t")
        await fill(topic.id, client)
        await client.delete_topic(topic.id)
        assert await house.application.store.prune(house.now + 31 * DAY), "it is not over yet"
        await house.stop()
        assert 0 < house.ask("SELECT count(*) FROM message")[0][0] < 1601

        checker = Checker.open(house.path, clock=lambda: START, new_id=lambda: "x")
        found = [str(each) for each in checker.check() if "Finding" in type(each).__name__]
        checker.close()

        assert found == []
