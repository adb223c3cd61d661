import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from .__main__ import main
from .backend import Backend, Refused, Stored, root_row
from .core_backend import CoreBackend
from .matching import CaseFault, matches, mismatch
from .runner import Case, Failure, Outcome, check_standing, load, run, tally

# A case that passes, with every key that a case can have.
SOUND: Case = {
    "name": "a-branch-is-deleted",
    "why": "So it is.",
    "basis": "design",
    "needs": ["clock"],
    "given": {
        "topic": {"active": "a1", "lastActivity": 5},
        "messages": [
            {"id": "u1", "parent": "ROOT", "role": "user", "text": "hi"},
            {"id": "a1", "parent": "u1", "role": "assistant", "text": "hello", "group": 2},
            {"id": "u2", "parent": "ROOT", "role": "user", "text": ""},
        ],
        "topics": [
            {
                "id": "T2",
                "active": None,
                "messages": [{"id": "x1", "parent": "ROOT:T2", "role": "user", "text": "x"}],
            }
        ],
    },
    "when": [
        {
            "op": "message.create",
            "parent": "u2",
            "role": "user",
            "text": "n",
            "as": "n",
            "at": 700,
            "expect": {"parent": "u2", "text": "n"},
        },
        {"op": "message.delete", "id": "nope", "error": {"code": "NOT_FOUND"}},
        {"op": "message.delete", "id": "u1", "cascade": True},
    ],
    "then": {
        "error": None,
        "result": {"deleted": {"$set": ["a1", "u1"]}, "newActive": "UNCHANGED"},
        "messages": [{"id": "$n", "parent": "u2"}, {"id": "ROOT", "role": "root"}],
        "absent": ["u1", "a1"],
        "children": {"ROOT": ["u2"], "u2": ["$n"]},
        "active": "$n",
        "lastActivity": 700,
        "count": 2,
        "topics": {"T2": {"count": 1, "active": None}, "T": {"lastActivity": 700}},
        "unchanged": ["u2", "x1"],
        "checks": [{"gt": ["$n.createdAt", "u2.createdAt"]}, {"ne": ["$n", "u2"]}],
    },
}
REFUSED: Case = {
    "name": "the-root-stays",
    "given": {
        "topic": {"active": "u1"},
        "messages": [{"id": "u1", "parent": "ROOT", "role": "user", "text": "hi"}],
    },
    "when": [{"op": "message.delete", "id": "ROOT"}],
    "then": {"error": {"code": "INVALID_OPERATION"}, "unchanged": "ALL"},
}


def outcome_of(case: Case, make: Callable[[], Backend] = CoreBackend) -> Outcome:
    return run("area", case, make)


def changed(case: Case, change: Callable[[Case], object]) -> Case:
    other = deepcopy(case)
    change(other)
    return other


def failure_of(case: Case, make: Callable[[], Backend] = CoreBackend) -> str:
    outcome = outcome_of(case, make)
    assert outcome.kind == "failed", outcome
    return outcome.why


def test_sound_cases_pass():
    assert outcome_of(SOUND) == Outcome("area", "a-branch-is-deleted", "passed")
    assert outcome_of(REFUSED) == Outcome("area", "the-root-stays", "passed")


MIGRATED: Case = {
    "name": "old-topics-come-in",
    "given": {"topic": None},
    "when": [
        {
            "op": "migrate.v1",
            "topics": [
                {"id": "T", "messages": [{"id": "u1", "role": "user", "text": "u1"}]},
                {"id": "E1", "messages": []},
                {"id": "bad", "messages": [{"id": "x1", "role": "user"}]},
            ],
        }
    ],
    "then": {
        "error": None,
        "result": {"ok": False, "errors": {"$len": 1}, "migrated": ["T"], "skipped": ["E1"]},
        "messages": [{"id": "u1", "parent": "ROOT"}, {"id": "ROOT:T", "role": "root"}],
        "topics": {"E1": None, "bad": None},
        "count": 1,
    },
}


