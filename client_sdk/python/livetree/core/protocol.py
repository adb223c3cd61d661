"""
Everything that crosses the wire, as structs: commands, deltas and frames.

``docs/schema.json`` is generated from this module. Field names are camelCase on the
wire. Requests refuse unknown fields, so a misspelt one is told to its sender; frames
from the server tolerate them, so an older client can read a newer server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import force_setattr

from .canonical import MAX_INTEGER

__all__ = [
    "COMMANDS",
    "LARGE_DELTA_BYTES",
    "MUTATIONS",
    "PROTOCOL",
    "Batch",
    "BotServe",
    "BranchGet",
    "BranchReserve",
    "Cause",
    "Close",
    "Command",
    "Delta",
    "ErrorFrame",
    "Existing",
    "Fresh",
    "Gone",
    "Hello",
    "Limits",
    "LiveText",
    "MessageCreate",
    "MessageCreateSibling",
    "MessageDelete",
    "MessageDeleteGroup",
    "MessageGet",
    "MessageRestore",
    "MessageRetry",
    "MessageUpdate",
    "Mutation",
    "Node",
    "Offer",
    "PathGet",
    "PathThrough",
    "Ping",
    "Placeholder",
    "Pong",
    "Put",
    "PutOp",
    "Read",
    "ReadPosition",
    "Reserved",
    "ResultFrame",
    "Resume",
    "Snapshot",
    "Stream",
    "StreamAbort",
    "StreamAck",
    "StreamAppend",
    "StreamClaim",
    "StreamFinish",
    "StreamRenew",
    "Synced",
    "TextOp",
    "TopicClear",
    "TopicClose",
    "TopicCreate",
    "TopicDelete",
    "TopicDeltas",
    "TopicDuplicate",
    "TopicEntry",
    "TopicGet",
    "TopicInfo",
    "TopicList",
    "TopicMarkRead",
    "TopicOpen",
    "TopicPersist",
    "TopicRestore",
    "TopicSetActive",
    "TopicSetMetadata",
    "TopicSetMetadataNamespace",
    "TopicUndo",
    "TopicUpdate",
    "Topics",
    "TopicsWatch",
    "TrashList",
    "TreeGet",
    "TurnSubmit",
    "Welcome",
    "decode_command",
    "decode_frame",
    "encode",
]

PROTOCOL: Final = "livetree.v1"
"""The WebSocket subprotocol, and what ``hello`` names."""

LARGE_DELTA_BYTES: Final = 256 * 1024
"""A delta over this reaches subscribers as ``large`` and is fetched by ``topic.deltas``."""

Role: TypeAlias = Literal["user", "assistant", "system", "tool"]
Status: TypeAlias = Literal["pending", "success", "error", "paused"]
Ended: TypeAlias = Literal["success", "error", "paused"]
WhenLive: TypeAlias = Literal["reject", "steer"]

Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Name: TypeAlias = Annotated[str, Meta(max_length=500)]
Key: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Group: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MutationId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Text: TypeAlias = str

if TYPE_CHECKING:
    NullableRaw: TypeAlias = Raw | None
else:
    # Of `Raw | None` msgspec would take null alone: null comes as Raw, and `_read_null` turns it.
    NullableRaw = Raw

encode = msgspec.json.Encoder().encode

_NULL: Final = Raw(b"null")


def _read_null(struct: Struct, *names: str) -> None:
    """Make None of the fields that came as the text ``null``."""
    for name in names:
        if getattr(struct, name) == _NULL:
            force_setattr(struct, name, None)


class Close:
    """Close codes: 44xx means don't come back unchanged, 10xx means reconnect."""

    PROTOCOL_ERROR: Final = 4400
    UNAUTHENTICATED: Final = 4401
    FORBIDDEN: Final = 4403
    NO_HELLO: Final = 4408
    TOO_LARGE: Final = 4413
    RATE_LIMITED: Final = 4429
    RESTARTING: Final = 1012
    OVERLOADED: Final = 1013


# Messages and deltas --------------------------------------------------------------------


