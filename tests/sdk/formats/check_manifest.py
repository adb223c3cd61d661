"""
Hold the importers to a manifest: for a folder of chat files, what importing each must count.

    python -m tests.sdk.formats.check_manifest DIR

DIR holds `manifest.json` and the files that it names. One line is printed for each difference,
and one for each format that has no importer. The exit status is 1 if there was a difference.
What is counted here is counted anew from the finished conversations, by the manifest's words.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from livetree.formats import (
    FORMATS,
    Conversation,
    FormatError,
    ImportedMessage,
    Record,
    detect,
    read,
    text_of,
    validate,
)

Json = dict[str, Any]

CHUNK = 64 * 1024
LISTED_GROUPS = 12
"""A manifest lists no more groups of a conversation."""

# What a manifest tells of a file that no import can show.
FACTS = {"has_children_key"}


class Counts:
    """A conversation, counted."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.messages = {message.id: message for message in conversation.messages}
        self.children: dict[str | None, list[ImportedMessage]] = {}
        for message in conversation.messages:
            self.children.setdefault(message.parent_id, []).append(message)
        for siblings in self.children.values():
            siblings.sort(key=lambda message: (message.created_at, message.id))
        self.path: list[ImportedMessage] = []
        active = conversation.active_id
        while active is not None:
            self.path.append(self.messages[active])
            active = self.messages[active].parent_id
        self.path.reverse()

    def by_name(self) -> Json:
        groups = [len(siblings) for siblings in self.children.values() if len(siblings) > 1]
        messages = self.conversation.messages
        return {
            "id": self.conversation.source_id,
            "title": self.conversation.name,
            "messages": len(messages),
            "roles": dict(Counter(message.role for message in messages)),
            "first_turns": len(self.children.get(None, ())),
            "leaves": sum(message.id not in self.children for message in messages),
            "max_depth": self.max_depth(),
            "sibling_groups": len(groups),
            "sibling_group_sizes": sorted(groups, reverse=True),
            "active_depth": len(self.path),
            "active_path_roles": [message.role for message in self.path],
            "hidden_flagged": sum(is_flagged(message) for message in messages),
            "weight_zero": sum(fields_of(message).get("weight") == 0 for message in messages),
            "content_types": dict(Counter(filter(None, map(content_type, messages)))),
            "tool_calls_by_recipient": sum(map(is_call, messages)),
        }

    def max_depth(self) -> int:
        depths: dict[str | None, int] = {None: 0}
        for message in self.conversation.messages:
            depths[message.id] = depths[message.parent_id] + 1
        return max(depths.values())

    def groups(self) -> dict[str | None, list[str]]:
        """Return the source ids of all siblings, by their parent's, in the order shown."""
        return {
            None if parent is None else source_id(self.messages[parent]): [
                source_id(message) for message in siblings
            ]
            for parent, siblings in self.children.items()
            if len(siblings) > 1
        }


def differences(directory: Path) -> list[str]:
    """Import every file of the manifest that has an importer; tell what is not as it says."""
    found: list[str] = []
    for entry in manifest_of(directory)["files"]:
        if entry["format"] in importers():
            found += [f"{entry['path']}: {line}" for line in in_file(directory, entry)]
    return found


def unchecked(directory: Path) -> dict[str, int]:
    """Count the files of each format that has no importer."""
    formats = [entry["format"] for entry in manifest_of(directory)["files"]]
    return dict(Counter(name for name in formats if name not in importers()))


def manifest_of(directory: Path) -> Json:
    manifest: Json = json.loads((directory / "manifest.json").read_text("utf-8"))
    return manifest


def importers() -> set[str]:
    return {known.name for known in FORMATS}


def in_file(directory: Path, entry: Json) -> Iterator[str]:
    path = directory / entry["path"]
    if not path.is_file():
        yield "the file is missing"
        return
    content = path.read_bytes()
    if "sha256" in entry and hashlib.sha256(content).hexdigest() != entry["sha256"]:
        yield "the file is not the one that was counted: its SHA-256 differs"
        return
    try:
        known = detect(content[:CHUNK], path.name)
    except FormatError as fault:
        yield f"it was not recognised: {fault}"
        return
    if known.name != entry["format"]:
        yield f"it was taken for {known.name}"
        return
    chunks = (content[start : start + CHUNK] for start in range(0, len(content), CHUNK))
    records = list(read(chunks, name=path.name))
    expected = entry["conversations"]
    if [record.index for record in records] != list(range(len(expected))):
        yield f"{len(expected)} records expected, found {[record.index for record in records]}"
        return
    for record, counts in zip(records, expected, strict=True):
        yield from (f"record {record.index}: {line}" for line in in_record(record, counts))
    yield from in_totals(records, entry.get("totals", {}))


