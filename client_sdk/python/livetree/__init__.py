"""
livetree: branching AI conversations, mirrored live.

A program that shows conversations connects, opens a topic and follows it::

    async with livetree.connect("ws://127.0.0.1:8400") as client:
        topic = await client.create_topic("Trip plan")
        async with client.open(topic.id) as live:
            await live.submit("Where to?", models=["echo"])
            async for change in live.changes():
                render(live.path())

A program that writes replies is a `Bot`. Everything that the server refuses is raised
as a `LivetreeError`, one kind for each code.
"""

from . import changes
from .bots import Bot, Prompt, Writer
from .client import Client, connect
from .core.errors import (
    Busy,
    Conflict,
    Forbidden,
    Internal,
    InvalidOperation,
    LivetreeError,
    NotFound,
    RateLimited,
    StaleCursor,
    StaleStream,
    TooLarge,
    TopicLive,
    Unauthenticated,
    Unavailable,
    Validation,
)
from .live_topic import LiveTopic
from .session import ClientClosed
from .topic_list import TopicList

__all__ = [
    "Bot",
    "Busy",
    "Client",
    "ClientClosed",
    "Conflict",
    "Forbidden",
    "Internal",
    "InvalidOperation",
    "LiveTopic",
    "LivetreeError",
    "NotFound",
    "Prompt",
    "RateLimited",
    "StaleCursor",
    "StaleStream",
    "TooLarge",
    "TopicList",
    "TopicLive",
    "Unauthenticated",
    "Unavailable",
    "Validation",
    "Writer",
    "changes",
    "connect",
]
