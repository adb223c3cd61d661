"""Turns that steer, reserved prompts that are filled, replies that are tried again."""

from itertools import count
from typing import Any

import pytest
from livetree.core import protocol as p
from livetree.core.errors import (
    Conflict,
    InvalidOperation,
    LivetreeError,
    NotFound,
    TopicLive,
    Validation,
)
from livetree.core.live import LiveReply
from livetree.core.plan import Content, Context, ExpireOffer
from msgspec import UNSET, Raw

from tests.tree.topic import ROOT, START, Topic, expire, message, run_of, topic_of

CONTEXT = Raw(b'{"contextTokens":1}')


def turn(user: Any, replies: int = 1, **fields: Any) -> p.TurnSubmit:
    return p.TurnSubmit(user=user, placeholders=[p.Placeholder()] * replies, **fields)


# Steering --------------------------------------------------------------------------------


def test_L12_a_steering_turn_pauses_every_live_reply_with_what_it_has():
    topic = topic_of("u1 > a1:1*", "u1 > a2:1+", "u1 > a3:1*", "u1 > a4:1*", "v1 > b1?")
    topic.write("a1", "half ", "a word")
    topic.write("a4", "expired")
    expire(topic, "a4", topic.tree.live["a4"])
    told = len(topic.deltas)

    result = topic.do(turn(p.Fresh(parent="a1", text="stop"), 2, when_live="steer"))

    assert len(topic.deltas) == told + 1
    assert [topic.node(each).status for each in ("a1", "a2", "a3", "a4")] == ["paused"] * 4
    assert [topic.node(each).preview for each in ("a1", "a2", "a3", "a4")] == [
        *("half a word", "", "", "expired"),
    ]
    assert {*topic.deltas[-1].ended} == {"a1", "a4"}
    assert topic.deltas[-1].ended["a1"][1] == 2
    assert topic.node("b1").status == "pending", "nobody was writing it"
    assert topic.tree.live == dict.fromkeys(result["placeholderIds"], 0)
    assert topic.parent(result["userId"]) == "a1"
    assert topic.active == result["placeholderIds"][-1]


def test_L12_with_nothing_live_a_steering_turn_is_like_any_other():
    topic = topic_of("u1 > a1?")

    topic.do(turn(p.Fresh(parent="a1", text="x"), when_live="steer"))

    assert topic.node("a1").status == "pending"
    assert topic.deltas[-1].ended == {}


def test_R5_a_steering_turn_that_is_refused_ends_no_reply():
    topic = topic_of("u1 > a1*")
    topic.write("a1", "half")

    topic.refuse(turn(p.Fresh(parent="nope", text="x"), when_live="steer"), NotFound)
    topic.refuse(turn(p.Existing(message_id="a1"), when_live="steer"), InvalidOperation)
    again = p.Placeholder(message_id="u1")
    topic.refuse(
        p.TurnSubmit(user=p.Fresh(), placeholders=[again], when_live="steer"),
        Conflict,
    )

    assert topic.tree.live
    assert topic.replies["a1"].n == 1


def test_L12_a_writer_that_was_steered_away_can_not_finish():
    topic = topic_of("u1 > a1*")
    epoch = topic.tree.live["a1"]
    topic.do(turn(p.Fresh(parent="a1", text="x"), when_live="steer"))

    with pytest.raises(LivetreeError) as refusal:
        topic.do(p.StreamFinish(message_id="a1", epoch=epoch, n=0))

    assert refusal.value.code == "STALE_STREAM"


def test_L12_cold_replies_are_all_asked_for_at_once():
    topic = topic_of("u1 > a1*", "v1 > b1*", "w1 > c1*")
    contents = {each: bytes(topic.node(each).data) for each in ("a1", "b1")}  # type: ignore[arg-type]
    for each in ("a1", "b1"):
        topic.write(each, "half")
        topic.tree.release(each)
    command = turn(p.Fresh(text="x"), when_live="steer")

    with pytest.raises(Content) as need:
        topic.plan(command)
    topic.contents = contents
    topic.do(command)

    assert need.value.message_ids == ["a1", "b1"]
    assert [topic.node(each).preview for each in ("a1", "b1")] == ["half", "half"]


