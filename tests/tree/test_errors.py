import livetree.core.errors as errors
import msgspec
import pytest
from livetree.core.errors import Internal, LivetreeError, TopicLive, error_of

KINDS = [
    kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and kind is not LivetreeError
]
CODES = {
    *("VALIDATION", "NOT_FOUND", "INVALID_OPERATION", "CONFLICT", "TOPIC_LIVE", "STALE_CURSOR"),
    *("STALE_STREAM", "UNAUTHENTICATED", "FORBIDDEN", "TOO_LARGE", "RATE_LIMITED", "BUSY"),
    *("UNAVAILABLE", "INTERNAL"),
}


def made(kind: type[LivetreeError]) -> LivetreeError:
    return kind("a1") if kind is TopicLive else kind("look again", seq=3)


def test_the_codes_are_the_small_set_and_each_has_one_class():
    assert {kind.code for kind in KINDS} == CODES
    assert len(KINDS) == len(CODES)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_the_wire_as_itself(kind: type[LivetreeError]):
    error = made(kind)
    details = msgspec.json.decode(msgspec.json.encode(error.details))

    read = error_of(error.code, str(error), details)

    assert type(read) is kind
    assert str(read) == str(error)
    assert read.details == error.details


def test_a_live_topic_names_the_reply():
    error = TopicLive("a1")

    assert error.details == {"messageId": "a1"}
    assert "a1" in str(error)


def test_a_live_topic_keeps_what_a_newer_server_adds_to_it():
    read = error_of("TOPIC_LIVE", "busy", {"messageId": "a1", "more": 1})

    assert isinstance(read, TopicLive)
    assert read.details == {"messageId": "a1", "more": 1}


@pytest.mark.parametrize("code", ["", "TEAPOT", "topic_live"])
def test_an_unknown_code_is_internal(code: str):
    read = error_of(code, "well", {"a": 1})

    assert type(read) is Internal
    assert (str(read), read.details) == ("well", {"a": 1})


def test_a_live_topic_without_its_reply_is_not_made_up():
    assert type(error_of("TOPIC_LIVE", "busy", {})) is Internal


def test_details_read_are_a_copy():
    details = {"seq": 1}

    error_of("CONFLICT", "", details).details["seq"] = 2

    assert details == {"seq": 1}
