"""The Starlette application beside the websocket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import msgspec
from livetree.core.errors import Forbidden, LivetreeError, Unauthenticated
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive

from ..auth import WRITE, Authenticator, Grant

__all__ = ["make_site"]

Importer = Callable[[AsyncIterator[bytes], str, str, bool], AsyncIterator[dict[str, Any]]]

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>livetree</title>
<style>
  body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto }}
  code, pre {{ background: #8881; padding: .1em .3em; border-radius: .2em }}
  pre {{ padding: .8em 1em; overflow: auto }}
</style>
<h1>livetree {version}</h1>
<p>The server is running. Clients connect to <code>{scheme}://{host}/v1/ws</code>.</p>
<pre>livetree topics
livetree import conversations.json
livetree tail TOPIC
livetree say TOPIC "Hello" --model echo</pre>
<p>State: <a href="/healthz">healthz</a>, <a href="/readyz">readyz</a>.</p>
</html>
"""


def make_site(
    *,
    auth: Authenticator,
    version: str,
    ready: Callable[[], Awaitable[dict[str, Any]]],
    bring_in: Importer,
) -> Starlette:
    """
    Make the HTTP application.

    Args:
        auth: Who may bring conversations in.
        version: The server's version, shown on the front page.
        ready: Returns figures, or raises if the server can't do its work.
        bring_in: Imports a file that arrives in chunks, and tells its progress.

    """

    async def page(request: Request) -> Response:
        scheme = "wss" if request.url.scheme == "https" else "ws"
        host = request.url.netloc.replace("<", "").replace("&", "")
        return HTMLResponse(_PAGE.format(version=version, scheme=scheme, host=host))

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "version": version})

    async def readiness(_: Request) -> Response:
        try:
            return JSONResponse({"status": "ready", **await ready()})
        except Exception as error:
            return JSONResponse({"status": "not ready", "reason": str(error)}, status_code=503)

    async def import_file(request: Request) -> Response:
        try:
            grant = _grant(auth, request)
        except LivetreeError as error:
            status = 401 if isinstance(error, Unauthenticated) else 403
            return _refusal(error, status)
        name = request.query_params.get("name", "")
        strict = request.query_params.get("strict") == "true"
        progress = bring_in(request.stream(), name, grant.subject, strict)

        async def lines() -> AsyncIterator[bytes]:
            # Who goes before the file is whole has imported nothing.
            with contextlib.suppress(ClientDisconnect):
                async for each in progress:
                    yield msgspec.json.encode(each) + b"\n"

        return _Duplex(lines(), media_type="application/x-ndjson")

    return Starlette(
        routes=[
            Route("/", page),
            Route("/healthz", health),
            Route("/readyz", readiness),
            Route("/v1/import", import_file, methods=["POST"]),
        ]
    )


class _Duplex(StreamingResponse):
    """An answer that is made while the request is being read."""

    async def listen_for_disconnect(self, receive: Receive) -> None:
        """Leave the request alone: each message has one reader, and that isn't this one."""
        await anyio.sleep_forever()


def _grant(auth: Authenticator, request: Request) -> Grant:
    if auth.open:
        host = request.url.hostname
        if host not in ("localhost", "127.0.0.1", "::1") or "origin" in request.headers:
            raise Forbidden("without a secret only programs on this machine may bring files in")
        return auth.grant(None)
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        raise Unauthenticated("send the token in an Authorization: Bearer header")
    grant = auth.grant(token)
    if not any(pattern == "*" and level >= WRITE for pattern, level in grant.patterns):
        raise Forbidden("bringing conversations in needs a token that may write every topic")
    return grant


def _refusal(error: LivetreeError, status: int) -> Response:
    return JSONResponse({"code": error.code, "message": str(error)}, status_code=status)