def test_L12_steering_is_an_activity():
    topic = topic_of("u1 > a1*", activity=100)

    topic.do(turn(p.Existing(message_id="u1"), 0, when_live="steer"))

    assert topic.activity == START


# Reserving ---------------------------------------------------------------------------------


def test_T14_below_a_leaf_two_prompts_are_reserved_so_that_it_forks():
    topic = topic_of("u1 > a1", activity=100)

    result = topic.do(p.BranchReserve(anchor_id="a1", message_ids=["r1", "r2"]))

    assert (result["messageId"], result["reserved"]) == ("r1", ["r1", "r2"])
    assert topic.children("a1") == ["r1", "r2"]
    for each in ("r1", "r2"):
        node = topic.node(each)
        assert topic.tree.awaits_input(each)
        assert (node.role, node.status, node.siblings_group_id) == ("user", "success", 0)
        assert (node.author, topic.data(each)) == ("ann", {"parts": []})
    assert (topic.active, topic.activity, topic.tree.live) == ("r1", START + 1, {})


def test_T14_below_any_other_reply_one_is_reserved():
    topic = topic_of("u1 > a1 > w1")

    result = topic.do(p.BranchReserve(anchor_id="a1", message_ids=["r1", "r2"], activate=False))

    assert result["reserved"] == ["r1"] == topic.children("a1")[1:]
    assert topic.active == "w1"


def test_T14_the_ids_of_what_is_reserved_are_made_where_none_are_named():
    topic = topic_of("u1 > a1")

    assert len({*topic.do(p.BranchReserve(anchor_id="a1"))["reserved"]}) == 2
    topic.do(p.MessageCreate(message_id="b1", role="assistant", parent="u1"))
    assert topic.do(p.BranchReserve(anchor_id="b1", message_ids=["mine"]))["reserved"][0] == "mine"


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (p.BranchReserve(anchor_id="nope"), NotFound),
        (p.BranchReserve(anchor_id=ROOT), InvalidOperation),
        (p.BranchReserve(anchor_id="u1"), InvalidOperation),
        (p.BranchReserve(anchor_id="a1", message_ids=["u1"]), Conflict),
        (p.BranchReserve(anchor_id="a1", message_ids=["r", "u1"]), Conflict),
        (p.BranchReserve(anchor_id="a1", message_ids=["r", "r"]), Conflict),
        (p.BranchReserve(anchor_id="a1", message_ids=["r", "a b"]), Validation),
    ],
    ids=count(),
)
def test_T14_what_can_not_be_reserved_is_not(command: p.Mutation, kind: type[LivetreeError]):
    topic_of("u1 > a1").refuse(command, kind)


def test_L3_a_branch_may_be_reserved_below_a_live_reply():
    topic = topic_of("u1 > a1*")

    topic.do(p.BranchReserve(anchor_id="a1", activate=False))

    assert len(topic.children("a1")) == 2
    assert topic.tree.live


# Filling -----------------------------------------------------------------------------------


def test_T14_a_reserved_prompt_is_filled_in_its_place():
    topic = topic_of("u1 > a1 > r~", activity=100)
    topic.subject = "bob"

    result = topic.do(turn(p.Reserved(message_id="r", text="hi", model="m"), 2))

    node = topic.node("r")
    assert (result["userId"], node.parent_id, topic.data("r")["parts"][0]["text"]) == (
        *("r", "a1"),
        "hi",
    )
    assert (node.author, node.model_id, node.updated_at) == ("bob", "m", START)
    assert topic.children("r") == result["placeholderIds"]
    assert topic.group(result["placeholderIds"][0]) == 1
    assert topic.active == result["placeholderIds"][-1]
    assert topic.activity > START


def test_T14_a_prompt_may_be_filled_without_a_reply_and_keeps_its_model():
    topic = topic_of("u1 > a1 > r~", "v1", activity=100)
    topic.do(p.MessageUpdate(message_id="r", model="m"))
    topic.do(
        turn(
            p.Reserved(message_id="r", data=Raw(b'{"parts":[{"type":"file"}]}')),
            0,
            preserve_active=True,
        )
    )

    assert (topic.node("r").model_id, topic.active, topic.activity) == ("m", "v1", START)
    assert topic.data("r") == {"parts": [{"type": "file"}]}


