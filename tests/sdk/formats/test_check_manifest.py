import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.formats.check_manifest import differences, main, unchecked
from tests.sdk.formats.exports import as_file, export, message, tree

LINES = """
    root:
    s < root:
    q < s: user Hello
    a1 < q: assistant Hello you
    a2 < q: assistant Hi
    c < a1:
    r < c: tool found
"""


def counted() -> list[dict[str, Any]]:
    """State what an import of `chats` must count, by hand."""
    talk = {
        "id": "c-1",
        "title": "A talk",
        "nodes_in_file": 7,
        "null_message_nodes": 1,
        "messages": 6,
        "roles": {"system": 1, "user": 1, "assistant": 3, "tool": 1},
        "first_turns": 1,
        "leaves": 2,
        "max_depth": 5,
        "sibling_groups": 1,
        "sibling_group_sizes": [2],
        "groups": [{"parent": "q", "children": ["a1", "a2"]}],
        "active_depth": 3,
        "active_leaf": {
            "id": "a2",
            "role": "assistant",
            "text_starts_with": "Hi",
            "is_leaf": True,
        },
        "active_path_roles": ["system", "user", "assistant"],
        "hidden_flagged": 1,
        "weight_zero": 1,
        "content_types": {"text": 6},
        "tool_calls_by_recipient": 1,
        "has_children_key": False,
        "active_rule": "current_node",
    }
    return [talk, {"title": "Lost", "faulty": "no mapping object", "messages": 0}]


def chats() -> bytes:
    hidden = {"is_visually_hidden_from_conversation": True}
    messages = {
        "s": message("system", weight=0, metadata=hidden),
        "c": message("assistant", "find it", recipient="web"),
    }
    talk = export(tree(LINES, **messages), current_node="a2")
    return as_file(talk, {"id": "c-2", "title": "Lost"})


def write(directory: Path, *, content: bytes | None = None, **fields: Any) -> Path:
    content = chats() if content is None else content
    (directory / "chatgpt").mkdir(exist_ok=True)
    (directory / "chatgpt/chats.json").write_bytes(content)
    entry = {
        "path": "chatgpt/chats.json",
        "format": "chatgpt",
        "sha256": hashlib.sha256(content).hexdigest(),
        "totals": {"conversations": 2, "messages": 6, "leaves": 2, "sibling_groups": 1},
        "conversations": counted(),
        **fields,
    }
    (directory / "manifest.json").write_text(json.dumps({"files": [entry]}), "utf-8")
    return directory


def test_a_file_that_is_as_counted_has_no_differences(tmp_path: Path):
    assert differences(write(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", "c-3"),
        ("title", None),
        ("nodes_in_file", 8),
        ("messages", 7),
        ("roles", {"user": 6}),
        ("first_turns", 2),
        ("leaves", 3),
        ("max_depth", 6),
        ("sibling_groups", 2),
        ("sibling_group_sizes", [3]),
        ("groups", [{"parent": "q", "children": ["a2", "a1"]}]),
        ("groups", []),
        ("active_depth", 4),
        ("active_path_roles", ["user"]),
        ("active_leaf", {"id": "a1"}),
        ("active_leaf", {"text_starts_with": "Hello"}),
        ("active_leaf", {"role": "user"}),
        ("active_leaf", {"is_leaf": False}),
        ("active_leaf", None),
        ("active_rule", "the last one"),
        ("hidden_flagged", 0),
        ("weight_zero", 0),
        ("content_types", {}),
        ("tool_calls_by_recipient", 0),
        ("never_heard_of", 1),
        ("faulty", "a fault that it has not"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value),
)
def test_each_count_that_differs_is_one_line(tmp_path: Path, name: str, value: Any):
    conversations = counted()
    conversations[0][name] = value

    (line,) = differences(write(tmp_path, conversations=conversations))

    assert line.startswith("chatgpt/chats.json: record 0: ")
    assert name in line or name == "faulty"


def test_a_conversation_that_is_refused_is_a_difference(tmp_path: Path):
    conversations = counted()
    del conversations[1]["faulty"]

    (line,) = differences(write(tmp_path, conversations=conversations))

    assert line.startswith("chatgpt/chats.json: record 1: it was refused: record 1, byte ")


def test_a_total_that_differs_is_a_difference(tmp_path: Path):
    for totals in ({"conversations": 3}, {"messages": 5}):
        (line,) = differences(write(tmp_path, totals=totals))

        assert "total of" in line


def test_records_too_many_or_too_few_are_a_difference(tmp_path: Path):
    for conversations in (counted()[:1], [*counted(), copy.deepcopy(counted()[0])]):
        (line,) = differences(write(tmp_path, conversations=conversations))

        assert f"{len(conversations)} records expected, found [0, 1]" in line


def test_a_file_that_is_missing_changed_or_of_another_format_is_a_difference(tmp_path: Path):
    write(tmp_path, sha256="0" * 64)
    assert "SHA-256 differs" in differences(tmp_path)[0]

    write(tmp_path, content=b"[]")
    assert "it was not recognised" in differences(tmp_path)[0]

    (tmp_path / "chatgpt/chats.json").unlink()
    assert differences(tmp_path) == ["chatgpt/chats.json: the file is missing"]


def test_the_command_prints_each_difference_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([str(write(tmp_path))]) == 0
    assert capsys.readouterr().out == "no differences\n"

    conversations = counted()
    conversations[0] |= {"leaves": 9, "messages": 9}
    assert main([str(write(tmp_path, conversations=conversations))]) == 1
    assert capsys.readouterr().out == (
        "chatgpt/chats.json: record 0: messages: 9 expected, 6 found\n"
        "chatgpt/chats.json: record 0: leaves: 9 expected, 2 found\n"
    )


def test_the_command_tells_what_it_does_not_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write(tmp_path, format="papyrus")

    assert unchecked(tmp_path) == {"papyrus": 1}
    assert main([str(tmp_path)]) == 0
    assert "not checked: 1 files of papyrus" in capsys.readouterr().out


def test_the_command_asks_for_its_folder(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
