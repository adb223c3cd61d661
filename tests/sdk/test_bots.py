import asyncio
import contextlib
import os
import signal
from typing import Any

import pytest
from livetree.bots import Bot, Prompt, Writer
from livetree.core import protocol as p
from livetree.core.errors import Busy, Conflict, Forbidden, InvalidOperation, LivetreeError
from livetree.testing import HandCrankedTransport, MemoryConnection

from tests.sdk.kit import World, settle, welcome
from tests.sdk.stage import Held, Stage, echo, stage

# Answering


async def test_L1_a_bot_answers_what_it_serves():
    async with stage() as it, it.bot(echo) as bot:
        reply = await it.ask("Where to go?")
        await it.live.wait_idle()

        assert it.live.text(reply) == "Wheretogo?"
        assert it.status(reply) == "success"
        await settle()
        assert bot.statistics()["written"] == 1
        it.world.check(it.live)


async def test_L1_the_first_handler_that_matches_answers():
    async with stage() as it:
        bot = it.world.bot()

        @bot.reply(models=["gpt-*", "a.c"])
        async def one(prompt: Prompt, writer: Writer) -> None:
            await writer.write(f"one: {prompt.model}")

        @bot.reply(models=["*"])
        async def rest(prompt: Prompt, writer: Writer) -> None:
            await writer.write(f"rest: {prompt.model}")

        async with bot:
            for model, text in [
                ("gpt-9", "one: gpt-9"),
                ("a.c", "one: a.c"),
                ("abc", "rest: abc"),
                ("my-gpt-9", "rest: my-gpt-9"),
                (None, "rest: None"),
            ]:
                turn = await it.live.submit("?", models=[model])
                await it.live.wait_idle()
                assert it.live.text(turn.placeholder_ids[0]) == text
        (serve, *_) = it.requests(p.BotServe)
        assert serve.models == ["gpt-*", "a.c", "*"]


async def test_the_prompt_is_the_path_above_the_reply():
    async with stage() as it, it.bot(echo):
        await it.live.create("Be brief.", role="system")
        await it.ask("one")
        await it.live.wait_idle()
        reply = await it.ask("two")
        await it.live.wait_idle()

        prompt = it.prompts[-1]
        assert prompt.messages == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "two"},
        ]
        assert [node.id for node in prompt.path] == [node.id for node in it.live.path()[:-1]]
        assert (prompt.topic_id, prompt.message_id, prompt.model) == (it.live.id, reply, "echo")
        assert prompt.partial == []


async def test_a_long_path_is_read_in_pages():
    async with stage() as it:
        for number in range(450):
            it.world.server.run(
                p.MessageCreate(topic=it.live.id, role="user", text=str(number), status="success")
            )
        await settle()
        async with it.bot(echo):
            await it.ask("last")
            await it.live.wait_idle()
        assert [each["content"] for each in it.prompts[0].messages] == [
            *map(str, range(450)),
            "last",
        ]
        assert len(it.requests(p.BranchGet)) == 3


async def test_a_path_that_changes_while_it_is_read_is_read_again():
    async with stage() as it:
        ids = [(await it.live.create(str(number))).message_id for number in range(250)]
        moved = False

        def move(_: MemoryConnection, command: p.Command) -> LivetreeError | None:
            nonlocal moved
            if isinstance(command, p.BranchGet) and command.cursor and not moved:
                moved = True
                # The cursor's message is no longer above the reply.
                it.world.server.run(
                    p.MessageCreate(
                        topic=it.live.id, role="user", text="x", parent="ROOT", set_active=False
                    )
                )
                return _stale()
            return None

        it.world.server.refuse = move
        async with it.bot(echo):
            await it.ask("last")
            await it.live.wait_idle()
        assert len(it.prompts[0].messages) == len(ids) + 1


def _stale() -> LivetreeError:
    from livetree.core.errors import StaleCursor

    return StaleCursor("read it again")


async def test_parts_of_all_kinds_are_written():
    async def answer(_: Prompt, writer: Writer) -> None:
        await writer.reasoning("hm")
        await writer.write("Hello")
        place = await writer.put_part({"type": "tool-look", "state": "input-available"})
        await writer.put_part({"type": "tool-look", "state": "output-available"}, at=place)
        await writer.write("\ud83d")
        await writer.write("\ude00")
        with pytest.raises(ValueError, match="type"):
            await writer.put_part({})
        writer.stats = {"tokens": 3}
        writer.timing = {"ms": 5}

    async with stage() as it, it.bot(answer):
        reply = await it.ask()
        await it.live.wait_idle()
        assert it.live.parts(reply) == [
            {"type": "reasoning", "text": "hm"},
            {"type": "text", "text": "Hello"},
            {"type": "tool-look", "state": "output-available"},
            {"type": "text", "text": "\U0001f600"},
        ]
        node = it.live.node(reply)
        assert node.stats is not None
        assert node.timing is not None
        assert (bytes(node.stats), bytes(node.timing)) == (b'{"tokens":3}', b'{"ms":5}')
        it.world.check(it.live)


