import json
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from livetree.core.content import (
    EMPTY_DATA,
    MAX_DATA_BYTES,
    PREVIEW_LENGTH,
    check_data,
    data_of_text,
    is_empty,
    merge_data,
    parts_checksum,
    preview_of,
    text_of,
)
from livetree.core.errors import TooLarge, Validation
from msgspec import Raw


def data(*parts: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"parts": [*parts], **more}).encode()


def part(text: Any, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": text}


def test_no_text_is_no_parts():
    assert data_of_text("") == EMPTY_DATA == b'{"parts":[]}'


@pytest.mark.parametrize("text", ["hi", " ", "\0", "é\U0001f600", '"\\', "\u2028"])
def test_data_of_a_text_has_just_this_text(text: str):
    made = data_of_text(text)

    assert json.loads(made) == {"parts": [{"type": "text", "text": text}]}
    assert text_of(made) == text
    assert check_data(made) == made


@pytest.mark.parametrize("text", ["\ud800", "a\udc00b"])
def test_half_a_character_is_no_text(text: str):
    with pytest.raises(Validation, match="whole characters"):
        data_of_text(text)


def test_text_over_the_limit_of_data_is_refused():
    room = MAX_DATA_BYTES - len(data_of_text("x")) + 1

    assert len(data_of_text("x" * room)) == MAX_DATA_BYTES
    with pytest.raises(TooLarge) as refusal:
        data_of_text("x" * (room + 1))
    assert refusal.value.details == {"limit": MAX_DATA_BYTES}


def test_text_that_grows_by_escaping_is_measured_as_data():
    with pytest.raises(TooLarge):
        data_of_text("\0" * (MAX_DATA_BYTES // 2))


@pytest.mark.parametrize(
    "raw",
    [
        data(),
        data(part("hi")),
        data(part("")),
        data(part("a\0b")),
        data({"type": "file", "url": "a"}, {"type": "tool-x", "input": {"deep": [1]}}),
        data({"type": "file", "text": 5}),
        data(part("hi"), turnOptions={"a": 1}, source=None),
        b' { "parts" : [ ] } ',
        b'{"parts":3,"parts":[]}',
    ],
)
def test_data_is_kept_as_it_came(raw: bytes):
    assert check_data(raw) == raw
    assert check_data(Raw(raw)) == raw
    assert check_data(raw, partial=True) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b"null",
        b'"parts"',
        b"{}",
        b'{"Parts":[]}',
        b'{"parts":null}',
        b'{"parts":{}}',
        b'{"parts":[null]}',
        b'{"parts":["hi"]}',
        b'{"parts":[{}]}',
        b'{"parts":[{"type":1}]}',
        b'{"parts":[{"type":"text"}]}',
        b'{"parts":[{"type":"text","text":null}]}',
        b'{"parts":[{"type":"text","text":["a"]}]}',
        b'{"parts":[],"parts":3}',
        rb'{"parts":[],"x":"\ud800"}',
        b'{"parts":[],"x":9007199254740992}',
        b'{"parts":[],"x":' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"parts":[]',
    ],
)
def test_data_of_another_form_is_refused(raw: bytes):
    with pytest.raises(Validation):
        check_data(raw)


def test_a_fault_names_the_part():
    with pytest.raises(Validation, match=r"data.parts\[1\]"):
        check_data(data(part("a"), {"text": "no type"}))


def test_only_a_patch_may_lack_parts():
    assert check_data(b'{"a":1}', partial=True) == b'{"a":1}'
    with pytest.raises(Validation, match="no parts"):
        check_data(b'{"a":1}')
    with pytest.raises(Validation, match="not a list"):
        check_data(b'{"parts":1}', partial=True)


def test_data_has_a_limit():
    filler = MAX_DATA_BYTES - len(data(a=""))

    check_data(data(a="x" * filler))
    with pytest.raises(TooLarge):
        check_data(data(a="x" * (filler + 1)))


def test_a_patch_is_laid_over_key_by_key():
    merged = merge_data(b'{"parts":[1],"a":{"b":1},"c":1.0}', b'{"a":{"d":2},"e":1E5}')

    # Values keep their very text.
    assert merged == b'{"parts":[1],"a":{"d":2},"c":1.0,"e":1E5}'


def test_a_patch_of_nothing_changes_no_value():
    old = data(part("hi"), a=[1, 2.50])

    assert json.loads(merge_data(old, b"{}")) == json.loads(old)


def test_text_is_that_of_text_parts_alone():
    raw = data(part("a"), part("no", "reasoning"), {"type": "file", "text": {"x": 1}}, part("b"))

    assert text_of(raw) == "ab"
    assert not is_empty(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"parts":[{"typ\\u0065":"text","t\\u0065xt":"x"}]}',
        b'{"parts":3,"parts":[]}',
        b'{"parts":[],"parts":[{"type":"text","text":"x"}]}',
        b'{"parts":[7],"parts":[{"type":"text","text":"x"}]}',
        b'{"parts":[{"type":7,"type":"text","text":"x"}]}',
        b'{"parts":[{"type":"text","text":7,"text":"x"}]}',
    ],
)
def test_escaped_and_repeated_keys_are_read_as_every_client_reads_them(raw: bytes):
    read = json.loads(raw)

    assert check_data(raw) == raw
    assert text_of(raw) == "".join(each["text"] for each in read["parts"])
    assert is_empty(raw) == (not read["parts"])


@pytest.mark.parametrize(
    ("parts", "preview"),
    [
        ([], ""),
        ([part("  hi\n")], "hi"),
        ([part(" \t"), part("\u3000"), part("second")], "second"),
        ([part("no", "reasoning"), part("yes")], "yes"),
        ([part("", "text")], ""),
        ([{"type": "file"}], ""),
        ([part("\ufeff\u00a0x\u2003")], "x"),
        # Python's own strip would take these; ECMAScript's trim does not.
        ([part("\x1cx\x1f")], "\x1cx\x1f"),
        ([part("\x85x\u180e")], "\x85x\u180e"),
        ([part("a b")], "a b"),
        ([part("x" * 99 + " " + "y" * 9)], "x" * 99),
        ([part("\U0001f600" * 101)], "\U0001f600" * 100),
        ([part(" " * 500 + "x")], "x"),
    ],
)
def test_a_preview_is_the_first_text_that_is_not_blank(parts: list[dict[str, Any]], preview: str):
    assert preview_of(data(*parts)) == preview


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])).map(part), max_size=4))
def test_a_preview_is_short_and_trimmed(parts: list[dict[str, Any]]):
    preview = preview_of(data(*parts))

    assert len(preview) <= PREVIEW_LENGTH
    assert preview == preview_of(data(part(preview)))
    assert preview in text_of(data(*parts))


def test_empty_means_no_parts_at_all():
    assert is_empty(EMPTY_DATA)
    assert is_empty(data(a=1))
    assert not is_empty(data(part("")))
    assert not is_empty(data({"type": "file"}))


def test_the_checksum_is_that_of_the_canonical_text():
    parts = [{"text": "é", "type": "text"}, {"type": "x", "b": 1.0, "a": None}]

    text = '[{"text":"é","type":"text"},{"a":null,"b":1,"type":"x"}]'
    assert parts_checksum(parts) == crc32(text.encode())
    assert parts_checksum([dict(reversed(each.items())) for each in parts]) == crc32(text.encode())
    assert parts_checksum([]) == crc32(b"[]")