def in_totals(records: list[Record], totals: Json) -> Iterator[str]:
    conversations = [record.conversation for record in records]
    counted = [Counts(found).by_name() for found in conversations if found is not None]
    for name, expected in totals.items():
        if name == "conversations":
            actual = len(records)
        else:
            actual = sum(counts[name] for counts in counted)
        if actual != expected:
            yield f"total of {name}: {expected} expected, {actual} found"


def in_record(record: Record, expected: Json) -> Iterator[str]:
    if isinstance(record.outcome, FormatError):
        if "faulty" not in expected:
            yield f"it was refused: {record.outcome}"
        return
    if "faulty" in expected:
        yield f"it came in, though it has {expected['faulty']}"
        return
    conversation = record.outcome
    try:
        validate(conversation)
    except FormatError as fault:
        yield f"it is not valid: {fault}"
        return
    counts = Counts(conversation)
    actual = counts.by_name()
    yield from in_grouping(counts)
    for name, value in expected.items():
        match name:
            case "nodes_in_file":
                vanished = expected.get("null_message_nodes", 0)
                if len(conversation.messages) != value - vanished:
                    yield f"nodes_in_file: {value} with {vanished} empty, but not all others came"
            case "null_message_nodes":
                pass  # counted with the nodes
            case "groups":
                yield from in_groups(counts.groups(), value)
            case "active_leaf":
                yield from in_active(counts, value)
            case "active_rule":
                yield from in_active_rule(counts, value)
            case _ if name in FACTS:
                pass
            case _ if name not in actual:
                yield f"{name}: nothing here counts that"
            case _ if actual[name] != value:
                yield f"{name}: {value!r} expected, {actual[name]!r} found"


def in_grouping(counts: Counts) -> Iterator[str]:
    """Prove that groups are what they should be: all of one parent and role, two or more."""
    for parent, siblings in counts.children.items():
        alike = Counter(message.role for message in siblings)
        groups: dict[str, set[int]] = {}
        for message in siblings:
            groups.setdefault(message.role, set()).add(message.siblings_group_id)
        numbers = [number for role in groups for number in groups[role] if number]
        whole = all(
            len(groups[role]) == 1 and (0 in groups[role]) == (number < 2)
            for role, number in alike.items()
        )
        if not whole or len(set(numbers)) < len(numbers):
            yield f"the children of {parent} are grouped as {groups}"


def in_groups(actual: dict[str | None, list[str]], expected: list[Json]) -> Iterator[str]:
    for group in expected:
        if (found := actual.get(group["parent"])) != group["children"]:
            yield f"groups: under {group['parent']}: {group['children']} expected, {found} found"
    if len(expected) < LISTED_GROUPS and len(actual) != len(expected):
        yield f"groups: {len(expected)} expected, {len(actual)} found"


def in_active(counts: Counts, expected: Json | None) -> Iterator[str]:
    if not counts.path or expected is None:
        if counts.path or expected is not None:
            yield f"active_leaf: {expected} expected, {counts.conversation.active_id} found"
        return
    leaf = counts.path[-1]
    actual = {
        "id": source_id(leaf),
        "role": leaf.role,
        "text_starts_with": text_of(leaf)[: len(expected.get("text_starts_with", ""))],
        "is_leaf": leaf.id not in counts.children,
    }
    for name, value in expected.items():
        if actual.get(name) != value:
            yield f"active_leaf: {name}: {value!r} expected, {actual.get(name)!r} found"


def in_active_rule(counts: Counts, rule: str) -> Iterator[str]:
    if rule != "current_node":
        yield f"active_rule: nothing here knows the rule {rule!r}"
        return
    named = counts.conversation.metadata["source"]["fields"].get("current_node")
    if not counts.path or source_id(counts.path[-1]) != named:
        yield f"active_rule: the active message is not the file's current_node {named}"


def source_id(message: ImportedMessage) -> str:
    return str(message.data["source"]["id"])


def fields_of(message: ImportedMessage) -> Json:
    fields: Json = message.data["source"]["fields"]
    return fields


def is_flagged(message: ImportedMessage) -> bool:
    """Tell whether the file flags a message as hidden, and the import has marked it."""
    metadata = fields_of(message).get("metadata") or {}
    flagged = metadata.get("is_visually_hidden_from_conversation") is True
    return flagged and message.data["source"].get("hidden") is True


def content_type(message: ImportedMessage) -> str | None:
    content: Json = fields_of(message).get("content") or {}
    return content.get("content_type")


def is_call(message: ImportedMessage) -> bool:
    return any(
        part["type"].startswith("tool-") and part["state"] == "input-available"
        for part in message.data["parts"]
    )


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m tests.sdk.formats.check_manifest DIR", file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    for name, number in unchecked(directory).items():
        print(f"not checked: {number} files of {name}, which has no importer")
    found = differences(directory)
    for line in found:
        print(line)
    if not found:
        print("no differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
