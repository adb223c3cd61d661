"""An OpenAI-compatible chat endpoint: messages go in, the answer comes out in pieces."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import httpx2

from .lines import MAX_LINE_BYTES, LineTooLong, lines

__all__ = ["Piece", "Upstream", "UpstreamError"]

PATH: Final = "/chat/completions"
CONNECT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 600.0
"""How long an endpoint may think before its next piece: local models load for minutes."""

MAX_ERROR_BYTES: Final = 64 * 1024
MAX_REASON_LENGTH: Final = 300

Piece: TypeAlias = tuple[Literal["text", "reasoning"], str]


class UpstreamError(Exception):
    """The endpoint gave no answer, or not all of it; ``str(error)`` says why."""


class Upstream:
    """
    One endpoint.

    Args:
        base_url: What stands before ``/chat/completions``, such as ``http://127.0.0.1:11434/v1``.
        key: What to send as bearer token, if anything.

    Use as an async context manager: leaving it closes its connections.

    """

    def __init__(self, base_url: str, key: str | None = None) -> None:
        self.url = base_url.rstrip("/").removesuffix(PATH) + PATH
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
        self._client = httpx2.AsyncClient(headers=headers, timeout=timeout)

    async def __aenter__(self) -> Upstream:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._client.__aexit__(*exc)

    async def answer(
        self, model: str, messages: Sequence[dict[str, Any]]
    ) -> AsyncGenerator[Piece, None]:
        """
        Ask for an answer and yield it as it is written.

        Closing the iterator early, or cancelling who waits for it, ends the request.

        Raises:
            UpstreamError: If there is no answer, or it breaks off.

        """
        body = {"model": model, "messages": [*messages], "stream": True}
        try:
            async with self._client.stream("POST", self.url, json=body) as response:
                if response.status_code != 200:
                    raise UpstreamError(await self._refusal(response))
                kind = response.headers.get("content-type", "")
                pieces = _whole(response) if "application/json" in kind else _streamed(response)
                async for piece in pieces:
                    yield piece
        except LineTooLong as error:
            raise UpstreamError(f"the answer of {self.url} is none: {error}") from None
        except httpx2.TimeoutException:
            raise UpstreamError(f"{self.url} doesn't answer") from None
        except httpx2.ConnectError as error:
            raise UpstreamError(f"{self.url} can't be reached: {error}") from None
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            raise UpstreamError(f"the answer of {self.url} broke off: {why}") from None

    async def _refusal(self, response: httpx2.Response) -> str:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > MAX_ERROR_BYTES:
                break
        text = bytes(body[:MAX_ERROR_BYTES]).decode(errors="replace")
        try:
            reason = _reason(json.loads(text))
        except (ValueError, RecursionError):
            reason = ""
        status = f"{response.status_code} {response.reason_phrase}".strip()
        said = _one_line(reason or text)
        return f"{self.url} answered {status}" + (f": {said}" if said else "")


async def _streamed(response: httpx2.Response) -> AsyncIterator[Piece]:
    ended = False
    async for line in lines(response.aiter_bytes()):
        if not line.startswith(b"data:"):
            continue  # a comment that keeps the connection open, or the name of an event
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        event = _object(data)
        if "error" in event:
            raise UpstreamError(f"the answer ended with an error: {_one_line(_reason(event))}")
        for choice in _list(event.get("choices")):
            for piece in _pieces(choice.get("delta")):
                yield piece
            ended = ended or choice.get("finish_reason") is not None
    if not ended:
        raise UpstreamError("the answer broke off before its end")


async def _whole(response: httpx2.Response) -> AsyncIterator[Piece]:
    """Take the answer of an endpoint that doesn't stream."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_LINE_BYTES:
            raise UpstreamError(f"the answer has more than {MAX_LINE_BYTES} bytes")
    answer = _object(bytes(body))
    choices = _list(answer.get("choices"))
    if not choices:
        raise UpstreamError(
            "the answer holds no choice" if "error" not in answer else _reason(answer)
        )
    for piece in _pieces(choices[0].get("message")):
        yield piece


def _pieces(message: Any) -> list[Piece]:
    if not isinstance(message, dict):
        return []
    found: list[Piece] = []
    for name in ("reasoning_content", "reasoning"):
        if isinstance(text := message.get(name), str) and text:
            found.append(("reasoning", text))
            break
    if isinstance(text := message.get("content"), str) and text:
        found.append(("text", text))
    return found


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UpstreamError(f"the answer holds what is no JSON object: {_one_line(repr(text))}")
    return value


def _list(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _reason(answer: Any) -> str:
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return error if isinstance(error, str) else json.dumps(error)


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_REASON_LENGTH else f"{text[:MAX_REASON_LENGTH]}…"
