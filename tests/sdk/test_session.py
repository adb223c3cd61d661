from typing import Any

import pytest
from livetree.core import protocol as p
from livetree.core.errors import (
    Busy,
    Conflict,
    Internal,
    LivetreeError,
    NotFound,
    TooLarge,
    Unavailable,
    Validation,
)
from livetree.session import (
    HELLO_BYTES,
    REFUSALS,
    Answered,
    ClientClosed,
    Disconnected,
    Request,
    Retry,
    Session,
)

from tests.sdk.kit import frame, read, welcome


def rename(topic: str = "t", name: str = "n", mutation: str = "m1") -> p.TopicUpdate:
    return p.TopicUpdate(topic=topic, name=name, mutation=mutation)


def online(session: Session, **changes: Any) -> list[Any]:
    """Connect, and return what came of the welcome beside itself."""
    session.hello(None, [])
    sent(session)
    outcomes = session.receive(frame(welcome(**changes)))
    assert isinstance(outcomes[0], p.Welcome)
    return outcomes[1:]


def sent(session: Session) -> list[dict[str, Any]]:
    frames = [read(text) for text in session.outgoing]
    session.outgoing.clear()
    return frames


def result(session: Session, request: Request, **value: Any) -> list[Any]:
    return session.receive(frame({"type": "result", "re": request.id, "result": value}))


def refusal(session: Session, request: Request, code: str, **details: Any) -> list[Any]:
    return session.receive(
        frame(
            {"type": "error", "re": request.id, "code": code, "message": "no", "details": details}
        )
    )


def test_H1_the_first_frame_says_who_and_what_is_missing():
    session = Session(client="test/1")
    resume = p.Resume(topic="t", seq=3, commit="c", streams={"m": (2, 7)})

    assert session.hello("token", [resume]) == {"t"}

    assert sent(session) == [
        {
            "type": "hello",
            "protocol": "livetree.v1",
            "token": "token",
            "client": "test/1",
            "unacknowledged": [],
            "resume": [{"topic": "t", "seq": 3, "commit": "c", "streams": {"m": [2, 7]}}],
        }
    ]


def test_H2_nothing_is_sent_before_the_welcome():
    session = Session()
    session.add(rename())
    session.hello(None, [])

    assert [each["type"] for each in sent(session)] == ["hello"]
    session.add(p.TopicList())
    assert sent(session) == []


def test_H2_a_hello_stays_below_what_a_stranger_may_send():
    session = Session(max_pending=2000)
    online(session)
    for number in range(1500):
        session.add(rename(topic=f"t{number}", mutation=f"{number:036}"))
    session.lost()
    resumes = [p.Resume(topic=f"{number:036}", seq=1, commit="c" * 36) for number in range(1500)]

    resumed = session.hello("x" * 1000, resumes)

    assert len(session.outgoing[0]) <= HELLO_BYTES + 200
    hello = read(session.outgoing[0])
    assert len(hello["unacknowledged"]) == 1000
    assert 0 < len(resumed) == len(hello["resume"]) < 1500


def test_H5_what_was_done_is_answered_and_the_rest_is_sent_again():
    session = Session()
    online(session)
    done = session.add(rename("a", mutation="m1"))
    lost = session.add(rename("b", mutation="m2"))
    first = sent(session)
    session.lost()

    session.hello(None, [])
    assert sent(session)[0]["unacknowledged"] == ["m1", "m2"]
    outcomes = session.receive(frame(welcome(done={"m1": {"seq": 7}})))

    assert [(each.request, bytes(each.answer)) for each in outcomes[1:]] == [(done, b'{"seq":7}')]
    assert sent(session) == [first[1]]
    assert len(result(session, lost)) == 1


def test_H5_what_was_never_sent_is_not_unacknowledged():
    session = Session()
    session.add(rename())

    session.hello(None, [])

    assert sent(session)[0]["unacknowledged"] == []
    session.receive(frame(welcome()))
    assert [each["op"] for each in sent(session)] == ["topic.update"]


def test_X1_a_repetition_is_the_same_request():
    session = Session()
    online(session)
    session.add(rename())
    (first,) = sent(session)
    session.lost()
    online(session)

    assert sent(session) == [first]


