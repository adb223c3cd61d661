"""OpenAI-compatible endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest
from livetree_server.cli.upstream import Piece, Upstream, UpstreamError

from tests.server.chat_endpoint import ChatEndpoint, chat_endpoint

MESSAGES = [{"role": "user", "content": "What is the weather like?"}]


@pytest.fixture
def endpoint() -> Iterator[ChatEndpoint]:
    with chat_endpoint() as endpoint:
        yield endpoint


async def answer_of(url: str, model: str, key: str | None = None) -> list[Piece]:
    async with Upstream(url, key) as upstream:
        return [piece async for piece in upstream.answer(model, MESSAGES)]


async def test_an_answer_comes_in_pieces(endpoint: ChatEndpoint):
    assert await answer_of(endpoint.url, "good", "k-1") == [
        ("reasoning", "Let me "),
        ("reasoning", "think."),
        ("text", "It is\u2028a "),
        ("text", "fine day: ☀"),
    ]
    [(headers, body)] = endpoint.requests
    assert headers["authorization"] == "Bearer k-1"
    assert body == {"model": "good", "messages": MESSAGES, "stream": True}


async def test_without_a_key_none_is_sent(endpoint: ChatEndpoint):
    await answer_of(endpoint.url + "/", "good")

    assert "authorization" not in endpoint.requests[0][0]


async def test_an_endpoint_that_does_not_stream_answers_at_once(endpoint: ChatEndpoint):
    assert await answer_of(endpoint.url, "plain") == [("text", "All at once.")]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("down", r"answered 500 Internal Server Error: the model is overloaded$"),
        ("broken", r"broke off"),
        ("faulty", r"ended with an error: out of memory$"),
        ("noise", r"no JSON object: b'<html>'$"),
    ],
)
async def test_what_is_no_answer_is_told_in_a_sentence(
    endpoint: ChatEndpoint, model: str, says: str
):
    with pytest.raises(UpstreamError, match=says):
        await answer_of(endpoint.url, model)


async def test_a_wrong_path_is_told(endpoint: ChatEndpoint):
    with pytest.raises(UpstreamError, match=r"/v2/chat/completions answered 404 .*: no such page$"):
        await answer_of(endpoint.url.replace("/v1", "/v2"), "good")


async def test_an_endpoint_that_is_not_there_is_told():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        port = taken.getsockname()[1]
        with pytest.raises(UpstreamError, match="can't be reached"):
            await answer_of(f"http://127.0.0.1:{port}/v1", "good")


async def test_closing_the_answer_early_ends_the_request(endpoint: ChatEndpoint):
    async with (
        Upstream(endpoint.url) as upstream,
        contextlib.aclosing(upstream.answer("slow", MESSAGES)) as pieces,
    ):
        async for _ in pieces:
            break

    assert await asyncio.to_thread(endpoint.gone.wait, 30)
