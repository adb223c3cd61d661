import random
from typing import Any

import msgspec
import pytest
from livetree.core.live import LiveReply
from livetree.core.protocol import Op, PutOp, TextOp
from livetree.oplog import (
    APPEND_BYTES,
    FRAMES,
    FULL_BYTES,
    FULL_OPS,
    KEPT_BYTES,
    OP_LENGTH,
    Append,
    OpLog,
)


def plain(ops: list[Op]) -> list[Any]:
    return [
        (op.part, op.text) if isinstance(op, TextOp) else (op.part, msgspec.json.decode(op.value))
        for op in ops
    ]


def all_ops(log: OpLog) -> list[Any]:
    """Send everything and return it, each append received at once."""
    found: list[Any] = []
    while (append := log.next_append()) is not None:
        found += plain(append.ops)
        log.acknowledge(append.last, 0)
    return found


def test_L4_ops_are_numbered_from_one():
    log = OpLog()
    log.write("a")
    assert log.next_append() == Append(1, [TextOp(0, "a")])
    log.write("b")
    assert log.next_append() == Append(2, [TextOp(0, "b")])
    assert log.next_append() is None
    assert log.n == 2


def test_text_that_waits_becomes_one_op():
    log = OpLog()
    for piece in "abc":
        log.write(piece)

    assert log.next_append() == Append(1, [TextOp(0, "abc")])


def test_text_is_merged_while_enough_is_under_way():
    log = OpLog()
    for piece in "abcdefgh":
        log.write(piece)
        log.next_append()
    assert log.n == FRAMES

    log.acknowledge(1, 1)

    assert log.next_append() == Append(FRAMES + 1, [TextOp(0, "efgh")])


def test_a_long_text_is_cut():
    log = OpLog()
    log.write("x" * (OP_LENGTH + 1))
    log.write("y")

    assert [text for _, text in all_ops(log)] == ["x" * OP_LENGTH, "xy"]


def test_a_frame_ends_when_it_is_large_enough():
    log = OpLog()
    log.write("x" * (3 * APPEND_BYTES))

    append = log.next_append()

    assert append is not None
    assert len(append.ops) == APPEND_BYTES // OP_LENGTH
    following = log.next_append()
    assert following is not None
    assert following.first == append.last + 1


def test_parts_of_other_kinds():
    log = OpLog()
    log.write("hm", "reasoning")
    log.write(" hm", "reasoning")
    log.write("Hello")
    assert log.put({"type": "file", "url": "x"}) == 2
    log.write(" there")
    assert log.put({"type": "file", "url": "y"}, at=2) == 2

    assert all_ops(log) == [
        (0, {"type": "reasoning", "text": "hm"}),
        (0, " hm"),
        (1, "Hello"),
        (2, {"type": "file", "url": "x"}),
        (3, " there"),
        (2, {"type": "file", "url": "y"}),
    ]


def test_a_long_reasoning_is_cut_too():
    log = OpLog()
    log.write("x" * (OP_LENGTH + 5), "reasoning")

    (first, second) = all_ops(log)

    assert len(first[1]["text"]) == OP_LENGTH
    assert second == (0, "x" * 5)


@pytest.mark.parametrize(
    ("part", "at"),
    [
        ({}, None),
        ({"type": 1}, None),
        ({"type": "x"}, 1),
        ({"type": "x"}, -1),
        ({"type": "x", "a": {1, 2, object()}}, None),
        ({"type": "text", "text": "\ud800"}, None),
    ],
    ids=range(6),
)
def test_what_is_no_part_is_refused(part: dict[str, Any], at: int | None):
    log = OpLog()
    with pytest.raises(ValueError, match="part"):
        log.put(part, at)
    assert log.next_append() is None


# Surrogates


def test_half_a_pair_waits_for_its_other_half():
    log = OpLog()
    log.write("a\ud83d")
    assert not log.all_received
    assert all_ops(log) == [(0, "a")]
    log.write("\ude00b")

    assert all_ops(log) == [(0, "\U0001f600b")]


def test_half_a_pair_alone_begins_no_part():
    log = OpLog()
    log.write("\ud83d")
    assert log.next_append() is None
    log.write("\ude00")

    assert all_ops(log) == [(0, "\U0001f600")]


@pytest.mark.parametrize("half", [0xD83D, 0xDE00])
def test_half_a_pair_whose_other_half_never_comes_is_replaced(half: int):
    log = OpLog()
    log.write(f"a{chr(half)}b")

    assert all_ops(log) == [(0, "a\ufffdb")]


def test_half_a_pair_at_the_end_of_a_part_is_replaced():
    log = OpLog()
    log.write("a\ud83d", "reasoning")
    log.write("b\ud83d")
    log.put({"type": "file"})
    log.write("c\ud83d")
    log.flush()
    log.flush()

    assert all_ops(log) == [
        (0, {"type": "reasoning", "text": "a"}),
        (0, "\ufffd"),
        (1, "b\ufffd"),
        (2, {"type": "file"}),
        (3, "c\ufffd"),
    ]


# Acks