def test_R1_each_request_is_answered_once():
    session = Session()
    online(session)
    one, other = session.add(p.TopicList()), session.add(p.TopicGet(topic="t"))
    assert [each["id"] for each in sent(session)] == [one.id, other.id]

    assert [each.request for each in result(session, other)] == [other]
    assert [each.request for each in result(session, one)] == [one]
    assert result(session, one) == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [("NOT_FOUND", NotFound), ("CONFLICT", Conflict), ("SOMETHING_NEW", Internal)],
)
def test_R5_a_refusal_is_an_error_of_its_kind(code: str, kind: type[LivetreeError]):
    session = Session()
    online(session)
    request = session.add(rename())

    (outcome,) = refusal(session, request, code, id="x")

    assert type(outcome.answer) is kind
    assert outcome.answer.details == {"id": "x"}


def test_commands_of_a_topic_go_one_at_a_time():
    session = Session()
    online(session)
    first = session.add(rename(name="1", mutation="m1"))
    second = session.add(rename(name="2", mutation="m2"))
    session.add(rename("other", name="3", mutation="m3"))
    assert [each["name"] for each in sent(session)] == ["1", "3"]

    refusal(session, first, "CONFLICT")
    assert [each["name"] for each in sent(session)] == ["2"]
    result(session, second)
    assert session.statistics()["lanes"] == 1


def test_reads_and_stops_wait_for_no_command():
    session = Session()
    online(session)
    session.add(rename())
    session.add(p.TopicGet(topic="t"))
    session.add(p.StreamAbort(topic="t", message_id="r", mutation="m2"))

    assert [each["op"] for each in sent(session)] == ["topic.update", "topic.get", "stream.abort"]


@pytest.mark.parametrize("code", ["UNAVAILABLE", "BUSY"])
def test_X5_a_server_without_time_is_asked_again_and_the_lane_waits(code: str):
    session = Session()
    online(session)
    request = session.add(rename(name="1"))
    session.add(rename(name="2", mutation="m2"))
    first = sent(session)
    delays = []
    for _ in range(REFUSALS):
        (retry,) = refusal(session, request, code)
        assert isinstance(retry, Retry)
        delays.append(retry.delay)
        assert sent(session) == []
        session.retry(request)
        assert sent(session) == first

    (outcome,) = refusal(session, request, code)

    assert outcome.answer.code == code
    assert delays == sorted(delays)
    assert [each["name"] for each in sent(session)] == ["2"]


def test_X5_a_retry_that_falls_due_without_a_connection_waits_for_one():
    session = Session()
    online(session)
    request = session.add(rename())
    refusal(session, request, "UNAVAILABLE")
    sent(session)
    session.lost()

    session.retry(request)
    assert sent(session) == []
    session.hello(None, [])
    assert sent(session)[0]["unacknowledged"] == ["m1"]
    session.receive(frame(welcome()))
    assert [each["mutation"] for each in sent(session)] == ["m1"]


def test_what_belongs_to_a_connection_ends_with_it():
    session = Session()
    with pytest.raises(Disconnected):
        session.add(p.TopicOpen(topic="t"))
    online(session)
    request = session.add(p.TopicOpen(topic="t"))

    (outcome,) = session.lost()

    assert outcome.request is request
    assert isinstance(outcome.answer, Disconnected)
    online(session)
    assert sent(session) == []


def test_R6_too_many_requests_are_busy():
    session = Session(max_pending=2)
    session.add(rename("a"))
    session.add(rename("b"))
    with pytest.raises(Busy):
        session.add(rename("c"))

    online(session)
    session.add(p.BotServe(models=[]))  # the client's own are bounded elsewhere
    result(session, Request(p.TopicList(id=1), b"{}"))
    session.add(rename("c"))


