"""The numbers of `docs/operations.md` are those of the code."""

from __future__ import annotations

import inspect
import re

from livetree.core.canonical import MAX_DEPTH
from livetree.core.content import MAX_DATA_BYTES
from livetree.core.live import MAX_OPS, MAX_PARTS
from livetree.core.plan import MAX_METADATA_BYTES
from livetree.core.protocol import StreamClaim
from livetree.formats.json_stream import MAX_RECORD_BYTES
from livetree_server import app, auth, config
from livetree_server.gateway import endpoint, requests, session
from livetree_server.http import door
from livetree_server.hub import hub
from livetree_server.hub.connection import FLOOD, HIGH_WATER
from livetree_server.storage import erasing, pruning
from livetree_server.topics import listing, ports, reading, watching
from livetree_server.topics.rooms import Settings

from tests.docs.blocks import ROOT

DAY = 24 * 60 * 60 * 1000
PAGE = (ROOT / "docs/operations.md").read_text("utf-8")


def size(number: int) -> str:
    for unit in ("", "KiB", "MiB", "GiB"):
        if number < 1024 or number % 1024:
            return f"{number} {unit}".strip()
        number //= 1024
    raise AssertionError(number)


def test_limits_are_those_of_the_code():
    settings = Settings()
    connections = inspect.signature(hub.Hub).parameters["limit"].default
    limits = {
        "connections": f"{connections:,}",
        "a frame, before and after hello": f"{size(session.HELLO_BYTES)}, "
        f"{size(endpoint.MAX_FRAME_BYTES)}",
        "`data` of one message, a live reply": size(MAX_DATA_BYTES),
        "metadata of a topic": size(MAX_METADATA_BYTES),
        "nesting of JSON": f"{MAX_DEPTH} levels",
        "parts of one reply": f"{MAX_PARTS:,}",
        "open topics of one connection": f"{requests.MAX_SUBSCRIPTIONS}",
        "unanswered requests of one connection, before it isn't read": (
            f"{endpoint.MAX_UNANSWERED}"
        ),
        "commands that wait in one topic": f"{settings.queue_length:,}",
        "bytes that wait for one slow reader, before it is skipped": size(HIGH_WATER),
        "bytes of answers that one connection leaves unread, until it is cut": size(FLOOD),
        "content in one answer, about; the rest is asked for again": size(reading.ANSWER_BYTES),
        "topics looked through for one page of the list, which is short then": (
            f"{listing.LOOKED_THROUGH:,}"
        ),
        "time from one telling of the list of topics to the next": (
            f"{watching.ROUND_SECONDS * 1000:.0f} ms"
        ),
        "content of a path that is copied": size(reading.COPY_BYTES),
        "content that one undo or restore brings back; the rest comes in parts": (
            size(ports.TRASH_BYTES)
        ),
        "time in the trash, of messages and topics": f"{erasing.TRASH_AGE // DAY} days",
        "time a temporary topic is kept that nobody uses": (
            f"{settings.unused_seconds / 60:.0f} minutes"
        ),
        "ops of one reply": f"{MAX_OPS:,}",
        "head of a request, and the time until it is complete": (
            f"{size(door.HEAD_BYTES)}, {door.HEAD_SECONDS:.0f} s"
        ),
        "time until a peer says hello": f"{endpoint.HELLO_SECONDS:.0f} s",
        "silence of a peer, until it is cut": f"{hub.SILENCE_SECONDS:.0f} s",
        "time a reader may stay too slow for its answers": f"{hub.SLOW_SECONDS:.0f} s",
        "time an offer waits for a bot, until the reply ends as an error": (
            f"{settings.offer_seconds:.0f} s"
        ),
        "time a bot may be silent, until its reply is offered again": (
            f"{StreamClaim(message_id='a').lease_ms // 1000} s"
        ),
        "file imported over HTTP": size(app.MAX_IMPORT_BYTES),
        "one conversation of an imported file": size(MAX_RECORD_BYTES),
    }
    section = PAGE.partition("## Limits")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE))
    del rows["what"], rows["---"]

    assert rows == limits


def test_times_are_those_of_the_code():
    day = 24 * 60 * 60 * 1000
    assert (7 * day, 10_000) == (pruning.EVENT_AGE, pruning.EVENTS_PER_TOPIC)
    assert "the changes of the last 7 days, at most 10,000 a topic" in PAGE
    assert 30 * day == pruning.MUTATION_AGE
    assert "of each command is kept for 30 days" in PAGE
    assert hub.PING_SECONDS == 20
    assert "silent for more than 20 seconds" in PAGE
    assert auth.MIN_SECRET_BYTES == config.MIN_SECRET_BYTES == 32
    assert "32 bytes or more" in PAGE