@pytest.mark.parametrize(
    ("user", "kind"),
    [
        (p.Reserved(message_id="r"), InvalidOperation),
        (p.Reserved(message_id="r", text=""), InvalidOperation),
        (p.Reserved(message_id="r", data=Raw(b'{"parts":[]}')), InvalidOperation),
        (p.Reserved(message_id="r", text="a", data=Raw(b'{"parts":[]}')), Validation),
        (p.Reserved(message_id="r", data=Raw(b"[]")), Validation),
        (p.Reserved(message_id="nope", text="x"), NotFound),
        (p.Reserved(message_id=ROOT, text="x"), InvalidOperation),
        (p.Reserved(message_id="a1", text="x"), InvalidOperation),
        (p.Reserved(message_id="u1", text="x"), InvalidOperation),
        (p.Reserved(message_id="above", text="x"), InvalidOperation),
        (p.Reserved(message_id="unsent", text="x"), InvalidOperation),
    ],
    ids=count(),
)
def test_T14_what_does_not_await_input_is_not_filled(user: p.Reserved, kind: type[LivetreeError]):
    topic_of("u1 > a1 > r~", "a1 > above~ > b1", "unsent?").refuse(turn(user), kind)


def test_T14_a_prompt_that_somebody_filled_meanwhile_is_not_filled_again():
    topic = topic_of("u1 > a1 > r~")
    fill = turn(p.Reserved(message_id="r", text="mine"), 0)
    topic.subject = "bob"
    topic.do(turn(p.Reserved(message_id="r", text="his"), 0))
    topic.subject = "ann"

    refusal = topic.refuse(fill, InvalidOperation)

    assert "no longer awaits input" in str(refusal)
    assert (topic.node("r").preview, topic.node("r").author) == ("his", "bob")


def test_T14_a_prompt_that_somebody_deleted_meanwhile_is_not_found():
    topic = topic_of("u1 > a1 > r~")
    topic.do(p.MessageDelete(message_id="r"))

    topic.refuse(turn(p.Reserved(message_id="r", text="x")), NotFound)


def test_L3_filling_follows_the_guard_first_and_may_steer():
    topic = topic_of("u1 > a1 > r~", "u1 > b1*")

    topic.refuse(turn(p.Reserved(message_id="a1", text="x")), TopicLive)
    topic.do(turn(p.Reserved(message_id="r", text="x"), when_live="steer"))

    assert topic.node("b1").status == "paused"


# Retrying ----------------------------------------------------------------------------------


def failed(topic: Topic, message_id: str, status: Any = "error") -> None:
    topic.do(
        p.MessageUpdate(
            message_id=message_id,
            status=status,
            data=Raw(b'{"parts":[{"type":"text","text":"old"}],"turnOptions":{"a":1.0},"x":2}'),
            stats=Raw(b'{"n":1}'),
            context=CONTEXT,
            model="m",
        )
    )


@pytest.mark.parametrize("status", ["error", "paused"])
def test_L13_a_retried_reply_is_offered_again_in_its_place(status: Any):
    topic = topic_of("u1 > a1:3 > w1 > x1", "u1 > a2:3", active="x1", activity=100)
    failed(topic, "a1", status)
    for each in ("w1", "x1", "a2"):
        topic.do(p.MessageUpdate(message_id=each, context=CONTEXT))
    before, other = topic.node("a1"), topic.node("w1")
    topic.now += 9

    result = topic.do(p.MessageRetry(message_id="a1"))

    node = topic.node("a1")
    assert result["messageId"] == "a1"
    assert topic.data("a1") == {"parts": [], "turnOptions": {"a": 1.0}}
    assert (node.status, node.timing, node.context, node.decisions) == ("pending", None, None, None)
    assert (node.stats, node.model_id, node.siblings_group_id) == (before.stats, "m", 3)
    assert (node.created_at, node.updated_at) == (before.created_at, START + 9)
    assert [topic.node(each).context for each in ("w1", "x1", "a2")] == [None, None, CONTEXT]
    assert topic.node("w1").updated_at == other.updated_at
    assert topic.tree.live == {"a1": 0}
    assert (topic.active, topic.activity) == ("x1", 100)