TEMPORARY: Case = {
    "name": "a-chat-is-filled",
    "given": {
        "topic": {"active": None},
        "temporary": [{"id": "C", "messages": [{"id": "m1", "role": "user", "text": "m1"}]}],
    },
    "when": [{"op": "temporary.append", "id": "C", "role": "assistant", "text": "x"}],
    "then": {"error": None, "temporary": {"C": {"count": 2}}},
}


def test_a_temporary_chat_is_filled_and_seen():
    assert outcome_of(TEMPORARY).kind == "passed"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"C": None}, "there is still a temporary chat C"),
        ({"C": {"count": 1}}, "temporary chat C.count is 2, not 1"),
        ({"T": {"count": 0}}, "there is no temporary chat T"),
    ],
    ids=str,
)
def test_what_is_wrong_about_a_chat_makes_a_case_fail(wrong: dict[str, Any], why: str):
    assert why in failure_of(changed(TEMPORARY, lambda case: case["then"].update(temporary=wrong)))


def test_a_case_may_begin_without_a_topic_and_name_the_roots_that_come_in():
    assert outcome_of(MIGRATED) == Outcome("area", "old-topics-come-in", "passed")


@pytest.mark.parametrize(
    ("topics", "why"),
    [
        ({"T": None}, "topic T is still there"),
        ({"E2": None}, "topic E2 was not given, and so can't be gone"),
        ({"E1": {"count": 0}}, "there is no topic E1"),
    ],
    ids=str,
)
def test_what_is_wrong_about_old_topics_makes_a_case_fail(topics: dict[str, Any], why: str):
    assert why in failure_of(changed(MIGRATED, lambda case: case["then"].update(topics=topics)))


# Every expectation can fail ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "wrong", "why"),
    [
        ("error", {"code": "NOT_FOUND"}, "was not refused with NOT_FOUND"),
        ("error", {"code": "*"}, "was not refused"),
        ("result", {"deleted": ["u1"]}, "result.deleted has 2 items, not 1"),
        ("result", {"newActive": None}, "result.newActive is 'UNCHANGED', not None"),
        ("result", {"more": 1}, "result.more is missing"),
        ("messages", [{"id": "$n", "parent": "ROOT"}], "made-"),
        ("messages", [{"id": "$n", "text": ""}], "text is 'n', not ''"),
        ("messages", [{"id": "u2", "text": "x"}], "message u2.text is '', not 'x'"),
        ("messages", [{"id": "u1"}], "there is no message u1"),
        ("absent", ["u2"], "message u2 is still there"),
        ("absent", ["x1"], "message x1 is still there"),
        ("children", {"ROOT": []}, "the children of ROOT has 1 items, not 0"),
        ("children", {"u2": ["u2"]}, "the children of u2[0] is"),
        ("active", None, "active is"),
        ("active", "u2", "not 'u2'"),
        ("lastActivity", 5, "lastActivity is 700, not 5"),
        ("count", 3, "count is 2, not 3"),
        ("topics", {"T2": {"count": 0}}, "topic T2.count is 1, not 0"),
        ("topics", {"T2": {"active": "x1"}}, "topic T2.active is None, not 'x1'"),
        ("topics", {"T2": None}, "topic T2 is still there"),
        ("topics", {"T9": {"count": 0}}, "there is no topic T9"),
        ("unchanged", "ALL", "topic T changed"),
        ("unchanged", ["u1"], "there is no message u1"),
        ("unchanged", ["$n"], "was not given"),
        ("checks", [{"eq": ["$n.createdAt", "u2.createdAt"]}], "not eq"),
        ("checks", [{"ne": ["u2", "u2"]}], "not ne"),
        ("checks", [{"gt": ["u2.createdAt", "$n.createdAt"]}], "not gt"),
        ("checks", [{"gt": ["u2.group", 0]}], "not gt"),
    ],
    ids=str,
)
def test_a_wrong_expectation_makes_a_case_fail(key: str, wrong: Any, why: str):
    case = changed(SOUND, lambda case: case["then"].update({key: wrong}))

    assert why in failure_of(case)


