import json
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from livetree.core.canonical import MAX_DEPTH
from livetree.formats import FormatError
from livetree.formats.json_stream import Element, decode, split

TEXTS = st.text(st.sampled_from('"\\[]{},: a\né😀\ufeff'), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def pieces(text: bytes, size: int) -> list[bytes]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def split_all(text: bytes, **options: int) -> tuple[list[Element], FormatError | None]:
    """Split a file; return what came before a fault, and the fault."""
    found: list[Element] = []
    try:
        elements = split([text], **options)
        while element := next(elements, None):
            found.append(element)
    except FormatError as fault:
        return found, fault
    return found, None


def values_of(text: bytes) -> list[object]:
    found, fault = split_all(text)
    assert fault is None
    return [decode(element) for element in found]


def fault_of(text: bytes) -> FormatError:
    _, fault = split_all(text)
    assert fault is not None
    return fault


@given(
    st.lists(VALUES, max_size=6),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_records_are_those_of_the_list(
    values: list[object], indent: int | None, escaped: bool, size: int, window: int
):
    text = json.dumps(values, indent=indent, ensure_ascii=escaped).encode()

    found = list(split(pieces(text, size), window=window))

    assert [decode(element) for element in found] == values
    assert [element.index for element in found] == list(range(len(values)))
    for element in found:
        assert element.raw == text[element.offset : element.offset + element.size]


def test_a_record_alone_is_a_file_too():
    assert values_of(b' {"a": [1]} ') == [{"a": [1]}]


def test_a_list_may_be_empty():
    assert values_of(b"[ ]\n") == []


def test_records_need_not_be_objects():
    assert values_of(b'[1, null,"]" ,[], -2.5e3\t]') == [1, None, "]", [], -2500.0]


def test_brackets_and_quotes_in_strings_mean_nothing():
    value = {"]}": '[{"\\', "\\": '\\"', '\\\\"': "}"}

    assert values_of(json.dumps([value, value]).encode()) == [value, value]


@pytest.mark.parametrize("backslashes", range(6))
@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_escapes_hold_over_the_edge_of_a_window(backslashes: int, window: int):
    value = ["\\" * backslashes + '"', "]"]
    text = json.dumps([value, 1]).encode()

    assert [decode(element) for element in split([text], window=window)] == [value, 1]


@pytest.mark.parametrize("window", [1, 2, 3, 64])
@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b" \n\xef\xbb\xbf\t", b"\r\n"])
def test_white_space_and_one_bom_may_come_first(before: bytes, window: int):
    assert [decode(element) for element in split([before + b"[1]"], window=window)] == [1]


@pytest.mark.parametrize("window", [1, 64])
def test_a_second_bom_is_refused(window: int):
    _, fault = split_all(b"\xef\xbb\xbf\xef\xbb\xbf[1]", window=window)

    assert fault is not None
    assert (fault.record, fault.offset) == (0, 3)