def test_L6_what_is_durable_is_forgotten_and_the_rest_kept():
    log = OpLog()
    for piece in "abcd":
        log.write(piece)
        log.next_append()
    log.acknowledge(4, 2)
    assert log.all_received

    assert log.rewind()

    assert not log.all_received
    assert log.next_append() == Append(3, [TextOp(0, "c"), TextOp(0, "d")])


def test_L6_what_the_server_says_it_has_is_not_sent_again():
    log = OpLog()
    for piece in "abcd":
        log.write(piece)
        log.next_append()
    log.rewind()

    log.acknowledge(3, 0)

    assert log.next_append() == Append(4, [TextOp(0, "d")])


def test_L4_a_hole_is_filled_from_where_the_server_is():
    log = OpLog()
    for piece in "abcd":
        log.write(piece)
        log.next_append()

    assert log.rewind(2)

    assert log.next_append() == Append(3, [TextOp(0, "c"), TextOp(0, "d")])


def test_L6_a_server_that_lost_what_it_called_durable_cannot_be_helped():
    log = OpLog()
    log.write("a")
    log.next_append()
    log.acknowledge(1, 1)

    assert not log.rewind(0)


def test_an_ack_of_ops_that_were_never_sent_is_another_writers():
    log = OpLog()
    log.write("a")
    log.next_append()

    assert not log.acknowledge(2, 0)
    assert log.acknowledge(1, 0)
    assert log.acknowledge(0, 0)  # a late one
    assert log.received == 1


def test_ops_that_the_server_will_not_take_are_dropped():
    log = OpLog()
    log.write("a")
    log.next_append()
    log.acknowledge(1, 0)
    log.write("b")
    log.next_append()
    log.write("c\ud83d")

    log.give_up_unreceived()

    assert log.all_received
    assert log.n == 1
    assert log.next_append() is None
    assert log.statistics() == {
        "n": 1,
        "received": 1,
        "durable": 0,
        "waitingBytes": 0,
        "keptBytes": 1,
    }


# Bounds


def test_R6_a_writer_waits_when_too_much_is_unreceived():
    log = OpLog()
    log.write("x" * FULL_BYTES)
    assert not log.is_full
    log.write("x")
    assert log.is_full

    append = log.next_append()
    assert append is not None
    assert log.is_full  # what is under way counts
    log.acknowledge(append.last, 0)
    assert not log.is_full


def test_R6_a_writer_waits_when_too_many_parts_wait():
    log = OpLog()
    for _ in range(FULL_OPS + 1):
        log.put({"type": "x"})

    assert log.is_full


def test_R6_a_writer_waits_when_too_much_is_not_durable():
    log = OpLog()
    while log._kept_bytes <= KEPT_BYTES:
        log.write("x" * APPEND_BYTES)
        all_ops(log)
    assert log.is_full

    log.acknowledge(log.n, log.n)

    assert not log.is_full


# What an earlier writer left


def test_L10_a_writer_that_begins_anew_empties_what_was_left():
    left = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "old"}]
    log = OpLog(7, left)
    log.write("new")
    log.put({"type": "file"})
    log.write("er")
    append = log.next_append()
    assert append is not None
    assert append.first == 8
    reply = LiveReply(9, 7, left)

    reply.take(append.first, append.ops)

    assert reply.parts() == [
        {"type": "text", "text": "new"},
        {"type": "file"},
        {"type": "text", "text": "er"},
    ]


def test_L10_a_writer_that_goes_on_writes_behind_what_was_left():
    left = [{"type": "text", "text": "old"}]
    log = OpLog(7, left, resume=True)
    log.write("er")

    assert log.next_append() == Append(8, [TextOp(0, "er")])


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_lost_the_reply_is_what_was_written(seed: int):
    chance = random.Random(seed)
    log, reply = OpLog(), LiveReply(1)
    written = ""
    for _ in range(200):
        match chance.randrange(6):
            case 0 | 1:
                text = chance.choice(["a", "\ud83d", "\ude00", "bcd", ""])
                written += text
                log.write(text)
            case 2 | 3:
                while (append := log.next_append()) is not None and chance.random() < 0.8:
                    if append.first <= reply.n + 1:
                        reply.take(append.first, append.ops)
            case 4:
                log.acknowledge(reply.n, chance.randint(log.durable, reply.n))
            case 5:
                log.rewind(chance.choice([None, chance.randint(log.durable, reply.n)]))
    log.flush()
    while not log.all_received:
        log.rewind()
        while (append := log.next_append()) is not None:
            reply.take(append.first, append.ops)
            log.acknowledge(reply.n, log.durable)

    units = written.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert "".join(part["text"] for part in reply.parts()) == units
    assert repr(log) == f"<OpLog n={reply.n} received={reply.n} durable={log.durable}>"


def test_the_values_of_puts_are_what_was_given():
    log = OpLog()
    log.put({"type": "tool-x", "input": {"a": [1, None]}})
    append = log.next_append()

    assert append is not None
    assert isinstance(append.ops[0], PutOp)
    assert plain(append.ops) == [(0, {"type": "tool-x", "input": {"a": [1, None]}})]