def test_each_key_is_tried():
    assert {*SOUND["then"]} | {"temporary"} == {
        *("error", "result", "messages", "absent", "children", "active", "lastActivity", "count"),
        *("topics", "temporary", "unchanged", "checks"),
    }


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda case: case["when"][0].update(error={"code": "NOT_FOUND"}), "step 1"),
        (lambda case: case["when"][1].pop("error"), "step 2 (message.delete) was refused"),
        (
            lambda case: case["when"][1].update(error={"code": ["CONFLICT", "TOPIC_LIVE"]}),
            "was refused with NOT_FOUND",
        ),
        (
            lambda case: case["when"][0].update(expect={"text": "m"}),
            "step 1 (message.create): result.text is 'n', not 'm'",
        ),
        (lambda case: case["when"][2].update(id="$m"), "nothing is called $m"),
        (lambda case: case["when"][2].update(id="ROOT:T9"), "nothing is called ROOT:T9"),
    ],
    ids=range(6),
)
def test_a_step_that_goes_otherwise_makes_a_case_fail(change: Any, why: str):
    assert why in failure_of(changed(SOUND, change))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (None, "was refused: INVALID_OPERATION"),
        ({"code": "NOT_FOUND"}, "was refused with INVALID_OPERATION"),
        ({"code": ["NOT_FOUND", "CONFLICT"]}, "was refused with INVALID_OPERATION"),
    ],
)
def test_another_refusal_makes_a_case_fail(wrong: Any, why: str):
    assert why in failure_of(changed(REFUSED, lambda case: case["then"].update(error=wrong)))


@pytest.mark.parametrize("code", ["*", ["*"], ["NOT_FOUND", "INVALID_OPERATION"]])
def test_a_refusal_may_have_several_codes(code: Any):
    case = changed(REFUSED, lambda case: case["then"].update(error={"code": code}))

    assert outcome_of(case).kind == "passed"


# What is misspelt is not passed over -------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda case: case["when"][0].update(op="message.make"), "there is no op message.make"),
        (lambda case: case.update(want=1), "unknown keys ['want']"),
        (lambda case: case.update(needs=["magic"]), "unknown ['magic']"),
        (lambda case: case["given"].update(message=[]), "given has unknown keys ['message']"),
        (lambda case: case["given"]["topic"].update(name="n"), "unknown keys ['name']"),
        (lambda case: case["given"]["messages"][0].update(txt="n"), "unknown keys ['txt']"),
        (lambda case: case["then"].update(result_="n"), "then has unknown keys ['result_']"),
        (lambda case: case["then"].pop("error"), "says nothing of an error"),
        (lambda case: case["then"].update(count={"$gte": 1}), "unknown matcher $gte"),
        (lambda case: case["then"].update(checks=[{"lt": [1, 2]}]), "there is no check lt"),
        (lambda case: case["then"].update(temporary={"t": None}), "chat t was not given"),
        (lambda case: case["when"][0].update(colour="red"), "unknown parameters ['colour']"),
    ],
    ids=range(12),
)
def test_what_a_case_says_wrongly_makes_it_fail(change: Any, why: str):
    assert why in failure_of(changed(SOUND, change))


def test_what_can_not_be_run_yet_is_told_and_not_run():
    submit = {"op": "turn.submit", "user": {"mode": "create"}, "whenLive": "queue"}
    case = changed(SOUND, lambda case: case["when"].append(submit))
    assert outcome_of(case) == Outcome("area", case["name"], "not yet", "whenLive queue")

    for need in ("soft-delete", "raw-store"):
        case = changed(SOUND, lambda case, need=need: case.update(needs=[need]))
        assert outcome_of(case) == Outcome("area", case["name"], "not yet", need)


# What always holds --------------------------------------------------------------------------