def test_what_is_larger_than_the_server_takes_is_refused_here():
    session = Session()
    early = session.add(rename(name="x" * 300))
    session.add(rename(name="small", mutation="m2"))

    (outcome,) = online(session, limits={"frameBytes": 200, "dataBytes": 1, "subscriptions": 1})

    assert outcome.request is early
    assert isinstance(outcome.answer, TooLarge)
    assert outcome.answer.details == {"limit": 200}
    assert [each["name"] for each in sent(session)] == ["small"]
    with pytest.raises(TooLarge):
        session.add(rename(name="x" * 300))


def test_half_a_surrogate_pair_is_no_json():
    session = Session()
    with pytest.raises(Validation, match="surrogate"):
        session.add(rename(name="\ud83d"))
    assert session.statistics()["pending"] == 0


def test_what_is_given_up_before_it_is_sent_never_is():
    session = Session()
    given_up = session.add(rename(name="1"))
    session.add(rename(name="2", mutation="m2"))

    session.abandon(given_up)

    online(session)
    assert [each["name"] for each in sent(session)] == ["2"]


def test_what_is_given_up_after_it_was_sent_keeps_its_place_and_is_not_sent_again():
    session = Session()
    online(session)
    given_up = session.add(rename(name="1"))
    session.add(rename(name="2", mutation="m2"))
    sent(session)

    session.abandon(given_up)
    assert sent(session) == []
    assert result(session, given_up) == []
    assert [each["name"] for each in sent(session)] == ["2"]

    session.abandon(session.add(p.TopicList()))
    sent(session)
    session.lost()
    online(session)
    assert [each.get("name") for each in sent(session)] == ["2"]


def test_what_is_given_up_while_it_rests_is_gone():
    session = Session()
    online(session)
    request = session.add(rename(name="1"))
    session.add(rename(name="2", mutation="m2"))
    refusal(session, request, "BUSY")
    sent(session)

    session.abandon(request)

    assert [each["name"] for each in sent(session)] == ["2"]
    session.retry(request)
    assert sent(session) == []


def test_L6_appends_are_answered_by_acks():
    session = Session()
    online(session)
    command = p.StreamAppend(topic="t", message_id="r", epoch=1, first=1, ops=[p.TextOp(0, "a")])
    request, other = session.add(command), session.add(command)

    session.settle(request)
    (outcome,) = refusal(session, other, "BUSY")

    assert outcome.answer.code == "BUSY"  # its writer decides
    assert session.statistics()["pending"] == 0


def test_C2_a_ping_is_answered_once_however_many_wait():
    session = Session()
    online(session)

    for _ in range(100):
        assert session.receive(frame({"type": "ping"})) == []

    assert sent(session) == [{"type": "pong"}]
    assert session.receive(frame({"type": "pong"})) == []


def test_closing_answers_everything_that_waits():
    session = Session()
    online(session)
    one = session.add(rename(name="1"))
    other = session.add(rename(name="2", mutation="m2"))
    session.abandon(session.add(p.TopicList()))
    error = ClientClosed("closed")

    outcomes = session.close(error)

    assert [(each.request, each.answer) for each in outcomes] == [(one, error), (other, error)]
    assert isinstance(error, Unavailable)
    assert session.statistics() == {"pending": 0, "inFlight": 0, "lanes": 0, "outgoing": 0}


def test_other_frames_are_passed_through():
    session = Session()
    online(session)
    gone = frame({"type": "gone", "topic": "t", "reason": "deleted"})

    assert session.receive(gone) == [gone]
    assert session.receive(frame(welcome())) == []  # a second one means nothing
    stray = {"type": "error", "re": None, "code": "VALIDATION", "message": "", "details": {}}
    assert session.receive(frame(stray)) == []


def test_an_answer_that_cannot_be_read_is_an_answer():
    session = Session()
    online(session)
    request = session.add(rename())

    (outcome,) = session.failed(request.id, Internal("unreadable"))

    assert isinstance(outcome, Answered)
    assert session.failed(request.id, Internal("unreadable")) == []


def test_it_says_how_it_is():
    session = Session()
    assert repr(session) == "<Session offline pending=0>"
    session.hello(None, [])
    assert repr(session) == "<Session greeting pending=0>"
    session.receive(frame(welcome()))
    assert repr(session) == "<Session online pending=0>"
    assert repr(session.add(rename())) == "<Request 1 topic.update sent>"
