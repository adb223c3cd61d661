"""Files that are cut off, mixed up or made to harm: whole conversations, refusals, nothing else."""

import json
import random
from collections.abc import Iterable

import pytest
from livetree.formats import Conversation, FormatError, Record, validate
from livetree.formats.chatgpt import CHATGPT

from tests.sdk.formats.exports import as_file, export, message, tree

LIMIT = 2**20


def sample() -> bytes:
    call = message("assistant", 'search("x")', recipient="web", create_time=1700000001.5)
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "c"}]}
    lines = """
        root:
        q < root: user Say "[{" or \\ é😀
        c < q:
        r < c: tool found
        t < r:
        a < t: assistant Done
        b < t: assistant Done, too
    """
    thinking = message("assistant", content=thoughts)
    return as_file(
        export(tree(lines, c=call, t=thinking)),
        {"id": "c-2", "title": "Without messages"},
        export("x: user Hello\ny < x: assistant Hi", title="Short", current_node=None),
    )


def outcomes(file: bytes, chunks: Iterable[bytes] | None = None) -> list[Record]:
    """Read a file as ChatGPT's; whatever comes must be valid or say what is wrong."""
    records = list(CHATGPT.read([file] if chunks is None else chunks, LIMIT))
    for number, record in enumerate(records):
        assert record.index == number
        if isinstance(record.outcome, Conversation):
            validate(record.outcome)
        else:
            assert isinstance(record.outcome, FormatError)
            assert record.outcome.record == number
            assert record.outcome.reason
            assert len(str(record.outcome)) < 1000
            assert not record.outcome.rest_unread or record is records[-1]
    return records


def test_the_sample_itself_has_two_sound_conversations():
    first, second, third = outcomes(sample())

    assert first.conversation is not None
    assert second.error is not None
    assert third.conversation is not None


def test_a_file_cut_off_anywhere_gives_whole_conversations_and_one_refusal():
    file = sample()
    whole = outcomes(file)

    for length in range(len(file) - 1):
        *before, last = outcomes(file[:length])

        assert [record.outcome for record in before if record.conversation] == [
            record.outcome for record in whole[: len(before)] if record.conversation
        ]
        assert last.error is not None
        assert last.error.rest_unread


def test_a_file_with_two_bytes_swapped_anywhere_is_read_or_refused():
    file = sample()

    for at in range(len(file) - 1):
        outcomes(file[:at] + bytes([file[at + 1], file[at]]) + file[at + 2 :])


@pytest.mark.parametrize("byte", [b"", b'"', b"\\", b"{", b"]", b"\xff"])
def test_a_file_with_any_byte_replaced_is_read_or_refused(byte: bytes):
    file = sample()

    for at in range(len(file)):
        outcomes(file[:at] + byte + file[at + 1 :])


@pytest.mark.parametrize("seed", range(200))
def test_a_file_with_pieces_moved_is_read_or_refused(seed: int):
    file = sample()
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 4)):
        start, end, to = (chance.randrange(len(file)) for _ in range(3))
        piece = file[start : start + end % 200]
        file = file[:to] + piece + file[to:] if seed % 2 else file[:start] + file[end:]

    outcomes(file or b" ")


@pytest.mark.parametrize(
    "broken",
    [b"{,}", b"nul", b"[1}", b'{"a": NaN}', b'{"a": "\xff"}', b"[" * 999 + b"]" * 999, b"5"],
    ids=["comma", "word", "bracket", "NaN", "UTF-8", "deep", "number"],
)
def test_a_conversation_is_untouched_by_a_broken_neighbour(broken: bytes):
    sound = json.dumps(export("a: user hi")).encode()
    whole = outcomes(b"[" + sound + b"]")[0].outcome

    first, second, third = outcomes(b"[" + sound + b"," + broken + b"," + sound + b"]")

    assert (first.outcome, third.outcome) == (whole, whole)
    assert second.error is not None


def test_the_size_of_chunks_changes_nothing():
    file = sample()
    whole = [record.outcome for record in outcomes(file) if record.conversation]

    for size in (1, 2, 3, 5, 64, 1000):
        chunks = (file[start : start + size] for start in range(0, len(file), size))
        found = [record.outcome for record in outcomes(file, chunks) if record.conversation]
        assert found == whole


def test_a_conversation_nested_too_deep_is_refused_and_the_next_one_comes_in():
    deep = as_file(export("a: user hi", extra="HERE"), export("b: user hi"))
    deep = deep.replace(b'"HERE"', b"[" * 100_000 + b"]" * 100_000)

    first, second = outcomes(deep)

    assert "levels deep" in str(first.error)
    assert second.conversation is not None


def test_half_a_surrogate_pair_is_refused():
    file = as_file(export("a: user HERE")).replace(b"HERE", rb"\ud83d ")

    (record,) = outcomes(file)

    assert record.error is not None