class Careless(CoreBackend):
    """Renames a topic, and only then refuses; `harm` is what else it does."""

    harm = "topic.setActive"

    def request(self, command: dict[str, Any], now: int | None) -> dict[str, Any]:
        try:
            return super().request(command, now)
        except Refused:
            super().request({"op": self.harm, "topic": "T", "nodeId": None}, now)
            raise


def test_a_refusal_that_changes_something_makes_a_case_fail():
    bare = changed(REFUSED, lambda case: case["then"].pop("unchanged"))

    assert "changed something all the same" in failure_of(bare, Careless)


class Seedless(CoreBackend):
    """Doesn't make what it is given."""

    def seed(self, topics: Any) -> None:
        super().seed([type(seed)(*_without_first(seed)) for seed in topics])


def _without_first(seed: Any) -> list[Any]:
    return [seed.id, seed.root_id, None, seed.activity, seed.nodes[1:], seed.live]


def test_what_was_not_seeded_as_given_makes_a_case_fail():
    assert "was not seeded as it was given" in failure_of(REFUSED, Seedless)


class Drifting(CoreBackend):
    """Breaks what it promises of itself."""

    def check(self) -> None:
        raise AssertionError("tree and twin differ")


def test_what_a_backend_finds_wrong_makes_a_case_fail():
    assert failure_of(SOUND, Drifting) == "tree and twin differ"
    harmful = changed(SOUND, lambda case: case.update(corrupts=True))
    assert outcome_of(harmful, Drifting).kind == "passed"


class Broken(CoreBackend):
    """Can't do anything."""

    def request(self, command: dict[str, Any], now: int | None) -> dict[str, Any]:
        raise RuntimeError("no")


def test_whatever_breaks_is_one_case_that_fails():
    assert failure_of(SOUND, Broken) == "RuntimeError: no"


def stored(*rows: dict[str, Any], active: str | None = None) -> dict[str, Stored]:
    found = {row["id"]: {**root_row("r"), "role": "user", **row} for row in rows}
    return {"T": Stored("r", active, 0, {"r": root_row("r"), **found})}


def test_sound_rows_stand():
    check_standing(stored({"id": "a", "parent": "r"}, {"id": "b", "parent": "a"}, active="b"))
    check_standing(stored())


@pytest.mark.parametrize(
    ("topics", "why"),
    [
        (stored({"id": "a", "parent": None}), "role user below None"),
        (stored({"id": "a", "parent": None, "role": "root"}), "the roots of T"),
        (stored({"id": "a", "parent": "r", "role": "root"}), "role root below r"),
        (stored({"id": "a", "parent": "x"}), "the parent x of a is not in T"),
        (stored({"id": "a", "parent": "b"}, {"id": "b", "parent": "a"}), "2 messages of T hang"),
        (stored(active="r"), "the active node r"),
        (stored(active="x"), "the active node x"),
        (stored({**root_row("r"), "role": "root", "group": 1}), "content or a group"),
        (stored({**root_row("r"), "role": "root", "data": {"parts": [1]}}), "content or a group"),
    ],
    ids=range(9),
)
def test_rows_that_do_not_stand_are_told(topics: dict[str, Stored], why: str):
    with pytest.raises(Failure, match=why):
        check_standing(topics)


