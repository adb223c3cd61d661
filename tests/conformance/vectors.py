"""Makes `digest.json`: what every language's digest, canonical text and checksum must give."""

from typing import Any

import msgspec
from livetree.core import protocol as p
from livetree.core.canonical import canonical
from livetree.core.content import EMPTY_DATA, data_of_text, parts_checksum
from livetree.core.digest import Digest, active_term, node_term, state_terms
from livetree.core.live import LiveReply
from livetree.core.plan import Context, ExpireLease, Written, plan
from livetree.core.tree import EMPTY_STATE, Tree

ABOUT = (
    "Made by the Python core: python -m tests.house.generate. Each topic: load it, and its digest "
    "is `digest`, the sum over `terms`. Each history: fold the deltas one by one, from an empty "
    "tree (digest `start`); after each the digest is the delta's own. Each value of `canonical`: "
    "parse `json`, its RFC 8785 text is `text`; each of `checksums`: `crc32` is that of `parts`."
)


def digest_vectors() -> dict[str, Any]:
    """Return the content of `digest.json`."""
    return {
        "about": ABOUT,
        "terms": [_term(term) for term in _TERMS],
        "topics": [_topic(name, *rest) for name, *rest in _TOPICS],
        "histories": [_history("a turn, an edit and a deletion"), _long_history("many messages")],
        "canonical": [
            {"json": text, "text": canonical(msgspec.json.decode(text))} for text in _VALUES
        ],
        "checksums": [
            {"parts": msgspec.json.decode(text), "crc32": parts_checksum(msgspec.json.decode(text))}
            for text in _PARTS
        ],
    }


_TERMS = [
    "",
    "a",
    "active\n",
    node_term("u1", "root", "user", "success", 0, 1),
    node_term("a-_Z9", "u1", "assistant", "paused", 9007199254740991, 9007199254740991),
    'set\nname\n"\u00e9\U0001f600"',
]

_PARTS = [
    "[]",
    '[{"type":"text","text":""}]',
    '[{"type":"text","text":"a\\u0000b\\"\\\\ \u00e9\U0001f600"}]',
    '[{"type":"text","text":"hi"},{"type":"tool-x","input":{"b":1.0,"a":[1e21,1e-7,null,true]}}]',
]

_VALUES = [
    "null",
    "true",
    "false",
    "0",
    "-0",
    "0.0",
    "-0.0",
    "1.0",
    "-1.50",
    "9007199254740991",
    "-9007199254740991",
    "9007199254740992.0",
    "1e16",
    "1e20",
    "123456789012345680000.0",
    "1e21",
    "1.25e25",
    "1e23",
    "0.000001",
    "1e-7",
    "1.25e-7",
    "5e-324",
    "1.7976931348623157e308",
    "333333333.33333329",
    "4.50",
    "2e-3",
    '""',
    '"\\u0000\\u0008\\u0009\\u000a\\u000b\\u000c\\u000d\\u001f\\u007f\\u2028\\/\\\\\\""',
    '"\\ud83d\\ude00\u00e9"',
    "[]",
    "{}",
    "[1,[2,[]],{}]",
    '{"b":1,"a":2,"aa":3,"":4}',
    '{"\\ufb33":1,"\\ud83d\\ude00":2,"\\u20ac":3,"\\u00f6":4,"\\u0080":5,"1":6,"\\r":7}',
    '{"10":1,"9":2,"1":3}',
    '{"a":1,"a":2}',
]


def _node(message_id: str, parent_id: str, **fields: Any) -> p.Node:
    fields.setdefault("role", "user")
    fields.setdefault("version", 1)
    return p.Node(id=message_id, parent_id=parent_id, created_at=1, updated_at=1, **fields)


_TOPICS: list[tuple[str, list[p.Node], str | None, dict[str, Any]]] = [
    ("empty", [], None, {}),
    ("one message", [_node("u1", "root")], "u1", {"name": "Trip plan", "lastActivityAt": 1}),
    (
        "every role and status",
        [
            _node("s", "root", role="system"),
            _node("u", "s", status="pending", version=2),
            _node("a", "u", role="assistant", status="error", version=3),
            _node("t", "a", role="tool", status="paused", version=4),
        ],
        "t",
        {},
    ),
    (
        "groups, and nothing active",
        [
            _node("u1", "root", siblings_group_id=3),
            _node("u2", "root", siblings_group_id=3, version=9007199254740991),
            _node("a1", "u1", role="assistant", siblings_group_id=9007199254740991),
        ],
        None,
        {"lastActivityAt": 9007199254740991},
    ),
    (
        "live replies: one written, one offered",
        [
            _node("u1", "root"),
            _node("a1", "u1", role="assistant", status="pending", version=5),
            _node("a2", "u1", role="assistant", status="pending", version=5),
        ],
        "a2",
        {"live": {"a2": 0, "a1": 6}},
    ),
    (
        "metadata: a term for each key",
        [_node("U-_9", "root")],
        "U-_9",
        {
            "name": 'quote " slash \\ line\nfeed nul \0 \u00e9 \U0001f600 \u2028',
            "metadata": {
                "b": {"z": 1.0, "a": [1e21, 1e-7, -0.0, True, None]},
                "a": 0.1,
                "": "",
                "\U0001f600": {"\ufb33": 1, "\U0001f600": 2},
                "line\nfeed": False,
            },
        },
    ),
    (
        "a key of the other state that this version doesn't know",
        [],
        None,
        {"deletedAt": 1700000000000, "backlog": [{"id": "q1", "author": None}]},
    ),
    (
        "a chain of 300",
        [
            _node(f"c{place}", f"c{place - 1}" if place else "root", version=place + 1)
            for place in range(300)
        ],
        "c299",
        {},
    ),
]


