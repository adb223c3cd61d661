import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from livetree.formats import Conversation, FormatError, ImportedMessage, Record
from livetree.formats.reading import read_json


def titled(record: Any) -> Conversation:
    """Stand in for an importer: a conversation of that title, or a refusal."""
    if record == "bad":
        raise FormatError("it is bad")
    if record == "worse":
        raise FormatError("its inside is bad", offset=77)
    return Conversation(name=record, messages=[], active_id=None, metadata={})


def records(text: bytes) -> list[Record]:
    return list(read_json([text], 1000, titled))


def test_each_record_is_a_conversation_or_a_refusal_with_its_place():
    first, second, third = records(b'["a", "bad", "b"]')

    assert (first.conversation and first.conversation.name, first.error) == ("a", None)
    assert (second.conversation, str(second.error)) == (None, "record 1, byte 6: it is bad")
    assert (third.conversation and third.conversation.name, third.error) == ("b", None)
    assert [record.index for record in (first, second, third)] == [0, 1, 2]
    assert [record.offset for record in (first, second, third)] == [1, 6, 13]


def test_a_refusal_keeps_the_place_that_it_knows_better():
    (record,) = records(b'["worse"]')

    assert str(record.error) == "record 0, byte 77: its inside is bad"


def test_what_is_no_json_is_refused_and_the_next_one_read():
    first, second = records(b'[bad, "b"]')

    assert "it is not valid JSON" in str(first.error)
    assert second.error is None


def test_what_an_importer_makes_is_validated():
    def invalid(record: Any) -> Conversation:
        lost = ImportedMessage(id="a", parent_id="b", role="user", data={"parts": []}, created_at=0)
        return Conversation(messages=[lost], active_id=None, metadata={})

    (record,) = read_json([b"[1]"], 1000, invalid)

    assert str(record.error) == "record 0, byte 1: message 'a': its parent 'b' is not before it"


def test_a_fault_of_the_file_is_the_last_record():
    *sound, last = records(b'["a", "b" "c"]')

    assert [record.error for record in sound] == [None, None]
    assert last.error is not None
    assert last.error.rest_unread
    assert (last.index, last.offset) == (2, 10)


def test_a_fault_of_an_importer_itself_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        list(read_json([b"[1]"], 1000, lambda record: record / 0))


def test_memory_holds_one_conversation_and_not_the_file():
    def chunks() -> Iterator[bytes]:
        yield b'["first"'
        for _ in range(50):
            yield b',"' + b"x" * 1_000_000 + b'"'
        yield b"]"

    tracemalloc.start()
    try:
        number = sum(record.error is None for record in read_json(chunks(), 2**30, titled))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert number == 51
    # The chunk as it is made, the record's pieces and text, and its value.
    assert peak < 6_000_000
