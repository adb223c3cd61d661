import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from livetree.core import protocol as p
from livetree.core.content import MAX_DATA_BYTES, check_data, parts_checksum
from livetree.core.errors import InvalidOperation, LivetreeError, TooLarge, Validation
from livetree.core.live import MAX_OPS, MAX_PARTS, LiveReply
from msgspec import Raw

from tests.tree.costs import peak, steps

Op = p.TextOp | p.PutOp
Parts = list[dict[str, Any]]


def t(content: str, part: int = 0) -> p.TextOp:
    return p.TextOp(part, content)


def put(part: int, **fields: Any) -> p.PutOp:
    return p.PutOp(part, Raw(json.dumps({"type": "x", **fields}).encode()))


def written(*ops: Op, epoch: int = 5) -> LiveReply:
    reply = LiveReply(epoch)
    reply.take(1, ops)
    return reply


def plainly(ops: Sequence[Op], parts: Parts | None = None) -> Parts:
    """Do what the ops say in the simplest way."""
    done = [dict(part) for part in parts or []]
    for op in ops:
        if isinstance(op, p.PutOp):
            done[op.part : op.part + 1] = [msgspec.json.decode(op.value)]
        elif op.part == len(done):
            done.append({"type": "text", "text": op.text})
        else:
            done[op.part]["text"] += op.text
    return done


def frame(reply: LiveReply, first: int, ops: Sequence[Op], *, reset: bool = False) -> p.Stream:
    """Return the frame that tells these ops, as it comes out of a socket."""
    told = p.Stream(
        topic="topic",
        message_id="a1",
        epoch=reply.epoch,
        first=first,
        to=reply.n,
        ops=[*ops],
        reset=reset,
    )
    read = p.decode_frame(p.encode(told))
    assert isinstance(read, p.Stream)
    return read


def whole(reply: LiveReply) -> Any:
    """Return all that a refused call must not change."""
    latest = [n for n in range(max(0, reply.n - 20), reply.n + 1) if reply.has(reply.epoch, n)]
    tails = [p.encode(reply.tail(n)) for n in latest]
    return reply.parts(), reply.n, reply.epoch, reply.size, tails


def refuse(reply: LiveReply, first: int, ops: Sequence[Op], kind: type[LivetreeError]) -> Any:
    before = whole(reply)
    with pytest.raises(kind) as refusal:
        reply.take(first, ops)
    assert whole(reply) == before
    return refusal.value.details


# Random ops that fit, for the properties below.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@st.composite
def sequences(draw: st.DrawFn, *, most: int = 12) -> list[Op]:
    """Return ops that a reply takes one after the other."""
    takes_text: list[bool] = []
    ops: list[Op] = []
    for _ in range(draw(st.integers(0, most))):
        part = draw(st.integers(0, len(takes_text)))
        accepts = part == len(takes_text) or takes_text[part]
        if accepts and draw(st.booleans()):
            ops.append(t(draw(TEXT), part))
            takes_text[part:] = [True, *takes_text[part + 1 :]]
        else:
            with_text = draw(st.booleans())
            ops.append(put(part, **({"text": draw(TEXT)} if with_text else {"a": draw(TEXT)})))
            takes_text[part:] = [with_text, *takes_text[part + 1 :]]
    return ops


# Taking ----------------------------------------------------------------------------------


def test_L4_ops_are_taken_in_order():
    reply = written(t("a"), t("b"), put(1, a=1), t("c", 2), t("d"))

    assert reply.n == 5
    assert reply.parts() == [
        {"type": "text", "text": "abd"},
        {"type": "x", "a": 1},
        {"type": "text", "text": "c"},
    ]


def test_L4_what_is_repeated_is_dropped():
    reply = written(t("a"), t("b"), t("c"))

    assert reply.take(1, [t("a"), t("b"), t("c")]) == []
    assert reply.take(2, [t("b")]) == []
    assert reply.take(2, [t("b"), t("c"), t("d")]) == [t("d")]
    assert reply.parts() == [{"type": "text", "text": "abcd"}]
    assert reply.n == 4


def test_L4_of_what_is_repeated_not_even_the_content_is_looked_at():
    reply = written(t("a"))

    assert reply.take(1, [t("x", 99)]) == []
    assert reply.parts() == [{"type": "text", "text": "a"}]


def test_L4_a_hole_is_refused_and_named():
    reply = written(t("a"), t("b"))

    assert refuse(reply, 4, [t("d")], InvalidOperation) == {"received": 2}
    assert refuse(reply, 99, [t("d")], InvalidOperation) == {"received": 2}