async def test_an_answer_without_a_word_is_an_answer():
    async def answer(_: Prompt, __: Writer) -> None: ...

    async with stage() as it, it.bot(answer):
        reply = await it.ask()
        await it.live.wait_idle()
        assert (it.status(reply), it.live.text(reply)) == ("success", "")


async def test_half_a_pair_at_the_very_end_is_replaced():
    async def answer(_: Prompt, writer: Writer) -> None:
        await writer.write("a\ud83d")

    async with stage() as it, it.bot(answer):
        reply = await it.ask()
        await it.live.wait_idle()
        assert it.live.text(reply) == "a\ufffd"


async def test_viewers_see_the_text_grow():
    held = Held("Hel", "lo ")
    async with stage() as it, it.bot(held):
        reply = await it.ask()
        await it.live.wait_for(lambda live: live.text(reply) == "Hello ")
        it.world.check(it.live)
        held.go.set()
        await it.live.wait_idle()
        assert it.live.text(reply) == "Hello end"


async def test_a_handler_that_fails_ends_its_reply_as_an_error(caplog: pytest.LogCaptureFixture):
    async def answer(_: Prompt, writer: Writer) -> None:
        await writer.write("Hel")
        raise ZeroDivisionError("oops")

    async with stage() as it, it.bot(answer) as bot:
        reply = await it.ask()
        await it.live.wait_idle()
        assert (it.status(reply), it.live.text(reply)) == ("error", "Hel")
        await settle()
        assert bot.statistics()["failed"] == 1
        again = await it.ask()
        await it.live.wait_idle()
        assert it.status(again) == "error"
    assert "oops" in caplog.text


# Claiming


async def test_L2_of_several_bots_one_answers():
    async with stage() as it, it.bot(echo) as one, it.bot(echo) as other:
        for number in range(6):
            await it.ask(f"question {number}")
            await it.live.wait_idle()
        await settle()
        counts = [bot.statistics() for bot in (one, other)]
        assert sum(each["written"] for each in counts) == 6
        assert sum(each["lostRaces"] for each in counts) == 6
        assert len(it.prompts) == 6


@pytest.mark.parametrize("error", [Conflict("taken"), InvalidOperation("over"), Forbidden("no")])
async def test_L2_a_lost_race_is_no_fault(error: LivetreeError, caplog: pytest.LogCaptureFixture):
    async with stage() as it, it.bot(echo) as bot:
        it.world.server.refuse = lambda _, each: error if isinstance(each, p.StreamClaim) else None
        await it.ask()
        await settle()
        assert bot.statistics()["lostRaces"] == 1
        assert it.prompts == []
    assert caplog.text == ""


async def test_L1_offers_that_were_open_before_are_answered():
    async with stage() as it:
        reply = await it.ask()
        async with it.bot(echo):
            await it.live.wait_idle()
        assert it.status(reply) == "success"


async def test_only_so_many_are_answered_at_a_time():
    held = Held()
    async with stage() as it, it.bot(held, models=["*"], concurrency=2) as bot:
        await it.live.submit("?", models=["a", "b", "c", "d", "e"])
        await settle()
        assert len(it.prompts) == 2
        assert bot.statistics()["running"] == 2
        assert bot.statistics()["backlog"] == 3
        held.go.set()
        await it.live.wait_idle()
        assert len(it.prompts) == 5


async def test_R6_offers_beyond_the_backlog_are_asked_for_again():
    held = Held()
    async with stage() as it, it.bot(held, models=["*"], concurrency=1, backlog=2) as bot:
        await it.live.submit("?", models=["a", "b", "c", "d", "e", "f"])
        await settle()
        assert bot.statistics()["backlog"] == 2
        assert bot.statistics()["missed"] == 3
        held.go.set()
        await it.live.wait_idle()
        assert len(it.prompts) == 6
        await it.ask("?", "g")
        await it.live.wait_idle()
        assert len(it.prompts) == 7


async def test_an_offer_that_comes_twice_is_answered_once():
    held = Held()
    async with stage() as it, it.bot(held) as bot:
        await it.ask()
        await settle()
        for _ in range(3):
            it.bot_connection.push(
                p.Offer(topic=it.live.id, message_id=it.prompts[0].message_id, model="echo")
            )
        await settle()
        held.go.set()
        await it.live.wait_idle()
        await settle()
        assert len(it.prompts) == 1
        assert bot.statistics()["lostRaces"] == 1


# Starting and stopping


async def test_stopping_lets_running_handlers_finish():
    held = Held("Hel")
    async with stage() as it:
        bot = it.bot(held)
        await bot.__aenter__()
        reply = await it.ask()
        await settle()
        leaving = asyncio.create_task(bot.__aexit__(None, None, None))
        await it.world.clock.elapse(5)
        assert not leaving.done()
        assert it.bot_connection.models == []
        held.go.set()
        await leaving

        await it.live.wait_idle()
        assert (it.live.text(reply), it.status(reply)) == ("Helend", "success")


