import uuid

import pytest
from livetree.core.ids import is_id, uuid7


@pytest.mark.parametrize("text", ["a", "0", "-", "_", "A-b_9", "x" * 64, uuid7(0, bytes(10))])
def test_what_a_caller_may_bring_as_an_id(text: str):
    assert is_id(text)


@pytest.mark.parametrize(
    "text",
    ["", "x" * 65, "a b", "a\n", "\na", "a.b", "a/b", "$x", "é", "\u0661", "a\0", "\U0001f600"],
)
def test_what_a_caller_may_not_bring_as_an_id(text: str):
    assert not is_id(text)


def test_a_made_id_is_a_uuid_of_version_7():
    # The example of RFC 9562, appendix A.6.
    made = uuid7(0x017F22E279B0, bytes.fromhex("0cc318c4dc0c0c07398f"))

    assert made == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"
    assert uuid.UUID(made).version == 7
    assert uuid.UUID(made).variant == uuid.RFC_4122


@pytest.mark.parametrize("entropy", [bytes(10), b"\xff" * 10, b"\x80" + bytes(9)])
def test_entropy_touches_neither_time_nor_version(entropy: bytes):
    made = uuid.UUID(uuid7(1_700_000_000_123, entropy))

    assert made.int >> 80 == 1_700_000_000_123
    assert (made.version, made.variant) == (7, uuid.RFC_4122)


def test_made_ids_are_ordered_by_time():
    times = [0, 1, 999, 2**32, 1_700_000_000_000, 2**48 - 1]

    made = [uuid7(time, b"\xff" * 10) for time in times]

    assert made == sorted(made)
    assert len({*made}) == len(made)


def test_time_beyond_48_bits_does_not_spill_into_a_longer_id():
    assert len(uuid7(2**48, bytes(10))) == 36
