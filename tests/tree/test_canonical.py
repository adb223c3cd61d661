import json
import random
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from livetree.core.canonical import MAX_DEPTH, MAX_INTEGER, canonical, check_json
from livetree.core.errors import TooLarge, Validation
from msgspec import Raw

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-MAX_INTEGER, MAX_INTEGER) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(TEXT, below, max_size=4),
    max_leaves=12,
)


def check(raw: bytes, max_bytes: int = 10_000_000) -> Any:
    return check_json(raw, "the value", max_bytes=max_bytes)


# What is let in --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"nul",
        b"1 2",
        b"[1,]",
        b'{"a":1,}',
        b"01",
        b"+1",
        b".5",
        b"'a'",
        b"NaN",
        b"-Infinity",
        b"1e400",
        b"-1e400",
        b"\xef\xbb\xbf1",
        b'"\x00"',
        b'"\n"',
        b'"\xff"',
        b'{"\xff":1}',
        b'"\xed\xa0\x80"',
        rb'"\ud800"',
        rb'"\udc00"',
        rb'"\udc00\ud800"',
        rb'"\ud800\ud800"',
        rb'"a\ud83d"',
        rb'["\ud83d",1]',
        rb'{"\ud83d":1}',
        rb'{"a":{"b":["\ud83dx"]}}',
    ],
)
def test_what_some_client_could_not_read_is_refused(raw: bytes):
    with pytest.raises(Validation, match="the value is not JSON that every client can read"):
        check(raw)


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**63, 2**64 - 1, 2**64, -(2**64), 10**300])
@pytest.mark.parametrize("around", ["{}", "[{}]", '{{"a":[0,{{"b":{}}}]}}'])
def test_integers_that_lose_digits_are_refused(number: int, around: str):
    with pytest.raises(Validation, match="integers end at"):
        check(around.format(number).encode())


@pytest.mark.parametrize("digits", [4_301, 100_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_endless_integers_are_refused(sign: str, digits: int):
    with pytest.raises(Validation):
        check(f"{sign}{'9' * digits}".encode())


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"9007199254740991", MAX_INTEGER),
        (b"-9007199254740991", -MAX_INTEGER),
        (b"9007199254740992.0", 2.0**53),  # a float, which every language reads alike
        (b"1e300", 1e300),
        (b"-0", 0),
        (b"1E5", 1e5),
        (rb'"\u0000"', "\0"),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        ('"\U0001f600"'.encode(), "\U0001f600"),
        (b" [ ] ", []),
        (b'""', ""),
    ],
)
def test_what_every_client_reads_alike_is_let_in(raw: bytes, value: Any):
    assert check(raw) == value
    assert type(check(raw)) is type(value)