# Matching -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, 1),
        (None, None),
        ({}, {"a": 1}),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}, "d": 3}),
        ([{"a": 1}], [{"a": 1, "b": 2}]),
        ({"$set": [1, 2]}, [2, 1]),
        ({"$set": [{"a": 1}, {}]}, [{"b": 1}, {"a": 1}]),
        ({"$set": [{}, {"a": 1}]}, [{"a": 1}, {"b": 1}]),
        ({"$has": [2]}, [1, 2, 3]),
        ({"$has": [{}, {"a": 1}]}, [{"a": 1}, 5, {}]),
        ({"$len": 2}, [1, 2]),
        ({"$first": {"a": 1}}, [{"a": 1}, 2]),
        ({"$last": 2}, [1, 2]),
        ({"$gt": 1}, 2),
        ({"$not": 1}, 2),
        ({"$not": {"a": 1}}, {"a": 2}),
        ({"$len": 2, "$first": 1, "$last": 2, "$has": [2]}, [1, 2]),
    ],
)
def test_what_matches(expected: Any, actual: Any):
    assert matches(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, 2),
        (1, True),
        (False, 0),
        (None, 0),
        ("1", 1),
        ({"a": 1}, {}),
        ({"a": None}, {}),
        ({"a": 1}, [1]),
        ([], {}),
        ([1], [1, 2]),
        ([1, 2], [2, 1]),
        ({"$set": [1, 1]}, [1, 2]),
        ({"$set": [1]}, [1, 1]),
        ({"$set": [{"a": 1}, {"a": 1}]}, [{"a": 1}, {"a": 2}]),
        ({"$has": [1, 1]}, [1]),
        ({"$has": [4]}, [1, 2, 3]),
        ({"$len": 1}, []),
        ({"$len": 0}, {}),
        ({"$first": 1}, []),
        ({"$first": 1}, [2, 1]),
        ({"$last": 1}, [1, 2]),
        ({"$gt": 1}, 1),
        ({"$gt": 1}, "2"),
        ({"$not": 1}, 1),
        ({"$not": {}}, {"a": 2}),
        ({"$len": 2, "$first": 2}, [1, 2]),
    ],
)
def test_what_does_not_match(expected: Any, actual: Any):
    assert mismatch(expected, actual, "it")


@pytest.mark.parametrize("expected", [{"$len": 1, "a": 1}, {"$some": 1}, [{"a": {"$x": 1}}]])
def test_what_is_no_matcher(expected: Any):
    with pytest.raises(CaseFault):
        mismatch(expected, [{"a": {}}], "it")


# The command ---------------------------------------------------------------------------------


def folder_of(folder: Path, *cases: Case) -> str:
    content = {"area": "first", "cases": [*cases]}
    (folder / "first.json").write_text(json.dumps(content), "utf-8")
    (folder / "jsonl_other.json").write_text('{"area":"x","cases":[{"other":1}]}', "utf-8")
    (folder / "digest.json").write_text('{"topics":[]}', "utf-8")
    (folder / "README.md").write_text("none of ours", "utf-8")
    return str(folder)


WAITS = changed(REFUSED, lambda case: case.update(name="waits", needs=["soft-delete"]))
FAILS = changed(REFUSED, lambda case: case.update(name="fails", then={"error": None}))


def test_the_command_tells_passes_and_what_is_not_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = folder_of(tmp_path, SOUND, REFUSED, WAITS)

    assert main([folder, "--through", "core"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "core: passed: first 2",
        "core: not yet: first 1 (soft-delete)",
        "core: 2 passed, 0 failed, 1 not yet",
    ]


def test_the_command_exits_with_1_and_a_line_for_each_case_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = folder_of(tmp_path, SOUND, FAILS)

    assert main([folder, "--through", "core"]) == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("core: FAILED first: fails: the last step (message.delete) was refused")
    assert last == "core: 1 passed, 1 failed, 0 not yet"


def test_the_command_runs_the_areas_that_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = folder_of(tmp_path, FAILS)
    (tmp_path / "second.json").write_text(json.dumps({"area": "second", "cases": [SOUND]}))

    assert main([folder, "--through", "core", "--area", "second"]) == 0
    assert "first" not in capsys.readouterr().out
    assert main([folder, "--through", "core", "--area", "second,first"]) == 1


def test_nothing_to_run_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(tmp_path), "--through", "core"]) == 1
    assert main([folder_of(tmp_path, SOUND), "--area", "misspelt"]) == 1
    assert "there are no cases" in capsys.readouterr().out


def test_only_files_of_tree_cases_are_read(tmp_path: Path):
    assert [area for area, _ in load(Path(folder_of(tmp_path, SOUND)))] == ["first"]


def test_an_area_without_anything_to_tell_is_not_told():
    assert tally([]) == []
