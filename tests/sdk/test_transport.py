import asyncio

import pytest
from livetree.core.protocol import PROTOCOL
from livetree.transport import SocketClosed, WebSocketTransport, endpoint_of
from websockets.asyncio.server import ServerConnection, serve


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("ws://127.0.0.1:8400", "ws://127.0.0.1:8400/v1/ws"),
        ("ws://127.0.0.1:8400/", "ws://127.0.0.1:8400/v1/ws"),
        ("http://127.0.0.1:8400", "ws://127.0.0.1:8400/v1/ws"),
        ("https://chat.example", "wss://chat.example/v1/ws"),
        ("wss://chat.example/tree/ws", "wss://chat.example/tree/ws"),
        ("ws://[::1]:8400?a=b", "ws://[::1]:8400/v1/ws?a=b"),
    ],
)
def test_a_url_without_a_path_is_the_endpoint_of_its_server(url: str, endpoint: str):
    assert endpoint_of(url) == endpoint


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8400", "ftp://host", "ws://", "", "ws://me:secret@host", "ws://host/#part"],
)
def test_what_is_no_url_is_refused(url: str):
    with pytest.raises(ValueError, match="URL"):
        endpoint_of(url)


async def test_frames_and_close_codes_cross_the_network():
    async def handler(connection: ServerConnection) -> None:
        assert connection.subprotocol == PROTOCOL
        await connection.send(f"you said {await connection.recv()}")
        await connection.close(4401, "no token")

    async with serve(handler, "127.0.0.1", 0, subprotocols=[PROTOCOL]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        socket = await WebSocketTransport().open(f"ws://127.0.0.1:{port}/v1/ws")
        await socket.send("hello")

        assert await socket.recv() == "you said hello"
        with pytest.raises(SocketClosed) as closed:
            await socket.recv()
        assert (closed.value.code, closed.value.reason) == (4401, "no token")
        with pytest.raises(SocketClosed):
            await socket.send("again")
        await socket.close()
        await socket.close()


async def test_a_binary_frame_ends_the_connection():
    async def handler(connection: ServerConnection) -> None:
        await connection.send(b"bytes")
        await connection.wait_closed()

    async with serve(handler, "127.0.0.1", 0, subprotocols=[PROTOCOL]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        socket = await WebSocketTransport().open(f"ws://127.0.0.1:{port}/v1/ws")
        with pytest.raises(SocketClosed) as closed:
            await socket.recv()
        assert closed.value.code == 1003
        await socket.close()


async def test_what_is_no_endpoint_is_a_failed_try():
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionError, match="no livetree endpoint"):
            await WebSocketTransport().open(f"ws://127.0.0.1:{port}/v1/ws")


async def test_an_unreachable_host_is_a_failed_try():
    with pytest.raises(OSError):  # noqa: PT011 -- whatever the system says
        await WebSocketTransport().open("ws://127.0.0.1:1/v1/ws")
