"""What a connection's frames mean, without a socket."""

import msgspec
import pytest
from livetree.core import protocol as p
from livetree_server.gateway.session import HELLO_BYTES, Bad, Closing, Session

HELLO = b'{"type":"hello","protocol":"livetree.v1"}'


def greeted() -> Session:
    session = Session()
    assert isinstance(session.read(HELLO), p.Hello)
    return session


def closing(session: Session, data: bytes) -> Closing:
    with pytest.raises(Closing) as refusal:
        session.read(data)
    return refusal.value


def refused(data: bytes) -> Bad:
    frame = greeted().read(data)
    assert isinstance(frame, Bad)
    assert frame.error.code == "VALIDATION"
    return frame


@pytest.mark.parametrize(
    "data",
    [
        b'{"id":1,"op":"topic.list"}',
        b'{"type":"welcome"}',
        b"[]",
        b"",
        b"hello",
        b'{"type":"hello"}',
    ],
)
def test_H2_anything_but_hello_first_ends_the_connection(data):
    assert closing(Session(), data).code == 4400


def test_H2_a_hello_for_another_protocol_ends_the_connection():
    end = closing(Session(), b'{"type":"hello","protocol":"livetree.v9"}')
    assert end.code == 4400
    assert "livetree.v1" in end.reason


def test_H2_a_large_hello_ends_the_connection():
    data = msgspec.json.encode(p.Hello(protocol=p.PROTOCOL, token="x" * HELLO_BYTES))
    assert closing(Session(), data).code == 4413


def test_a_peer_may_ping_before_hello_but_is_not_greeted_by_it():
    session = Session()
    assert session.read(b'{"type":"ping"}') == p.Ping()
    assert not session.greeted


def test_a_second_hello_ends_the_connection():
    assert closing(greeted(), HELLO).code == 4400


def test_R1_a_request_is_read():
    frame = greeted().read(b'{"id":7,"op":"topic.get","topic":"T"}')
    assert frame == p.TopicGet(id=7, topic="T")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"id":1,"op":"topic.fly","topic":"T"}', "topic.fly"),
        (b'{"id":1,"topic":"T"}', "op"),
        (b'{"id":1,"op":"topic.get"}', "topic"),
        (b'{"id":1,"op":"topic.clear"}', "topic"),
        (b'{"id":1,"op":"topic.get","topic":5}', "$.topic"),
        (b'{"id":1,"op":"topic.get","topic":"T","colour":"red"}', "colour"),
        (b'{"id":1,"op":"message.create","topic":"T","role":"root"}', "role"),
        (b'{"id":1,"op":"message.create","topic":"T","role":"user","data":"\\ud800"}', "read"),
        (b'{"id":1,"op":"message.create","topic":"T","role":"user","group":1e400}', "$.group"),
        (b'{"id":1,"op":"message.create","topic":"T","role":"user","group":-1}', "$.group"),
        (b'{"id":1,"op":"tree.get","topic":"T","depth":-2}', "$.depth"),
        (b'{"op":"topic.get","id":1,"topic":' + b"9" * 5000 + b"}", "topic"),
    ],
)
def test_R3_a_request_of_the_wrong_form_is_refused_alone(data, says):
    bad = refused(data)
    assert bad.re == 1
    assert says in str(bad.error)


def test_R3_a_request_that_nests_without_end_is_refused_alone():
    deep = b'{"id":5,"op":"message.create","topic":"T","role":"user","data":' + b"[" * 100_000
    assert refused(deep + b"]" * 100_000 + b"}").re == 5


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"null",
        b"[1]",
        b'"text"',
        b'{"op":"topic.get","topic":"T"x}',
        b'{"op":"topic.fly"}',
        b'{"id":"1","op":"topic.fly"}',
        b'{"id":-1,"op":"topic.fly"}',
        b"[" * 100_000,
        b'{"id":1,"op":"\xff"}',
    ],
)
def test_R4_a_frame_that_is_no_answerable_request_ends_the_connection(data):
    assert closing(greeted(), data).code == 4400