@given(sequences(most=6), st.data())
def test_L4_however_often_and_cut_ops_come_they_are_applied_once(ops: list[Op], data: Any):
    reply = LiveReply(5)
    while reply.n < len(ops):
        first = data.draw(st.integers(1, reply.n + 2), label="first")
        last = data.draw(st.integers(first, len(ops) + 1), label="last")
        sent = ops[first - 1 : last]
        if first > reply.n + 1:
            refuse(reply, first, sent, InvalidOperation)
            continue
        before = reply.n
        fresh = reply.take(first, sent)
        assert fresh == ops[before : max(before, first - 1 + len(sent))]

    assert reply.parts() == plainly(ops)
    assert reply.n == len(ops)


@pytest.mark.parametrize(
    "op",
    [
        t("x", 3),
        put(3),
        t("x", 1),  # its part has no text
        p.PutOp(0, Raw(b"[]")),
        p.PutOp(0, Raw(b"{}")),
        p.PutOp(0, Raw(b'{"type":1}')),
        p.PutOp(0, Raw(b'{"type":"text"}')),
        p.PutOp(0, Raw(b'{"type":"text","text":1}')),
        p.PutOp(0, Raw(rb'{"type":"x","a":"\ud800"}')),
        p.PutOp(0, Raw(b'{"type":"x","a":9007199254740992}')),
        p.PutOp(0, Raw(b'{"type":"x","a":' + b"[" * 100 + b"]" * 100 + b"}")),
    ],
)
def test_an_op_that_does_not_fit_is_refused_with_all_its_company(op: Op):
    reply = written(t("a"), p.PutOp(1, Raw(b'{"type":"x","text":null}')))

    refuse(reply, 3, [t("fine"), op, t("fine")], Validation)


def test_a_part_may_come_and_be_used_in_one_call():
    reply = written(put(0, a=1), t("x", 1), put(0, text="y"), t("z", 0), put(2), t("w", 1))

    assert reply.parts() == [
        {"type": "x", "text": "yz"},
        {"type": "text", "text": "xw"},
        {"type": "x"},
    ]


def test_a_text_can_not_be_appended_to_a_part_put_without_one_in_the_same_call():
    refuse(written(t("a")), 2, [put(0, a=1), t("x", 0)], Validation)


def test_what_a_put_part_has_beside_its_text_stays():
    reply = written(put(0, text="a", state="streaming", id=7), t("b"))

    assert reply.parts() == [{"type": "x", "text": "ab", "state": "streaming", "id": 7}]


@given(sequences())
def test_the_parts_are_data_that_may_be_stored(ops: list[Op]):
    check_data(msgspec.json.encode({"parts": written(*ops).parts()}))


# Bounds ----------------------------------------------------------------------------------


@given(sequences())
def test_size_is_that_of_the_parts(ops: list[Op]):
    reply = LiveReply(5)
    for place, op in enumerate(ops):
        reply.take(place + 1, [op])
        assert reply.size == sum(len(msgspec.json.encode(part)) for part in reply.parts())
    assert written(*ops).size == reply.size
    assert LiveReply(5, reply.n, reply.parts()).size == reply.size


def test_size_counts_what_escaping_adds():
    reply = written(t('"\0'))

    assert reply.size == len(r'{"type":"text","text":"\"\u0000"}')


def test_a_reply_ends_where_a_message_does():
    reply = written(t(""))
    room = MAX_DATA_BYTES - reply.size

    reply.take(2, [t("x" * room)])
    assert reply.size == MAX_DATA_BYTES
    assert refuse(reply, 3, [t("y")], TooLarge) == {"limit": MAX_DATA_BYTES}
    assert refuse(reply, 3, [t("y", 1)], TooLarge) == {"limit": MAX_DATA_BYTES}
    assert reply.take(3, [t("")]) == [t("")]


