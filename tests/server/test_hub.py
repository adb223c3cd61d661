"""Fan-out over connections whose transports are cranked by hand."""

from dataclasses import dataclass, field

from livetree_server.hub.connection import PING, Connection, framed
from livetree_server.hub.hub import Hub


class Transport:
    """Records what is written; fills after `room` bytes."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.data: list[bytes] = []
        self.aborted = False
        self.connection: Connection | None = None

    def write(self, data: bytes) -> None:
        self.data.append(data)
        if self.connection is not None and sum(map(len, self.data)) > self.room:
            self.connection.pause(0.0)

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True


@dataclass
class Heard:
    """A listener that notes its calls."""

    calls: list[tuple[str, str]] = field(default_factory=list)

    def lagging(self, topic_id, _subscriber):
        self.calls.append(("lagging", topic_id))

    def drained(self, topic_id, _subscriber):
        self.calls.append(("drained", topic_id))

    def reads_again(self, _subscriber):
        self.calls.append(("reads again", ""))

    def closed(self, _subscriber):
        self.calls.append(("closed", ""))

    def ended(self, topic_id, _subscriber):
        self.calls.append(("ended", topic_id))


def connected(hub: Hub, topic: str = "T", room: int = 1 << 30) -> tuple[Connection, Transport]:
    transport = Transport(room)
    connection = Connection(transport, hub, now=0.0)
    transport.connection = connection
    assert hub.opened(connection)
    connection.topics.add(topic)
    hub.join(topic, connection)
    return connection, transport


@dataclass(frozen=True)
class Wanted:
    topic_id: str
    message_id: str
    model: str | None


def test_D1_everyone_gets_the_same_bytes_in_one_write():
    hub = Hub()
    transports = [connected(hub)[1] for _ in range(3)]

    hub.publish("T", [b"one", b"two"])

    expected = framed(b"one") + framed(b"two")
    assert [transport.data for transport in transports] == [[expected]] * 3
    assert transports[0].data[0] is transports[1].data[0]


def test_who_has_left_or_hears_another_topic_gets_nothing():
    hub = Hub()
    gone, its = connected(hub)
    _, other = connected(hub, topic="U")
    hub.leave("T", gone)

    hub.publish("T", [b"x"])

    assert its.data == other.data == []


def test_S7_a_slow_subscriber_is_skipped_and_the_others_are_not():
    hub, heard = Hub(), Heard()
    hub.listener = heard
    slow, its = connected(hub, room=5)
    _, fast = connected(hub)

    hub.publish("T", [b"first"])
    hub.publish("T", [b"second"])

    assert its.data == [framed(b"first")]
    assert fast.data == [framed(b"first"), framed(b"second")]
    assert heard.calls == [("lagging", "T")]

    slow.resume()
    assert heard.calls[1:] == [("drained", "T"), ("reads again", "")]


def test_a_closed_connection_is_forgotten_everywhere():
    hub, heard = Hub(), Heard()
    hub.listener = heard
    connection, transport = connected(hub)
    hub.serve(connection, ["*"], lambda _: True, [])

    hub.closed(connection)
    hub.publish("T", [b"x"])
    hub.offered([Wanted("T", "m", None)])
    connection.send(b"late")

    assert transport.data == []
    assert heard.calls == [("ended", "T"), ("closed", "")]
    assert hub.statistics() == {
        "connections": 0,
        "slow": 0,
        "topics": 0,
        "subscriptions": 0,
        "workers": 0,
    }


def test_L1_offers_go_to_workers_whose_pattern_matches():
    hub = Hub()
    gpt, its = connected(hub)
    hub.serve(gpt, ["gpt-*", "exact.name"], lambda topic: topic != "secret", [])

    offers = [
        Wanted("T", "1", "gpt-5"),
        Wanted("T", "2", "claude"),
        Wanted("T", "3", "exact.name"),
        Wanted("T", "4", "exactXname"),
        Wanted("T", "5", None),
        Wanted("secret", "6", "gpt-5"),
    ]
    hub.offered(offers)

    sent = b"".join(its.data)
    assert [number for number in "123456" if f'"messageId":"{number}"'.encode() in sent] == [
        "1",
        "3",
    ]


def test_L1_a_new_worker_is_told_what_is_open_and_no_patterns_end_it():
    hub = Hub()
    worker, its = connected(hub)
    hub.serve(worker, ["*"], lambda _: True, [Wanted("T", "1", "any"), Wanted("T", "2", None)])
    assert len(its.data) == 2

    hub.serve(worker, [], lambda _: True, [])
    hub.offered([Wanted("T", "3", "any")])
    assert len(its.data) == 2


def test_C2_the_quiet_are_pinged_and_the_silent_are_cut():
    hub = Hub()
    _, transport = connected(hub)
    ended: list[Connection] = []

    hub.tick(19.0, ended.append)
    assert transport.data == []
    hub.tick(21.0, ended.append)
    assert transport.data == [PING]
    hub.tick(61.0, ended.append)
    assert transport.aborted
    assert ended == []


def test_S7_who_reads_too_slowly_for_too_long_is_ended():
    hub = Hub()
    connection, _ = connected(hub)
    ended: list[Connection] = []
    connection.pause(0.0)
    connection.heard_at = 31.0

    hub.tick(29.0, ended.append)
    assert ended == []
    hub.tick(31.0, ended.append)
    assert ended == [connection]


def test_connections_have_a_bound():
    hub = Hub(limit=1)
    connected(hub)
    assert not hub.opened(Connection(Transport(), hub, now=0.0))
