"""A chat endpoint as other projects serve them, with faults to order; threads and sockets only."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WHOLE = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"reasoning_content": "Let me "}}]},
    {"choices": [{"delta": {"reasoning_content": "think."}}]},
    {"choices": [{"delta": {"content": "It is\u2028a "}}]},
    {"choices": [{"delta": {"content": "fine day: ☀"}}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"total_tokens": 7}},
]


class ChatEndpoint:
    """
    Answers ``POST /v1/chat/completions`` as the name of the model says.

    Attributes:
        url: The base URL.
        requests: What was asked, as (headers, body).
        gone: Set when the client of a ``slow`` answer has closed its request.

    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.gone = threading.Event()

    def answer(self, handler: _Handler, model: str) -> None:
        match model:
            case "down":
                handler.send(500, b'{"error": {"message": "the model\\nis overloaded"}}')
            case "plain":
                message = {"choices": [{"message": {"content": "All at once."}}]}
                handler.send(200, json.dumps(message).encode())
            case "broken":
                handler.stream(WHOLE[:4])
            case "faulty":
                handler.stream([*WHOLE[:4], {"error": {"message": "out of memory"}}])
            case "noise":
                handler.events(b"data: <html>\n\n")
            case "slow":
                handler.connection.settimeout(60)
                try:
                    handler.stream(WHOLE[:4])
                    # Nothing more comes from a client, except its end.
                    ended = handler.connection.recv(1) == b""
                except (BrokenPipeError, ConnectionResetError):
                    ended = True  # before it has read all that was sent
                if ended:
                    self.gone.set()
            case _:
                handler.stream(WHOLE)
                handler.events(b": ping\r\n\r\ndata: [DONE]\r\n\r\n")


class _Handler(BaseHTTPRequestHandler):
    endpoint: ChatEndpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.endpoint.requests.append((headers, body))
        if self.path != "/v1/chat/completions":
            self.send(404, b"no such page")
            return
        self._begun = False
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.endpoint.answer(self, body["model"])

    def send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            self.events(b"data: %b\n\n" % json.dumps(event, ensure_ascii=False).encode())

    def events(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
        for byte in range(0, len(data), 7):  # in pieces that end anywhere
            self.wfile.write(data[byte : byte + 7])

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def chat_endpoint() -> Iterator[ChatEndpoint]:
    endpoint = ChatEndpoint()
    handler = type("Handler", (_Handler,), {"endpoint": endpoint})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()