@pytest.mark.parametrize("text", [b"", b" \n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(text: bytes):
    assert fault_of(text).reason == "the file is empty"


def test_a_file_of_no_bytes_at_all_is_refused():
    with pytest.raises(FormatError, match="the file is empty"):
        list(split([]))


@pytest.mark.parametrize("text", [b"1", b'"a"', b"null", b"}", b"\xef\xbb[]", b"\x00", b"<html>"])
def test_a_file_that_is_no_list_of_records_is_refused(text: bytes):
    fault = fault_of(text)

    assert "neither a list of records nor one alone" in fault.reason
    assert (fault.record, fault.offset, fault.rest_unread) == (0, 0, True)


@pytest.mark.parametrize(
    ("text", "record", "offset"),
    [
        (b"[1,]", 1, 3),
        (b"[,1]", 0, 1),
        (b"[1,,2]", 1, 3),
        (b"[}", 0, 1),
        (b"[1 2]", 1, 3),
        (b"[{}{}]", 1, 3),
        (b'["a""b"]', 1, 4),
        (b"[1}", 1, 2),
        (b"[1]]", 1, 3),
        (b"[] []", 0, 3),
        (b'{"a":1}{"a":2}', 1, 7),
        (b'{"a":1}\n\n,', 1, 9),
        (b"[1]\x00", 1, 3),
        (b'[\xef\xbb\xbf{"a": 1}]', 1, 4),
    ],
)
def test_a_fault_between_records_is_named_and_ends_the_file(text: bytes, record: int, offset: int):
    found, fault = split_all(text)

    assert fault is not None
    assert (fault.record, fault.offset, fault.rest_unread) == (record, offset, True)
    assert len(found) == record


def test_a_file_cut_off_anywhere_gives_the_records_before_and_says_so():
    text = b'[{"a": "x\\"]"}, {"b": [1, {}]}, "c", 17 ]'
    whole = list(split([text]))

    for length in range(1, len(text)):
        found, fault = split_all(text[:length])

        assert found == whole[: len(found)]
        assert fault is not None, length
        assert "cut off" in fault.reason
        assert (fault.record, fault.rest_unread) == (len(found), True)


def test_a_record_cut_off_is_named_by_its_beginning():
    fault = fault_of(b'[1, {"a": ')

    assert (fault.record, fault.offset) == (1, 4)
    assert str(fault) == "record 1, byte 4: the file is cut off inside of it; " + (
        "nothing after it was read"
    )


@pytest.mark.parametrize(
    ("raw", "reason", "offset"),
    [
        (b'{"a" 1}', "it is not valid JSON", 6),
        (b'{"a": NaN}', "it is not valid JSON", 7),
        (b"{1: 2}", "it is not valid JSON", 2),
        (b"[1,]", "it is not valid JSON", 4),
        (b"[1}", "it is not valid JSON", 3),
        (b"01", "it is not valid JSON", 2),
        (b'["a\nb"]', "it is not valid JSON", 4),
        (b'["\\x"]', "it is not valid JSON", None),
        (b'["\\ud800"]', "it is not valid JSON", None),
        (b'["\\ud800\\u0041"]', "it is not valid JSON", None),
        (b"1e999", "it is not valid JSON", None),
        (b"9" * 5000, "it is not valid JSON", None),
        (b'["\xff"]', "byte 0xff is not UTF-8", 3),
        (b'["ab\xed\xa0\x80"]', "byte 0xed is not UTF-8", 5),
        (b'{"\xc3": 1}', "byte 0xc3 is not UTF-8", 3),
        (b"[\xff]", None, None),
    ],
)
def test_a_broken_record_is_refused_and_the_next_one_read(
    raw: bytes, reason: str | None, offset: int | None
):
    found, fault = split_all(b"[" + raw + b",2]")

    assert fault is None
    assert len(found) == 2
    with pytest.raises(FormatError) as refused:
        decode(found[0])
    assert reason is None or reason in refused.value.reason
    assert offset is None or refused.value.offset == offset
    assert decode(found[1]) == 2


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5_000, 1_000_000])
def test_a_record_nested_too_deep_is_refused_and_the_next_one_read(
    opening: bytes, closing: bytes, depth: int
):
    text = b"[" + opening * depth + b"1" + closing * depth + b",2]"

    deep, sound = split([text])

    assert deep.depth == depth
    with pytest.raises(FormatError, match=f"nests {depth} levels deep"):
        decode(deep)
    assert decode(sound) == 2


def test_a_record_may_nest_as_deep_as_the_server_takes():
    (deep,) = split([b"[" + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"]"])

    assert deep.depth == MAX_DEPTH
    decode(deep)


def test_a_record_too_large_is_passed_over_unkept_and_the_next_one_read():
    text = b'[{"a": "' + b"x" * 100 + b'"}, {"b": 1}]'

    large, small = split([text], max_bytes=20, window=8)

    assert (large.raw, large.size, large.offset) == (None, 109, 1)
    with pytest.raises(FormatError, match="it has 109 bytes"):
        decode(large)
    assert decode(small) == {"b": 1}


def test_a_record_of_just_the_size_allowed_is_read():
    found, fault = split_all(b'[{"a": 1}]', max_bytes=8)

    assert fault is None
    assert decode(found[0]) == {"a": 1}


def test_records_come_before_the_rest_of_the_file_is_asked_for():
    asked = 0

    def chunks() -> Iterator[bytes]:
        nonlocal asked
        for _ in range(100):
            asked += 1
            yield b'[{"a": 1}' if asked == 1 else b',{"a": 1}' * 100
        yield b"]"

    next(split(chunks(), window=64))

    assert asked <= 2


def test_memory_holds_one_record_and_not_the_file():
    record = b'{"a": ["' + b'\\"text ' * 40_000 + b'"]}'

    def chunks(number: int) -> Iterator[bytes]:
        yield b"[" + record
        for _ in range(number):
            yield b"," + record
        yield b"]"

    tracemalloc.start()
    try:
        for _ in split(chunks(100)):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1024 * 1024 + 2 * len(record)


def test_a_string_without_end_takes_linear_time():
    # In small chunks, each of which leaves the string open: starting over would be quadratic.
    chunks = [b'[{"a": "', *([b"x" * 1000] * 20_000)]

    with pytest.raises(FormatError, match="cut off"):
        list(split(chunks))
