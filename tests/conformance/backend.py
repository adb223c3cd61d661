"""What the cases are run through: the words of a backend, and rows as the cases write them."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from livetree.core import protocol as p
from livetree.core.content import text_of
from livetree.core.view import View
from livetree.formats import Conversation
from msgspec import UNSET, Raw, Struct

Row = dict[str, Any]


class Refused(Exception):
    """A step was refused, with a code of the cases."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code


class Pen(Struct):
    """What the writer of a live reply has in hand: its claim, and how many ops it has sent."""

    epoch: int
    n: int = 0


class Seed(Struct, frozen=True):
    """
    A topic that a case begins with.

    Attributes:
        id: Its id; `root_id` is that of its virtual root.
        active: The active node.
        activity: `lastActivityAt`.
        nodes: Its messages.
        live: Those of them into which a reply is being written.

    """

    id: str
    root_id: str
    active: str | None
    activity: int
    nodes: list[p.Node]
    live: list[str]


class Stored(Struct, frozen=True):
    """A topic as it is: its virtual root is among the rows."""

    root_id: str
    active: str | None
    activity: int
    rows: dict[str, Row]


class Backend(Protocol):
    """
    A core, a server or a store that cases are run through; each case gets a new one.

    Attributes:
        name: How failures call it.
        features: What of a case's ``needs`` it has.
        lacks: Ops that others have and this one doesn't.
        pens: Those of the replies that are being written, by message.

    """

    name: str
    features: frozenset[str]
    lacks: frozenset[str]
    pens: dict[str, Pen]

    def seed(self, topics: Sequence[Seed]) -> None:
        """Make the topics, as they are and in one step each."""

    def request(self, command: dict[str, Any], now: int | None) -> dict[str, Any]:
        """
        Carry out one command of the protocol, in JSON as on the wire, and return its result.

        Args:
            command: The request, without ``id`` and ``mutation``.
            now: The server's time in ms; None for its own, later than any before.

        Raises:
            Refused: If it is refused.

        """

    def append(self, topic: str, message_id: str, pen: Pen, text: str) -> None:
        """Append text to a live reply, as its writer, in the op after ``pen.n``."""

    def written(self, topic: str) -> dict[str, str] | None:
        """Return what a viewer who joins sees of the live replies; None if there are none."""

    def raw(self, step: dict[str, Any]) -> None:
        """Write to the store past all rules, and forget what was loaded of it."""

    def view(self, topic: str) -> View:
        """Return a topic as a client has it; raises `Refused` if there is none."""

    def bring_in(self, conversation: Conversation) -> None:
        """Make a topic of an imported conversation, under the id that this had."""

    def stored(self) -> dict[str, Stored]:
        """Read back every topic that there is, by its id."""

    def temporary(self, topic: str) -> int | None:
        """Return how many messages a temporary topic has; None if there is none."""

    def reconcile(self, now: int | None) -> None:
        """Let the server sweep once, the time of every pending reply taken as up."""

    def check(self) -> None:
        """Raise `AssertionError` if what the backend itself promises doesn't hold."""

    def close(self) -> None:
        """Let go of everything."""


def row_of(node: p.Node) -> Row:
    """Return a message as the cases write it."""
    assert node.data is not UNSET
    data = msgspec.json.decode(node.data)
    text = text_of(node.data)
    context = {} if node.context is None else msgspec.json.decode(node.context)
    return {
        "id": node.id,
        "parent": node.parent_id,
        "role": node.role,
        "status": node.status,
        "group": node.siblings_group_id,
        # To a case "" means no parts at all.
        "text": text if text or not data["parts"] else None,
        "data": data,
        "model": node.model_id,
        "createdAt": node.created_at,
        "updatedAt": node.updated_at,
        "deletedAt": None,
        "contextTokens": context.get("contextTokens"),
        "compactionSummary": context.get("compactionSummary"),
        "stats": {} if node.stats is None else msgspec.json.decode(node.stats),
        "timing": None if node.timing is None else msgspec.json.decode(node.timing),
    }


def root_row(root_id: str) -> Row:
    """Return the row of a virtual root, where nothing more is known of it."""
    return {
        "id": root_id,
        "parent": None,
        "role": "root",
        "status": "success",
        "group": 0,
        "text": "",
        "data": {"parts": []},
        "deletedAt": None,
    }


def node_of(row: Row, place: int) -> p.Node:
    """Return the message that a case's row stands for; its place in its list gives its time."""
    if unknown := {*row} - ROW_KEYS:
        raise ValueError(f"row {row.get('id')} has unknown keys {sorted(unknown)}")
    at = row.get("createdAt", 100 * place)
    context = {key: row[key] for key in ANCHORS if row.get(key) is not None}
    return p.Node(
        id=row["id"],
        parent_id=row["parent"],
        role=row["role"],
        status=row.get("status", "success"),
        siblings_group_id=row.get("group", 0),
        data=data_of(row),
        model_id=row.get("model"),
        stats=raw_of(row.get("stats")),
        timing=raw_of(row.get("timing")),
        context=raw_of(context or None),
        version=0,
        created_at=at,
        updated_at=row.get("updatedAt", at),
    )


ANCHORS = ("contextTokens", "compactionSummary")
ROW_KEYS = {
    *("id", "parent", "role", "text", "data", "status", "group", "model", "createdAt"),
    *("updatedAt", "deletedAt", "stats", "timing", *ANCHORS),
}


def data_of(row: Row) -> Raw:
    """Return the data of a row or step: what it says, or its text as the only part."""
    if "data" in row:
        return Raw(msgspec.json.encode(row["data"]))
    parts = [{"type": "text", "text": row["text"]}] if row["text"] else []
    return Raw(msgspec.json.encode({"parts": parts}))


def raw_of(value: Any) -> Raw | None:
    """Return a JSON value as text; an empty one stays away."""
    return Raw(msgspec.json.encode(value)) if value else None
