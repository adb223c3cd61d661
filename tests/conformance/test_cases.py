from collections import Counter

import pytest
from livetree.core import protocol as p

from . import ops
from .backends import BACKENDS
from .runner import CASES, Case, load, run

FOUND = load(CASES)
# Every case of these is carried out, but for those that need more than there is yet.
WHOLE = {
    *("branch_page", "clear", "create", "delete_cascade", "delete_splice", "finalize_activity"),
    *("reconcile", "sibling", "topic", "tree_get", "update_move"),
}


NOT_YET = {
    "delete_group": 6,
    "duplicate": 4,
    "flow_graph": 4,
    "invariants": 1,
    "live_guard": 4,
    "migrate_v1": 9,
    "path_through": 5,
    "reserve_branch": 5,
    "retry": 4,
    "submit_turn": 4,
    "temporary": 3,
    "when_live": 1,
}
"""How many cases of an area name a feature that has no command yet."""


def _asks_too_much(case: Case) -> bool:
    return case["given"].get("topic", {}) is None or any(map(ops.lacking, case["when"]))


NOW = [(area, case) for area, case in FOUND if not _asks_too_much(case)]


@pytest.mark.parametrize("through", BACKENDS)
@pytest.mark.parametrize(("area", "case"), NOW, ids=[case["name"] for _, case in NOW])
def test_case(through: str, area: str, case: Case):
    outcome = run(area, case, BACKENDS[through](case))

    if through == "server" and area == "reconcile":
        # The sweep has no command: the server does it by itself.
        assert (outcome.kind, outcome.why) == ("not yet", "boot.reconcile")
    else:
        assert outcome.kind == "passed", f"{case['why']}\n{outcome.why}"


def test_what_can_not_be_run_yet_is_known_by_number():
    left = Counter(area for area, case in FOUND if _asks_too_much(case))

    assert left == NOT_YET


def test_names_are_unique():
    names = [case["name"] for _, case in FOUND]

    assert len({*names}) == len(names) > 100


def test_nothing_that_can_be_asked_is_left_out():
    """What has a command now must be said in it, and not be passed over."""
    commands = {kind.__struct_config__.tag for kind in p.COMMANDS}

    assert commands & ops.NOT_YET == set()
    assert not {*ops.OPS} & ops.NOT_YET
    assert {step["op"] for _, case in FOUND for step in case["when"]} <= {*ops.OPS} | ops.NOT_YET


@pytest.mark.parametrize("wish", ["queue", "steer"])
def test_other_wishes_for_a_live_topic_have_no_command_yet(wish: str):
    step = {"op": "turn.submit", "user": {"mode": "create", "text": "x"}, "placeholders": []}
    told = p.encode({"topic": "t", **step, "whenLive": wish})

    assert ops.lacking({**step, "whenLive": wish}) == f"whenLive {wish}"
    with pytest.raises(ValueError, match="whenLive"):
        p.decode_command(told)


def test_filling_a_reservation_has_no_command_yet():
    user = {"mode": "fill-reserved", "id": "r1", "text": "x"}
    step = {"op": "turn.submit", "user": user, "placeholders": []}

    assert ops.lacking(step) == "turn.submit fill-reserved"
    with pytest.raises(ValueError, match="fill-reserved"):
        p.decode_command(p.encode({"topic": "t", **step}))


def test_areas_that_are_built_are_run_as_a_whole():
    lacking = {
        area
        for area, case in FOUND
        for step in case["when"]
        if ops.lacking(step) or case["given"]["topic"] is None
    }

    assert {area for area, _ in FOUND} - lacking == WHOLE