def test_a_part_put_again_takes_its_place_not_more():
    reply = LiveReply(5)
    big = "x" * (MAX_DATA_BYTES // 2)

    for place in range(5):
        reply.take(place + 1, [put(0, text=big, place=place)])

    assert len(reply.parts()) == 1
    refuse(reply, 6, [put(1, text=big)], TooLarge)
    reply.take(6, [put(0), put(1, text=big)])


def test_too_large_a_part_is_refused():
    refuse(written(t("a")), 2, [put(1, text="x" * MAX_DATA_BYTES)], TooLarge)


def test_parts_have_a_bound():
    reply = written(*[t("x", part) for part in range(MAX_PARTS)])

    assert refuse(reply, MAX_PARTS + 1, [t("x", MAX_PARTS)], TooLarge) == {"limit": MAX_PARTS}
    reply.take(MAX_PARTS + 1, [t("x", MAX_PARTS - 1)])


def test_ops_have_a_bound():
    reply = LiveReply(5, MAX_OPS - 2)

    reply.take(MAX_OPS - 1, [t("a")])
    assert refuse(reply, MAX_OPS, [t("b"), t("c")], TooLarge) == {"limit": MAX_OPS}
    reply.take(MAX_OPS, [t("b")])
    assert refuse(reply, MAX_OPS + 1, [t("")], TooLarge) == {"limit": MAX_OPS}


# Tails -----------------------------------------------------------------------------------


def test_L7_a_tail_is_what_was_missed_merged():
    reply = written(t("a"), t("b"), put(1, a=1), t("c"), t("d", 2), t("e", 2))

    assert reply.tail(6) == []
    assert reply.tail(5) == [t("e", 2)]
    assert reply.tail(4) == [p.PutOp(2, Raw(b'{"type":"text","text":"de"}'))]
    assert reply.tail(3) == [t("c"), p.PutOp(2, Raw(b'{"type":"text","text":"de"}'))]
    assert reply.tail(1) == [
        t("bc"),
        p.PutOp(1, Raw(b'{"type":"x","a":1}')),
        p.PutOp(2, Raw(b'{"type":"text","text":"de"}')),
    ]


def test_L7_a_part_put_again_is_missed_as_a_whole():
    reply = written(t("a"), t("b"), put(0, text="c"), t("d"))

    assert reply.tail(1) == [p.PutOp(0, Raw(b'{"type":"x","text":"cd"}'))]
    assert reply.tail(3) == [t("d")]


@pytest.mark.parametrize("piece", ["\U0001f600", "e\u0301", "\0", "\u2028", "👩‍👩‍👧"])
def test_L7_a_tail_begins_where_the_viewer_is_whatever_the_script(piece: str):
    reply = written(*[t(piece * place) for place in range(1, 6)])

    for n in range(6):
        told = "".join(op.text for op in reply.tail(n) if isinstance(op, p.TextOp))
        assert piece * sum(range(1, n + 1)) + told == reply.parts()[0]["text"] or n == 0


@given(sequences(), st.lists(st.sampled_from([{"type": "text", "text": "q"}, {"type": "y"}])))
def test_L7_seen_and_tail_are_the_whole_wherever_the_cut_is(ops: list[Op], begun: Parts):
    reply = LiveReply(5, 0, begun)
    # What takes text in the sequence stands behind what is there already.
    moved = [msgspec.structs.replace(op, part=op.part + len(begun)) for op in ops]
    reply.take(1, moved)

    for n in range(len(moved) + 1):
        seen = plainly(moved[:n], begun)
        tail = reply.tail(n)
        assert reply.has(5, n)
        assert plainly(tail, seen) == reply.parts() == plainly(moved, begun)
        assert len({op.part for op in tail}) == len(tail), "one op a part"


@given(sequences())
def test_the_whole_makes_the_reply_from_nothing(ops: list[Op]):
    assert plainly(written(*ops).whole()) == plainly(ops)


def test_L7_only_what_is_known_has_a_tail():
    reply = LiveReply(5, 3, [{"type": "text", "text": "abc"}])
    reply.take(4, [t("d")])

    assert [reply.has(5, n) for n in range(6)] == [False, False, False, True, True, False]
    assert not reply.has(4, 4)
    assert not reply.has(6, 4)
    assert reply.tail(3) == [t("d")]


def test_L7_a_reply_that_nobody_has_written_has_nothing_to_tell():
    reply = LiveReply(5)

    assert reply.has(5, 0)
    assert reply.tail(0) == reply.whole() == reply.parts() == []


# Viewers ---------------------------------------------------------------------------------


@given(sequences(), st.data())
def test_L7_a_viewer_that_stays_and_one_that_comes_and_goes_see_the_same(ops: list[Op], data: Any):
    host, stays, goes = LiveReply(5), LiveReply(5), LiveReply(5)
    for place, op in enumerate(ops):
        host.take(place + 1, [op])
        assert stays.follow(frame(host, host.n, [op]))
        if data.draw(st.booleans(), label="comes back"):
            assert goes.follow(frame(host, goes.n + 1, host.tail(goes.n)))
            assert goes.parts() == host.parts()
    assert goes.follow(frame(host, goes.n + 1, host.tail(goes.n)))

    assert stays.parts() == goes.parts() == host.parts() == plainly(ops)
    assert stays.n == goes.n == host.n
    assert stays.size == goes.size == host.size
    assert parts_checksum(goes.parts()) == parts_checksum(plainly(ops))


def test_a_viewer_drops_what_it_has():
    host = written(t("a"), t("b"))
    viewer = LiveReply(5)
    assert viewer.follow(frame(host, 1, [t("a"), t("b")]))

    assert viewer.follow(frame(host, 1, [t("a"), t("b")]))
    assert viewer.follow(frame(host, 2, [t("b")]))

    assert viewer.parts() == [{"type": "text", "text": "ab"}]
    assert viewer.n == 2


def test_a_viewer_that_missed_ops_says_so_and_changes_nothing():
    host = written(t("a"), t("b"), t("c"))
    viewer = LiveReply(5, 1, [{"type": "text", "text": "a"}])

    assert not viewer.follow(frame(host, 3, [t("c")]))
    # Merged ops can't be cut: it has some of them.
    assert not viewer.follow(frame(host, 1, [t("abc")]))
    assert (viewer.n, viewer.parts()) == (1, [{"type": "text", "text": "a"}])


@pytest.mark.parametrize("epoch", [4, 6])
def test_a_viewer_does_not_mix_two_writers(epoch: int):
    viewer = LiveReply(5, 1, [{"type": "text", "text": "a"}])
    host = written(t("x"), t("y"), epoch=epoch)

    assert not viewer.follow(frame(host, 2, [t("y")]))
    assert not viewer.follow(frame(host, 1, host.whole(), reset=True))
    assert (viewer.epoch, viewer.n, viewer.parts()) == (5, 1, [{"type": "text", "text": "a"}])


@given(sequences(), sequences())
def test_L7_a_reset_makes_what_the_viewer_had_void(ops: list[Op], others: list[Op]):
    host, viewer = written(*ops), written(*others)

    assert viewer.follow(frame(host, 1, host.whole(), reset=True))

    assert (viewer.parts(), viewer.n) == (host.parts(), host.n)
    assert viewer.size == host.size
    host.take(host.n + 1, [t("more", len(host.parts()))])
    assert viewer.follow(frame(host, host.n, host.tail(host.n - 1)))
    assert viewer.parts() == host.parts()


def test_a_viewer_gives_no_tails_of_what_it_saw_merged():
    host = written(t("a"), t("b"))
    viewer = LiveReply(5)
    viewer.follow(frame(host, 1, host.tail(0)))

    assert [viewer.has(5, n) for n in range(3)] == [False, False, True]


@given(sequences())
def test_a_snapshot_carries_a_reply(ops: list[Op]):
    host = written(*ops)

    told = msgspec.json.decode(p.encode(host.snapshot("a1")), type=p.LiveText)
    viewer = LiveReply.of(told)

    assert told.message_id == "a1"
    assert (viewer.epoch, viewer.n, viewer.parts()) == (host.epoch, host.n, host.parts())
    host.take(host.n + 1, [t("more", len(host.parts()))])
    assert viewer.follow(frame(host, host.n, host.tail(host.n - 1)))
    assert viewer.parts() == host.parts()


def test_the_parts_given_out_and_taken_in_are_nobody_elses():
    begun: Parts = [{"type": "text", "text": "a"}]
    reply = LiveReply(5, 0, begun)

    reply.take(1, [t("b")])

    assert begun == [{"type": "text", "text": "a"}]
    reply.parts()[0]["text"] = "z"
    assert reply.parts() == [{"type": "text", "text": "ab"}]


def test_its_repr_has_no_text():
    assert repr(written(t("secret"))) == "<LiveReply epoch=5 n=1 parts=1>"


# Costs, counted in Python's own steps -------------------------------------------------------


def test_appending_costs_the_same_however_long_the_reply_is():
    reply = LiveReply(5)

    def append() -> int:
        return steps(lambda: reply.take(reply.n + 1, [t("x" * 9)]))

    early = [append() for _ in range(3)][-1]
    reply.take(reply.n + 1, [t("x" * 9)] * 20_000)
    assert append() == early


def test_appending_costs_the_same_however_many_parts_there_are():
    few, many = written(t("a"), t("b", 1)), written(*[t("a", part) for part in range(900)])

    assert steps(lambda: few.take(3, [t("c")])) == steps(lambda: many.take(901, [t("c")]))


def test_L7_a_tail_costs_what_was_missed_not_what_there_is():
    short = written(*[t("x" * 9)] * 30)
    long = written(*[t("x" * 9)] * 20_000)

    for missed in (1, 10):
        costs = [steps(lambda: reply.tail(reply.n - missed)) for reply in (short, long)]  # noqa: B023
        assert costs[0] == costs[1]


def test_L7_a_viewer_that_always_lags_costs_no_more_memory_than_it_misses():
    reply = written(*[t("x" * 9)] * 50_000)
    reply.take(reply.n + 1, [t("y" * 9)])

    # The whole text has 450,000 bytes; joining it for each tail would be quadratic.
    assert peak(lambda: reply.tail(reply.n - 1)) < 10_000
    assert reply.tail(reply.n - 1) == [t("y" * 9)]
