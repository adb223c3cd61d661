"""
For tests of programs that use livetree: time, network and server in the test's hands.

`MemoryServer` is a whole server in memory that imports nothing but the core; its sockets
can be cut, slowed and lied to. `HandCrankedTransport` has no server at all: the test
says each frame. `FakeClock` moves when it is told to.
"""

from .clock import FakeClock, FakeRandom, settle
from .server import MemoryConnection, MemoryServer
from .sockets import HandCrankedSocket, HandCrankedTransport
from .topic import MemoryTopic

__all__ = [
    "FakeClock",
    "FakeRandom",
    "HandCrankedSocket",
    "HandCrankedTransport",
    "MemoryConnection",
    "MemoryServer",
    "MemoryTopic",
    "settle",
]