def test_L13_what_measured_the_old_attempt_goes():
    topic = topic_of("u1 > a1*")
    epoch = topic.tree.live["a1"]
    topic.do(
        p.StreamFinish(
            message_id="a1",
            epoch=epoch,
            n=0,
            status="error",
            timing=Raw(b'{"ms":1}'),
            stats=Raw(b'{"n":1}'),
        )
    )
    assert topic.node("a1").timing is not None

    topic.do(p.MessageRetry(message_id="a1"))

    assert topic.node("a1").timing is None
    assert bytes(topic.node("a1").stats or b"") == b'{"n":1}'


def test_L13_a_reply_that_came_to_nothing_may_be_retried():
    topic = topic_of("u1 > a1~")

    topic.do(p.MessageRetry(message_id="a1"))

    assert topic.tree.live == {"a1": 0}


@pytest.mark.parametrize(
    ("message_id", "kind"),
    [
        ("u1", InvalidOperation),
        ("empty", InvalidOperation),
        ("a1", InvalidOperation),
        ("a2", InvalidOperation),
        (ROOT, InvalidOperation),
        ("nope", NotFound),
    ],
)
@pytest.mark.parametrize("when_live", ["reject", "steer"])
def test_L13_nothing_else_is_retried(message_id: str, kind: type[LivetreeError], when_live: Any):
    topic = topic_of("u1 > a1", "empty~", "v1 > a2?")

    topic.refuse(p.MessageRetry(message_id=message_id, when_live=when_live), kind)


@pytest.mark.parametrize("mark", ["*", "+"])
def test_L13_while_a_reply_is_live_another_is_retried_only_by_steering(mark: str):
    topic = topic_of("u1 > a1", f"v1 > b1{mark}")
    failed(topic, "a1")

    refusal = topic.refuse(p.MessageRetry(message_id="a1"), TopicLive)
    assert refusal.details["messageId"] == "b1"
    topic.do(p.MessageRetry(message_id="a1", when_live="steer"))

    assert topic.tree.live == {"a1": 0}
    assert topic.node("b1").status == "paused"


@pytest.mark.parametrize("offered", [False, True])
def test_L13_the_text_of_a_live_reply_that_is_retried_does_not_come_back(offered: bool):
    topic = topic_of("u1 > a1*")
    topic.write("a1", "old text")
    epoch = topic.tree.live["a1"]
    if offered:
        expire(topic, "a1", epoch)

    topic.refuse(p.MessageRetry(message_id="a1"), TopicLive)
    topic.do(p.MessageRetry(message_id="a1", when_live="steer"))

    delta = topic.deltas[-1]
    assert delta.ended == {}
    # Viewers, writers and the store learn from this that what was streamed is void.
    assert [bytes(put.data) for put in delta.put if put.data is not UNSET] == [b'{"parts":[]}']
    assert (topic.node("a1").status, topic.tree.live) == ("pending", {"a1": 0})
    with pytest.raises(LivetreeError, match="no longer yours"):
        topic.do(p.StreamFinish(message_id="a1", epoch=epoch, n=1))
    topic.do(p.StreamClaim(message_id="a1"))
    assert topic.replies["a1"].parts() == []
    topic.write("a1", "new")
    topic.do(p.StreamFinish(message_id="a1", epoch=topic.tree.live["a1"], n=1))
    assert topic.data("a1") == {"parts": [{"type": "text", "text": "new"}]}


def test_L13_nor_does_it_come_back_within_one_batch_or_run():
    topic = topic_of("u1 > a1*")
    topic.write("a1", "old text")
    steer = turn(p.Fresh(parent="a1", text="x"), when_live="steer")
    commands = [p.MessageRetry(message_id="a1", when_live="steer"), steer]
    contexts = [
        Context(now=START, commit=f"c{each}", new_id=iter(f"{each}{n}" for n in range(9)).__next__)
        for each in range(2)
    ]

    run, _ = run_of(topic.tree, commands, [_with(each, topic) for each in contexts])
    topic.do(p.Batch(commands=[*commands]))

    for view in (run, topic.tree):
        node = view.node("a1")
        assert (node.status, node.preview, node.empty) == ("paused", "", True)
    assert topic.deltas[-1].ended == {}