class Node(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """
    One message, as both sides hold it and as snapshots and reads carry it.

    ``data`` is the JSON text of ``{"parts": [...]}``, untouched; left out of a
    *skeleton*, which has ``preview`` and ``empty`` in its place. ``decisions``,
    ``stats``, ``timing`` and ``context`` are JSON objects. Times are milliseconds since
    the epoch, UTC; ``version`` is the `seq` of the commit that last put the row.

    """

    id: str
    parent_id: str
    role: Role
    status: Status = "success"
    siblings_group_id: int = 0
    data: Raw | UnsetType = UNSET
    preview: str = ""
    empty: bool = False
    decisions: NullableRaw = None
    model_id: str | None = None
    author: str | None = None
    stats: NullableRaw = None
    timing: NullableRaw = None
    context: NullableRaw = None
    version: int
    created_at: int
    updated_at: int

    def __post_init__(self) -> None:
        _read_null(self, "decisions", "stats", "timing", "context")


class Put(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """
    A row that a commit wrote: a new one whole, of an old one the changed fields.

    In a new row a missing field has its default (status ``success``, group 0, null) and
    ``updatedAt`` is ``createdAt``. ``version`` is the delta's ``seq`` and not repeated.

    """

    id: str
    parent_id: str | UnsetType = UNSET
    role: Role | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    siblings_group_id: int | UnsetType = UNSET
    data: Raw | UnsetType = UNSET
    decisions: NullableRaw | UnsetType = UNSET
    model_id: str | None | UnsetType = UNSET
    author: str | None | UnsetType = UNSET
    stats: NullableRaw | UnsetType = UNSET
    timing: NullableRaw | UnsetType = UNSET
    context: NullableRaw | UnsetType = UNSET
    created_at: int | UnsetType = UNSET
    updated_at: int | UnsetType = UNSET

    def __post_init__(self) -> None:
        _read_null(self, "decisions", "stats", "timing", "context")


class Cause(Struct, frozen=True, omit_defaults=True):
    """Who did it: the command's name, the subject, the client's mutation id."""

    op: str
    by: str | None = None
    mutation: str | None = None


class Delta(Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", tag="delta"):
    """
    The change that one commit made: all that a mirror needs.

    ``put`` has parents before their new children, ``drop`` children before their
    parents; puts are applied before drops. ``set`` holds the keys of the topic's other
    state that changed, whole. ``digest`` is the topic's after the commit. With
    ``large`` the three are left out and the delta is fetched by ``topic.deltas``.

    """

    topic: str
    root_id: str
    seq: int
    commit: str
    prev: str | None
    active_node_id: str | None
    put: list[Put] = []
    drop: list[str] = []
    set: dict[str, Any] = {}
    ended: dict[str, tuple[int, int, int]] = {}
    digest: str
    cause: Cause
    large: bool | UnsetType = UNSET


# Live ops -------------------------------------------------------------------------------


class TextOp(Struct, frozen=True, array_like=True, tag="t", gc=False):
    """``["t", part, "text"]``: append text to a part; one past the last begins a text part."""

    part: Count
    text: Text


class PutOp(Struct, frozen=True, array_like=True, tag="p", gc=False):
    """``["p", part, {...}]``: put a whole part; one past the last adds it."""

    part: Count
    value: Raw


Op: TypeAlias = TextOp | PutOp


class LiveText(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a live reply has so far, in a snapshot: ``parts`` after op ``n`` of ``epoch``."""

    message_id: str
    epoch: int
    n: int
    parts: list[Raw]


# Requests -------------------------------------------------------------------------------


class Command(
    Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    tag_field="op",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A request: ``id`` is answered as ``re``, chosen by the client, unique on its connection."""

    id: Count = -1  # the commands of a batch leave it out; every request must have one


class TopicCommand(Command, frozen=True, kw_only=True):
    """A request about one topic."""

    topic: str


class Read(TopicCommand, frozen=True, kw_only=True):
    """A question; ``minSeq`` makes it wait for a commit the caller knows of."""

    min_seq: Count = 0


class Mutation(TopicCommand, frozen=True, kw_only=True):
    """
    A command that changes something.

    With a ``mutation`` id it happens once, however often it is sent. ``base`` is the
    `seq` that the user saw; destructive commands conflict with what came later.

    """

    topic: str = ""  # the commands of a batch leave it out
    mutation: MutationId | None = None
    base: Count | None = None


class TopicCreate(Mutation, frozen=True, kw_only=True, tag="topic.create"):
    """
    Make a topic with its virtual root; without ``topic`` the server makes the id.

    A ``temporary`` one is not listed, and erased an hour after its last commit or the last
    minute in which somebody had it open.

    """

    name: Name = ""
    metadata: NullableRaw = None
    temporary: bool = False

    def __post_init__(self) -> None:
        _read_null(self, "metadata")


class TopicPersist(Mutation, frozen=True, kw_only=True, tag="topic.persist"):
    """Keep a temporary topic: from now on it is like any other."""


class TopicDuplicate(Mutation, frozen=True, kw_only=True, tag="topic.duplicate"):
    """
    Copy the path to a message into a new topic: with new ids, ungrouped, its end active.

    ``copyId`` is the new topic's id, else the server makes it; ``name`` its name, else
    that of this topic. Pending replies become errors.

    """

    node_id: str
    copy_id: str = ""
    name: Name | None = None


class TopicOpen(TopicCommand, frozen=True, kw_only=True, tag="topic.open"):
    """
    Subscribe: missed deltas or a snapshot, then all that happens, until ``topic.close``.

    ``seq`` and ``commit`` say what the mirror has, ``streams`` ``{messageId: [epoch, n]}``
    what it has of live replies.

    """

    seq: Count = 0
    commit: str | None = None
    streams: dict[str, tuple[Count, Count]] = {}


class TopicClose(TopicCommand, frozen=True, kw_only=True, tag="topic.close"):
    """End the subscription of this connection; a reply being written goes on."""


class TopicGet(Read, frozen=True, kw_only=True, tag="topic.get"):
    """Read a topic's own fields."""


class TopicList(Command, frozen=True, kw_only=True, tag="topic.list"):
    """List topics, the latest active first, in pages; ``name`` filters by part of the name."""

    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    name: str = ""


class TopicsWatch(Command, frozen=True, kw_only=True, tag="topics.watch"):
    """
    Have the list of topics kept live by ``topics`` and ``read`` frames.

    The first frame is whole: the first ``limit`` topics. With ``watching`` false it ends.

    """

    watching: bool = True
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class TopicMarkRead(TopicCommand, frozen=True, kw_only=True, tag="topic.markRead"):
    """Move the subject's read position, on all its devices, to ``seq``, else to now; never back."""

    seq: Count | None = None


class TopicUpdate(Mutation, frozen=True, kw_only=True, tag="topic.update"):
    """Rename a topic."""

    name: Name


class TopicSetMetadata(Mutation, frozen=True, kw_only=True, tag="topic.setMetadata"):
    """Replace the whole metadata object."""

    metadata: Raw


class TopicSetMetadataNamespace(
    Mutation, frozen=True, kw_only=True, tag="topic.setMetadataNamespace"
):
    """Set one key of the metadata and touch no other; without ``value`` the key goes."""

    namespace: Key
    value: Raw | UnsetType = UNSET


class TopicSetActive(Mutation, frozen=True, kw_only=True, tag="topic.setActive"):
    """Select a content message, or nothing."""

    node_id: str | None


class TopicClear(Mutation, frozen=True, kw_only=True, tag="topic.clear"):
    """Delete all messages; the root stays."""


class TopicDelete(Mutation, frozen=True, kw_only=True, tag="topic.delete"):
    """Delete the topic; for 30 days ``topic.restore`` brings it back."""


class TopicRestore(Mutation, frozen=True, kw_only=True, tag="topic.restore"):
    """Bring a deleted topic back as it was."""


class TopicUndo(Mutation, frozen=True, kw_only=True, tag="topic.undo"):
    """
    Reverse what the commit ``seq`` deleted, else the last that the caller deleted.

    Removed messages come back under their old parents or the nearest living ancestors,
    and children that are still where the deletion put them move back.

    """

    seq: Count | None = None


class MessageCreate(Mutation, frozen=True, kw_only=True, tag="message.create"):
    """Add a message; ``parent`` is an id, ``ROOT``, or ``AUTO``: the active node, else the root."""

    message_id: str | None = None
    parent: str = "AUTO"
    role: Role
    text: Text | None = None
    data: NullableRaw = None
    status: Status = "pending"
    set_active: bool = True
    group: Group = 0
    model: Name | None = None
    stats: NullableRaw = None

    def __post_init__(self) -> None:
        _read_null(self, "data", "stats")


class MessageCreateSibling(Mutation, frozen=True, kw_only=True, tag="message.createSibling"):
    """Edit and resend: an alternative beside ``sourceId``, in its group, active."""

    source_id: str
    message_id: str | None = None
    text: Text | None = None
    data: NullableRaw = None
    model: Name | None = None

    def __post_init__(self) -> None:
        _read_null(self, "data")


class MessageUpdate(Mutation, frozen=True, kw_only=True, tag="message.update"):
    """Change a message: ``data`` merges by top-level key; ``parent`` moves it with its subtree."""

    message_id: str
    parent: str | None | UnsetType = UNSET
    text: Text | UnsetType = UNSET
    data: Raw | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    group: Group | UnsetType = UNSET
    model: Name | None | UnsetType = UNSET
    stats: NullableRaw | UnsetType = UNSET
    context: NullableRaw | UnsetType = UNSET
    if_version: Count | None = None

    def __post_init__(self) -> None:
        _read_null(self, "stats", "context")


class MessageDelete(Mutation, frozen=True, kw_only=True, tag="message.delete"):
    """Delete a message: its children move up, or with ``cascade`` go too."""

    message_id: str
    cascade: bool = False
    strategy: Literal["parent", "clear"] = "parent"
    awaiting_input_only: bool = False


class MessageDeleteGroup(Mutation, frozen=True, kw_only=True, tag="message.deleteGroup"):
    """Delete a reply and all others of its group; their children go to the shared parent."""

    message_id: str


class MessageRetry(Mutation, frozen=True, kw_only=True, tag="message.retry"):
    """Offer a failed, paused or empty reply again, in its place; what it had is emptied."""

    message_id: str
    when_live: WhenLive = "reject"


class MessageRestore(Mutation, frozen=True, kw_only=True, tag="message.restore"):
    """
    Bring a deleted message back, under its old parent or the nearest living ancestor.

    With ``cascade`` all comes with it that was deleted from below it in the same commit.

    """

    message_id: str
    cascade: bool = False


class BranchReserve(Mutation, frozen=True, kw_only=True, tag="branch.reserve"):
    """
    Put an empty prompt below a reply, to be filled later; below a leaf two, so that it forks.

    ``messageIds`` are their ids; the first is the one that becomes active.

    """

    anchor_id: str
    message_ids: Annotated[list[str], Meta(max_length=2)] = []
    activate: bool = True


class Fresh(
    Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    tag_field="mode",
    tag="create",
    forbid_unknown_fields=True,
):
    """A new user message; without ``parent`` a first turn."""

    message_id: str | None = None
    parent: str = "ROOT"
    text: Text | None = None
    data: NullableRaw = None
    status: Status = "success"
    model: Name | None = None

    def __post_init__(self) -> None:
        _read_null(self, "data")


class Existing(
    Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    tag_field="mode",
    tag="existing",
    forbid_unknown_fields=True,
):
    """The user message that the new replies answer."""

    message_id: str


class Reserved(
    Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    tag_field="mode",
    tag="fill-reserved",
    forbid_unknown_fields=True,
):
    """The reserved prompt that is filled; it must still await its input."""

    message_id: str
    text: Text | None = None
    data: NullableRaw = None
    model: Name | None = None

    def __post_init__(self) -> None:
        _read_null(self, "data")


class Placeholder(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A reply to be written, by a worker that serves ``model``."""

    message_id: str | None = None
    model: Name | None = None


class TurnSubmit(Mutation, frozen=True, kw_only=True, tag="turn.submit"):
    """
    A user message plus pending replies in one commit; the replies are offered to workers.

    While a reply is live it is refused, or with ``whenLive`` ``steer`` ends every live
    reply as ``paused`` with what it has.

    """

    user: Fresh | Existing | Reserved
    placeholders: Annotated[list[Placeholder], Meta(max_length=32)]
    group: Group | None = None
    preserve_active: bool = False
    when_live: WhenLive = "reject"


Lease: TypeAlias = Annotated[int, Meta(ge=1_000, le=120_000)]


class StreamClaim(Mutation, frozen=True, kw_only=True, tag="stream.claim"):
    """Take a pending reply to write it; the result has the lease and the epoch."""

    message_id: str
    lease_ms: Lease = 15_000


class StreamRenew(TopicCommand, frozen=True, kw_only=True, tag="stream.renew"):
    """Keep a lease; appending does it too."""

    message_id: str
    epoch: Count
    lease_ms: Lease = 15_000


class StreamAppend(TopicCommand, frozen=True, kw_only=True, tag="stream.append"):
    """Write ops numbered ``first``, ``first`` + 1, …; answered by ``streamAck``."""

    message_id: str
    epoch: Count
    first: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] = msgspec.field(name="from")
    ops: Annotated[list[Op], Meta(min_length=1, max_length=1000)]


class StreamFinish(Mutation, frozen=True, kw_only=True, tag="stream.finish"):
    """End a reply after op ``n``, the last one."""

    message_id: str
    epoch: Count
    n: Count
    status: Ended = "success"
    stats: NullableRaw = None
    timing: NullableRaw = None

    def __post_init__(self) -> None:
        _read_null(self, "stats", "timing")


class StreamAbort(Mutation, frozen=True, kw_only=True, tag="stream.abort"):
    """Stop a reply; what it has is kept, as ``paused``."""

    message_id: str


class Batch(Mutation, frozen=True, kw_only=True, tag="batch"):
    """Several commands on one topic: one commit, one delta, or nothing."""

    commands: Annotated[list[Batchable], Meta(min_length=1, max_length=200)]


class TreeGet(Read, frozen=True, kw_only=True, tag="tree.get"):
    """Read the tree down to ``depth`` below the first turns or ``rootId``; -1 is unlimited."""

    depth: Annotated[int, Meta(ge=-1, le=MAX_INTEGER)] = 1
    node_id: str | None = None
    root_id: str | None = None


class BranchGet(Read, frozen=True, kw_only=True, tag="branch.get"):
    """Read a page of the path to ``nodeId`` (else the active node), the part before ``cursor``."""

    node_id: str | None = None
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    include_siblings: bool = True


class PathGet(Read, frozen=True, kw_only=True, tag="path.get"):
    """Read the path from the first turn to a message."""

    node_id: str


class PathThrough(Read, frozen=True, kw_only=True, tag="path.through"):
    """Read the path through a message and on to the newest leaf below it."""

    node_id: str


class TrashList(Read, frozen=True, kw_only=True, tag="trash.list"):
    """List a topic's deleted messages, the latest deletion first, in pages."""

    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class MessageGet(Read, frozen=True, kw_only=True, tag="message.get"):
    """Read messages whole."""

    message_ids: Annotated[list[str], Meta(min_length=1, max_length=200)]


class TopicDeltas(TopicCommand, frozen=True, kw_only=True, tag="topic.deltas"):
    """Read the deltas after a position, in pages of at most ``limit``."""

    seq: Count
    commit: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


Pattern: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]


class BotServe(Command, frozen=True, kw_only=True, tag="bot.serve"):
    """Ask for offers of replies whose model matches a pattern (``*`` any run of characters)."""

    models: Annotated[list[Pattern], Meta(max_length=100)]


Batchable: TypeAlias = (
    TopicUpdate
    | TopicSetMetadata
    | TopicSetMetadataNamespace
    | TopicSetActive
    | TopicClear
    | MessageCreate
    | MessageCreateSibling
    | MessageUpdate
    | MessageDelete
    | MessageDeleteGroup
    | MessageRestore
    | MessageRetry
    | BranchReserve
    | TurnSubmit
)
MUTATIONS: Final = (
    TopicCreate,
    TopicPersist,
    TopicDuplicate,
    TopicUpdate,
    TopicSetMetadata,
    TopicSetMetadataNamespace,
    TopicSetActive,
    TopicClear,
    TopicDelete,
    TopicRestore,
    TopicUndo,
    MessageCreate,
    MessageCreateSibling,
    MessageUpdate,
    MessageDelete,
    MessageDeleteGroup,
    MessageRestore,
    MessageRetry,
    BranchReserve,
    TurnSubmit,
    StreamClaim,
    StreamFinish,
    StreamAbort,
    Batch,
)
COMMANDS: Final = (
    *MUTATIONS,
    TopicOpen,
    TopicClose,
    TopicGet,
    TopicList,
    TopicsWatch,
    TopicMarkRead,
    TopicDeltas,
    StreamRenew,
    StreamAppend,
    TreeGet,
    BranchGet,
    PathGet,
    PathThrough,
    MessageGet,
    TrashList,
    BotServe,
)


class Resume(Struct, frozen=True, kw_only=True, rename="camel"):
    """A topic that the client had open, and what it has of it; the fields are `TopicOpen`'s."""

    topic: str
    seq: Count = 0
    commit: str | None = None
    streams: dict[str, tuple[Count, Count]] = {}


class Hello(Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", tag="hello"):
    """
    The client's first frame.

    ``unacknowledged`` are the mutation ids whose results the client still waits for;
    those that happened are answered in ``welcome.done``.

    """

    protocol: str
    token: str | None = None
    client: Name = ""
    unacknowledged: Annotated[list[MutationId], Meta(max_length=1000)] = []
    resume: Annotated[list[Resume], Meta(max_length=1000)] = []


class Ping(Struct, frozen=True, tag_field="type", tag="ping"):
    """Sent by either side; answered by ``pong``."""


class Pong(Struct, frozen=True, tag_field="type", tag="pong"):
    """The answer to ``ping``."""


# Frames from the server -----------------------------------------------------------------


class _Frame(Struct, frozen=True, kw_only=True, rename="camel", tag_field="type"):
    pass


class Limits(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a server accepts: bytes a frame, bytes a message's data, subscriptions a connection."""

    frame_bytes: int
    data_bytes: int
    subscriptions: int


class Welcome(_Frame, frozen=True, kw_only=True, tag="welcome"):
    """The answer to ``hello``: who the client is, and which of its mutations happened."""

    protocol: str
    connection_id: str
    subject: str
    limits: Limits
    done: dict[str, Raw]
    server: str
    now: int


class ResultFrame(_Frame, frozen=True, kw_only=True, tag="result"):
    """The answer to the request ``re``."""

    re: int
    result: Raw


class ErrorFrame(_Frame, frozen=True, kw_only=True, tag="error"):
    """The refusal of the request ``re``; nothing of it happened, unless ``UNAVAILABLE``."""

    re: int | None
    code: str
    message: str
    details: dict[str, Any]


class Snapshot(_Frame, frozen=True, kw_only=True, tag="snapshot"):
    """
    A topic as it is at ``seq``: chunk ``chunk`` of ``chunks``.

    ``state`` and ``live`` come with the first chunk. Nodes are skeletons, except the
    last page of the active path, which is whole. ``reset`` says that the server's
    history is not the mirror's: what the mirror had is void.

    """

    topic: str
    root_id: str
    seq: int
    commit: str
    active_node_id: str | None
    digest: str
    state: dict[str, Any]
    nodes: list[Node]
    live: list[LiveText]
    chunk: int
    chunks: int
    reset: bool = False


class Synced(_Frame, frozen=True, kw_only=True, tag="synced"):
    """All that was missed has been sent: the mirror is equal to the tree at ``seq``."""

    topic: str
    seq: int
    commit: str
    digest: str


class Stream(_Frame, frozen=True, kw_only=True, tag="stream", omit_defaults=True):
    """
    Live ops ``from`` … ``to`` of a reply, merged where that is shorter.

    With ``reset`` the ops make the whole reply as it is after ``to``: what the mirror
    had of it is void.

    """

    topic: str
    message_id: str
    epoch: int
    first: int = msgspec.field(name="from")
    to: int
    ops: list[Op]
    reset: bool = False


class StreamAck(_Frame, frozen=True, kw_only=True, tag="streamAck"):
    """To the writer: ops up to ``received`` are here, ops up to ``durable`` survive a crash."""

    topic: str
    message_id: str
    epoch: int
    received: int
    durable: int


class Offer(_Frame, frozen=True, kw_only=True, tag="offer"):
    """Work for a bot: a pending reply that may be claimed."""

    topic: str
    message_id: str
    model: str | None


class Gone(_Frame, frozen=True, kw_only=True, tag="gone"):
    """The topic is no longer there for this client; the subscription has ended."""

    topic: str
    reason: str


class TopicInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """A topic's own fields, without its messages."""

    id: str
    root_id: str
    name: str
    seq: int
    commit: str
    active_node_id: str | None
    metadata: dict[str, Any]
    created_at: int
    last_activity_at: int
    temporary: bool = False


class TopicEntry(TopicInfo, frozen=True, kw_only=True, rename="camel"):
    """
    A topic in a list, as one subject sees it.

    ``readSeq`` is its read position, 0 before the first; ``unread`` counts the messages of
    others that are new or changed since, up to 1,000.

    """

    read_seq: int
    unread: int


class Topics(_Frame, frozen=True, kw_only=True, tag="topics"):
    """
    The list of topics: ``whole`` its first page, else the entries that changed.

    ``gone`` are topics that are no longer in the list; ``next`` is the cursor of the
    second page, for ``topic.list``.

    """

    whole: bool
    topics: list[TopicEntry]
    gone: list[str] = []
    next: str | None = None


class ReadPosition(_Frame, frozen=True, kw_only=True, tag="read"):
    """Where the subject has read a topic up to, on whatever device."""

    topic: str
    read_seq: int
    unread: int


ServerFrame: TypeAlias = (
    Welcome
    | ResultFrame
    | ErrorFrame
    | Snapshot
    | Delta
    | Synced
    | Stream
    | StreamAck
    | Offer
    | Gone
    | Topics
    | ReadPosition
    | Ping
    | Pong
)

_decode_command = msgspec.json.Decoder(
    TopicCreate
    | TopicPersist
    | TopicDuplicate
    | TopicOpen
    | TopicClose
    | TopicGet
    | TopicList
    | TopicsWatch
    | TopicMarkRead
    | TopicUpdate
    | TopicSetMetadata
    | TopicSetMetadataNamespace
    | TopicSetActive
    | TopicClear
    | TopicDelete
    | TopicRestore
    | TopicUndo
    | TopicDeltas
    | MessageCreate
    | MessageCreateSibling
    | MessageUpdate
    | MessageDelete
    | MessageDeleteGroup
    | MessageRestore
    | MessageRetry
    | MessageGet
    | BranchReserve
    | TurnSubmit
    | StreamClaim
    | StreamRenew
    | StreamAppend
    | StreamFinish
    | StreamAbort
    | Batch
    | TreeGet
    | BranchGet
    | PathGet
    | PathThrough
    | TrashList
    | BotServe
).decode
decode_frame = msgspec.json.Decoder(ServerFrame).decode
"""Decode a frame from the server; raises `msgspec.DecodeError`."""


def decode_command(text: bytes | str) -> Command:
    """Decode a request; raises `msgspec.DecodeError` and, nested without end, `RecursionError`."""
    command: Command = _decode_command(text)
    return command
