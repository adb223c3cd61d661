import json
from collections.abc import Iterator

import pytest
from livetree.formats import FORMATS, Conversation, FormatError, detect, read
from livetree.formats.chatgpt import CHATGPT
from livetree.formats.detect import HEAD_BYTES

from tests.sdk.formats.exports import as_file, export


def refusal(head: bytes, name: str = "") -> str:
    with pytest.raises(FormatError) as refused:
        detect(head, name)
    return str(refused.value)


def test_each_format_has_a_name_of_its_own():
    assert len({known.name for known in FORMATS}) == len(FORMATS)


@pytest.mark.parametrize(
    "head",
    [
        as_file(export("a: user hi")),
        json.dumps(export("a: user hi")).encode(),
        b'\xef\xbb\xbf \n[{"title": "\\"x\\"", "mapping" : {}}]',
        b'[null, {"current_node": null}]',
        b'[{"title": "cut off in the first message", "mapping": {"a": {"id": "a", "mess',
        b'[{"title": "without messages", "conversation_template_id": null}]',
    ],
    ids=["list", "alone", "bom", "null first", "cut", "faulty"],
)
def test_a_chatgpt_export_is_recognised(head: bytes):
    assert detect(head) is CHATGPT


@pytest.mark.parametrize(
    "head",
    [
        b"[]",
        b"{}",
        b"[[]]",
        b'["mapping"]',
        b'[["mapping", {"mapping": 1}]]',
        b'[{"title": "mapping"}]',
        b'[{"title": "\\"mapping\\": {}"}]',
        b'{"chat": {"mapping": {}}}',
        b'{"data": [{"mapping": {}}]}',
        b'[{"title": "\xef\xbb\xbf", "text": "x"}]',
        b'{"\\ud800": 1}',
        b'{"\xff": 1}',
        b"]]]]",
        b"plain text",
        b"\x00\x01\x02",
    ],
)
def test_an_unknown_file_is_refused_naming_what_can_be_read(head: bytes):
    assert refusal(head) == (
        "the file is of no format that can be read; those are: "
        "ChatGPT data export (conversations.json)"
    )


def test_a_zip_archive_is_to_be_unpacked():
    assert "zip archive; unpack it" in refusal(b"PK\x03\x04....", "export.zip")


def test_an_empty_file_is_refused():
    assert refusal(b"") == "byte 0: the file is empty"


def test_reading_tells_the_format_itself():
    (record,) = read([as_file(export("a: user hi"))])

    assert isinstance(record.outcome, Conversation)


@pytest.mark.parametrize("size", [1, 7, 1_000_000])
def test_reading_loses_nothing_of_what_it_looked_at(size: int):
    file = as_file(*(export(f"a{at}: user {'long ' * 2000}") for at in range(20)))
    chunks = (file[start : start + size] for start in range(0, len(file), size))

    assert len(file) > 2 * HEAD_BYTES
    assert [record.error for record in read(chunks)] == [None] * 20


def test_reading_an_unknown_file_raises_at_once_and_reads_only_its_head():
    asked = 0

    def chunks() -> Iterator[bytes]:
        nonlocal asked
        while True:
            asked += 1
            yield b"x" * 1024

    with pytest.raises(FormatError):
        read(chunks())

    assert asked == HEAD_BYTES // 1024


def test_a_format_that_is_given_is_not_asked_for():
    assert list(read([b"[]"], format=CHATGPT)) == []

    (record,) = read([b""], format=CHATGPT)
    assert str(record.error) == "record 0, byte 0: the file is empty; nothing after it was read"


def test_a_record_over_the_limit_is_refused_and_the_next_one_read():
    large, small = export(f"a: user {'x' * 5000}"), export("a: user x")

    first, second = read([as_file(large, small)], max_record_bytes=4000)

    assert "more than are read of one record" in str(first.error)
    assert second.error is None