def _with(context: Context, topic: Topic) -> Context:
    return Context(
        now=context.now, commit=context.commit, new_id=context.new_id, written=topic.written
    )


def test_L13_a_reply_that_a_batch_paused_and_retried_begins_anew():
    topic = topic_of("u1 > a1*")
    topic.write("a1", "old text")

    topic.do(
        p.Batch(
            commands=[
                turn(p.Existing(message_id="u1"), 0, when_live="steer"),
                p.MessageRetry(message_id="a1"),
            ]
        )
    )

    assert (topic.data("a1"), topic.deltas[-1].ended) == ({"parts": []}, {})
    topic.do(ExpireOffer(message_id="a1"))
    assert (topic.node("a1").status, topic.data("a1")) == ("error", {"parts": []})


def test_L13_what_a_paused_reply_is_changed_to_in_its_batch_is_told_whole():
    topic = topic_of("u1 > a1*")
    topic.write("a1", "old text")
    edit = p.MessageUpdate(message_id="a1", text="edited")

    topic.do(p.Batch(commands=[turn(p.Fresh(text="x"), 0, when_live="steer"), edit]))

    delta = topic.deltas[-1]
    assert (topic.node("a1").preview, topic.node("a1").status) == ("edited", "paused")
    assert delta.ended == {}
    assert any(put.id == "a1" and put.data is not UNSET for put in delta.put)


def test_L13_a_cold_reply_is_retried_with_its_content_at_hand():
    topic = topic_of("u1 > a1", "v1 > b1~")
    failed(topic, "a1")
    data = bytes(topic.node("a1").data)  # type: ignore[arg-type]
    topic.tree.release("a1")
    topic.tree.release("b1")

    with pytest.raises(Content) as need:
        topic.plan(p.MessageRetry(message_id="a1"))
    assert need.value.message_ids == ["a1"]
    topic.contents = {"a1": data}
    topic.do(p.MessageRetry(message_id="a1"))
    assert topic.data("a1") == {"parts": [], "turnOptions": {"a": 1.0}}

    # Without parts there may be options all the same.
    with pytest.raises(Content) as need:
        topic.plan(p.MessageRetry(message_id="b1", when_live="steer"))
    assert need.value.message_ids == ["b1"]
    topic.contents["b1"] = b'{"parts":[],"turnOptions":{"b":2},"other":1}'
    topic.do(p.MessageRetry(message_id="b1", when_live="steer"))
    assert topic.data("b1") == {"parts": [], "turnOptions": {"b": 2}}


def test_L9_an_offer_that_nobody_has_written_to_ends_without_text():
    topic = topic_of("u1 > a1+")
    topic.replies["a1"] = LiveReply(0, 0, [])

    topic.do(p.StreamAbort(message_id="a1"))

    assert topic.deltas[-1].ended == {}, "nobody has written anything"


def test_T8_a_retry_conflicts_when_what_it_would_empty_has_changed():
    topic = topic_of("u1 > a1")
    failed(topic, "a1")
    seen = topic.tree.seq
    topic.do(p.MessageUpdate(message_id="a1", text="not so bad"))

    refusal = topic.refuse(p.MessageRetry(message_id="a1", base=seen), Conflict)

    assert refusal.details["changed"] == ["a1"]
    topic.do(p.MessageRetry(message_id="a1", base=topic.tree.seq))


def test_L13_decisions_about_the_old_attempts_tools_go():
    decided = message(
        "a1", "u1", role="assistant", status="error", decisions=Raw(b'{"c":{"approved":true}}')
    )
    topic = Topic([message("u1", ROOT, role="user"), decided], "a1")

    topic.do(p.MessageRetry(message_id="a1"))

    assert topic.node("a1").decisions is None