def test_of_duplicate_keys_the_last_counts():
    assert check(b'{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}
    assert check(rb'{"a":1,"\u0061":3}') == {"a": 3}


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_values_nest_100_levels_and_no_more(opening: str):
    closing = "]" if opening == "[" else "}"
    inner = "[]" if opening == "[" else "{}"

    def nested(levels: int) -> bytes:
        return (opening * (levels - 1) + inner + closing * (levels - 1)).encode()

    check(nested(MAX_DEPTH))
    with pytest.raises(Validation, match="nests deeper than 100 levels"):
        check(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "raw",
    [b"[" * 100_000 + b"]" * 100_000, b"[" * 100_000, b'{"":' * 100_000],
    ids=["whole", "open", "objects"],
)
def test_endless_nesting_is_refused_like_any_other_fault(raw: bytes):
    with pytest.raises(Validation):
        check(raw)


def test_a_wide_value_is_not_deep():
    assert len(check(b"[" + b",".join([b"[[1]]"] * 10_000) + b"]")) == 10_000


def test_size_is_looked_at_before_anything_else():
    check(b'"1234567"', max_bytes=9)
    with pytest.raises(TooLarge, match="the value has 9 bytes; the limit is 8") as refusal:
        check(b'"1234567"', max_bytes=8)
    assert refusal.value.details == {"limit": 8}
    with pytest.raises(TooLarge):
        check(b"no JSON at all", max_bytes=8)


def test_size_is_that_of_the_utf8_text():
    raw = '"é"'.encode()

    with pytest.raises(TooLarge):
        check(raw, max_bytes=3)
    assert check(raw, max_bytes=4) == "é"


def test_raw_values_are_checked_as_they_stand():
    assert check_json(Raw(b'{"a":[1]}'), "it", max_bytes=99) == {"a": [1]}
    with pytest.raises(Validation):
        check_json(Raw(rb'"\ud800"'), "it", max_bytes=99)


# The canonical text ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        # RFC 8785, appendix B.
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_of_rfc_8785(bits: str, text: str):
    (number,) = struct.unpack(">d", bytes.fromhex(bits))

    assert canonical(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (-1, "-1"),
        (MAX_INTEGER, "9007199254740991"),
        (1.0, "1"),
        (-1.0, "-1"),
        (100.0, "100"),
        (1e15, "1000000000000000"),
        (1e16, "10000000000000000"),
        (123456789012345680000.0, "123456789012345680000"),
        (1.5e20, "150000000000000000000"),
        (1e20, "100000000000000000000"),
        (0.1, "0.1"),
        (123.456, "123.456"),
        (1e-5, "0.00001"),
        (1.25e-6, "0.00000125"),
        (1e-7, "1e-7"),
        (1.25e-7, "1.25e-7"),
        (-1.25e-300, "-1.25e-300"),
        (1.25e25, "1.25e+25"),
    ],
)
def test_numbers_are_laid_out_as_ecmascript_does(number: float, text: str):
    assert canonical(number) == text


def test_the_example_of_rfc_8785():
    value = check(
        rb"""{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
              "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
              "literals": [null, true, false]}"""
    )

    assert canonical(value) == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + "'" + r'B\"\\\\\"/"}'
    )


def test_keys_are_sorted_by_utf_16_units():
    # RFC 8785 §3.2.3: an emoji is a pair from U+D83D on, and so before U+FB33.
    keys = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    shuffled = dict.fromkeys(random.Random(8785).sample(keys, len(keys)), 1)

    assert list(json.loads(canonical(shuffled))) == keys
    assert sorted(keys) != keys, "code points would sort them otherwise"


def test_a_key_sorts_before_those_that_it_begins():
    assert canonical({"aa": 1, "a": 2, "": 3, "a\0": 4}) == r'{"":3,"a":2,"a\u0000":4,"aa":1}'


def test_only_what_must_be_is_escaped():
    text = "".join(map(chr, range(0x20))) + '"\\/\x7f\u2028\ud7ff\ue000\uffff\U0010ffff'

    assert canonical(text) == (
        r'"\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n\u000b\f\r\u000e\u000f'
        r"\u0010\u0011\u0012\u0013\u0014\u0015\u0016\u0017\u0018\u0019\u001a\u001b\u001c\u001d\u001e"
        r"\u001f\"\\/" + '\x7f\u2028\ud7ff\ue000\uffff\U0010ffff"'
    )


def test_true_is_not_one():
    assert canonical([True, 1, 1.0, False, 0, -0.0, None]) == "[true,1,1,false,0,0,null]"


def test_the_deepest_value_allowed_is_written():
    nested: Any = []
    for _ in range(MAX_DEPTH - 1):
        nested = [nested]

    assert canonical(nested) == "[" * MAX_DEPTH + "]" * MAX_DEPTH


@given(VALUES)
def test_the_text_has_the_value(value: Any):
    text = canonical(value)

    read = json.loads(text, parse_int=float)  # as ECMAScript reads it
    assert canonical(read) == text
    assert read == value


@given(VALUES)
def test_the_text_of_what_crossed_the_wire_is_the_same(value: Any):
    assert canonical(check(msgspec.json.encode(value))) == canonical(value)
    assert canonical(json.loads(json.dumps(value))) == canonical(value)


@given(st.dictionaries(TEXT, NUMBERS), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(value: dict[str, Any], chance: random.Random):
    keys = [*value]
    chance.shuffle(keys)

    assert canonical({key: value[key] for key in keys}) == canonical(value)