async def test_stopping_leaves_the_rest_to_others():
    held = Held("Hel")
    async with stage() as it:
        bot = it.bot(held, grace_seconds=10)
        await bot.__aenter__()
        reply = await it.ask()
        await settle()
        leaving = asyncio.create_task(bot.__aexit__(None, None, None))
        await it.world.clock.elapse(11)
        await leaving

        assert isinstance(it.ended[0], asyncio.CancelledError)
        assert it.requests(p.StreamFinish) == []
        assert it.live.tree.live[reply] > 0
        before = len(it.requests(p.StreamRenew))
        await it.world.clock.elapse(60)
        assert len(it.requests(p.StreamRenew)) == before


async def test_serving_ends_when_it_is_cancelled():
    async with stage() as it:
        serving = asyncio.create_task(it.bot(echo).serve())
        await settle()
        reply = await it.ask()
        await it.live.wait_idle()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert it.status(reply) == "success"
        assert it.bot_connection.closed is not None


async def test_a_second_cancellation_takes_the_grace_away():
    held = Held()
    async with stage() as it:
        serving = asyncio.create_task(it.bot(held, grace_seconds=1000).serve())
        await settle()
        await it.ask()
        await settle()
        serving.cancel()
        await settle()
        assert not serving.done()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert len(it.ended) == 1


async def test_H3_a_bot_that_is_refused_says_so():
    world = World()
    world.server.tokens = {"good"}
    async with world.open(token="good") as (client, live):
        it = Stage(world, client, live)
        with pytest.raises(LivetreeError, match="token"):
            await it.bot(echo, token="bad").serve()

        bot = it.bot(echo, token="good")
        serving = asyncio.create_task(bot.serve())
        await settle()
        it.bot_connection.drop(4403, "not any more")
        with pytest.raises(Forbidden, match="not any more"):
            await serving


async def test_a_bot_that_may_not_serve_says_so():
    async with stage() as it:
        it.world.server.refuse = lambda _, each: (
            Forbidden("no bots here") if isinstance(each, p.BotServe) and each.models else None
        )
        with pytest.raises(Forbidden, match="no bots"):
            await it.bot(echo).serve()


async def test_a_server_without_time_is_asked_for_offers_again():
    async with stage() as it:
        refusals = iter([Busy("later")] * 10)
        it.world.server.refuse = lambda _, each: (
            next(refusals, None) if isinstance(each, p.BotServe) else None
        )
        async with it.bot(echo):
            reply = await it.ask()
            await it.world.clock.elapse(30)
            await it.live.wait_idle()
            assert it.status(reply) == "success"


async def test_a_bot_waits_for_its_server():
    world = World()
    world.server.reachable = False
    bot = world.bot()
    bot.reply(models=["echo"])(echo)
    serving = asyncio.create_task(bot.serve())
    await world.clock.elapse(300)
    assert not serving.done()
    world.server.reachable = True
    await world.clock.elapse(11)
    assert world.server.connection.models == ["echo"]
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert len(asyncio.all_tasks()) == 1
    assert world.clock.due == []


async def test_a_bot_is_started_once_and_with_a_handler():
    world = World()
    with pytest.raises(RuntimeError, match="handler"):
        await world.bot().__aenter__()
    bot = world.bot()
    bot.reply(models=["echo"])(echo)
    async with bot:
        with pytest.raises(RuntimeError, match="once"):
            await bot.__aenter__()
    assert "Bot" in repr(bot)


@pytest.mark.parametrize("at", range(0, 60, 3))
async def test_cancelling_a_bot_at_any_await_leaves_nothing_behind(at: int):
    async with stage() as it:
        tasks = len(asyncio.all_tasks())
        await it.ask("a b c")
        serving = asyncio.create_task(it.bot(echo, grace_seconds=0).serve())
        for _ in range(at):
            await asyncio.sleep(0)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(asyncio.wait([serving, asyncio.create_task(settle())]))
        await it.world.clock.elapse(0)
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        await settle()
        assert len(asyncio.all_tasks()) == tasks
        it.world.check(it.live)


async def test_a_writer_says_how_it_is():
    held = Held("a")
    async with stage() as it, it.bot(held) as bot:
        await it.ask()
        await settle()
        writer = it.writers[0]
        assert "writing" in repr(writer)
        assert writer.statistics()["received"] == 1
        assert bot.statistics()["running"] == 1
        held.go.set()


def test_run_ends_with_a_signal():
    transport = HandCrankedTransport()
    bot = Bot("ws://server", transport=transport)

    @bot.reply(models=["echo"])
    async def answer(_: Prompt, __: Writer) -> None: ...

    async def open_and_signal(url: str) -> Any:
        socket = await HandCrankedTransport.open(transport, url)
        transport.socket.push(welcome())
        loop = asyncio.get_running_loop()
        loop.call_soon(os.kill, os.getpid(), signal.SIGTERM)
        return socket

    transport.open = open_and_signal  # type: ignore[method-assign]
    bot.run()
    assert transport.socket.closed is not None