def _topic(
    name: str, nodes: list[p.Node], active: str | None, state: dict[str, Any]
) -> dict[str, Any]:
    whole = {**EMPTY_STATE, **state}
    tree = Tree.load(
        topic_id="topic",
        root_id="root",
        seq=1,
        commit="commit",
        active_node_id=active,
        state=whole,
        nodes=nodes,
    )
    terms = [active_term(active)]
    for key, value in whole.items():
        terms += state_terms(key, value)
    for node in nodes:
        terms.append(
            node_term(
                node.id,
                node.parent_id,
                node.role,
                node.status,
                node.siblings_group_id,
                node.version,
            )
        )
    return {
        "name": name,
        "activeNodeId": active,
        "state": whole,
        "nodes": [
            {
                "id": node.id,
                "parentId": node.parent_id,
                "role": node.role,
                "status": node.status,
                "siblingsGroupId": node.siblings_group_id,
                "version": node.version,
            }
            for node in nodes
        ],
        "terms": terms if len(terms) < 50 else None,
        "digest": tree.digest,
    }


def _term(term: str) -> dict[str, str]:
    digest = Digest()
    digest.add(term)
    return {"term": term, "digest": str(digest)}


class _Teller:
    """Carries commands out on an empty topic and keeps the deltas that tell them."""

    def __init__(self) -> None:
        self.tree = Tree("topic", "root")
        self.start = self.tree.digest
        self.deltas: list[dict[str, Any]] = []
        self.replies: dict[str, LiveReply] = {}

    def do(self, command: p.Mutation) -> None:
        place = len(self.deltas) + 1
        context = Context(
            now=1_700_000_000_000 + place,
            commit=f"commit-{place}",
            new_id=lambda: f"made-{place}",
            subject="ann",
            written=self._written,
        )
        planned = plan(self.tree, command, context)
        assert planned.delta is not None
        written = {each: planned.draft.node(each).data for each in planned.delta.ended}
        assert self.tree.apply(planned.delta, written)
        self.deltas.append(msgspec.json.decode(p.encode(planned.delta)))

    def _written(self, message_id: str) -> Written | None:
        reply = self.replies.get(message_id)
        return None if reply is None else Written(reply.epoch, reply.n, reply.parts())

    def told(self, name: str) -> dict[str, Any]:
        return {"name": name, "start": self.start, "deltas": self.deltas}


def _history(name: str) -> dict[str, Any]:
    teller = _Teller()
    do = teller.do
    do(p.TopicCreate(name="Trip plan", metadata=msgspec.Raw(b'{"b":1.0,"a":{"c":[]}}')))
    user = p.Fresh(message_id="u1", text="Where to?")
    replies = [p.Placeholder(message_id="a1", model="echo"), p.Placeholder(message_id="a2")]
    do(p.TurnSubmit(user=user, placeholders=replies, group=1))
    do(p.StreamClaim(message_id="a1"))
    reply = teller.replies["a1"] = LiveReply(teller.tree.live["a1"])
    reply.take(1, [p.TextOp(0, "To the "), p.TextOp(0, "sea \U0001f600")])
    do(ExpireLease(message_id="a1", epoch=reply.epoch))
    do(p.StreamClaim(message_id="a1"))
    again = teller.replies["a1"] = LiveReply(teller.tree.live["a1"], 0, reply.parts())
    again.take(1, [p.TextOp(0, "!")])
    stats = msgspec.Raw(b'{"tokens":5}')
    do(p.StreamFinish(message_id="a1", epoch=again.epoch, n=1, stats=stats))
    do(p.StreamAbort(message_id="a2"))
    do(p.TopicSetActive(node_id="a1"))
    do(p.MessageCreate(message_id="u2", role="user", text="", status="success"))
    do(p.MessageUpdate(message_id="u1", context=msgspec.Raw(b'{"contextTokens":3}')))
    do(p.MessageCreateSibling(source_id="u1", message_id="u3", text="Where from?"))
    do(p.MessageUpdate(message_id="u2", parent="a2"))
    do(p.TopicSetMetadataNamespace(namespace="b"))
    do(p.TopicSetMetadataNamespace(namespace="a", value=msgspec.Raw(b"1")))
    do(p.TopicSetMetadataNamespace(namespace="a", value=msgspec.Raw(b"true")))
    do(p.TopicSetActive(node_id="u2"))
    do(p.MessageDelete(message_id="a2"))
    do(p.TopicUpdate(name=""))
    move = p.MessageUpdate(message_id="u3", parent="u2")
    more = p.MessageCreate(message_id="s", parent="u3", role="system", data=msgspec.Raw(EMPTY_DATA))
    do(p.Batch(commands=[move, more, p.MessageDelete(message_id="u3", cascade=True)]))
    do(p.MessageDelete(message_id="u1", strategy="clear"))
    do(p.TopicClear())
    do(p.TopicDelete())
    return teller.told(name)


def _long_history(name: str) -> dict[str, Any]:
    teller = _Teller()
    teller.do(p.TopicCreate())
    for place in range(40):
        # Ids whose order is not that of their making.
        message_id = f"m{place * 37 % 41:02}"
        create = p.MessageCreate(
            message_id=message_id,
            role=("user", "assistant")[place % 2],
            status="success",
            data=msgspec.Raw(data_of_text(f"text {place}")),
            parent="ROOT" if place % 7 == 0 else "AUTO",
            group=place % 3,
        )
        teller.do(create)
        if place % 5 == 4:
            teller.do(p.MessageDelete(message_id=message_id, cascade=place % 2 == 0))
    return teller.told(name)


def as_text(value: dict[str, Any]) -> str:
    """Write the content of a committed JSON file."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"
