import pytest
from livetree.core import protocol as p

from . import ops
from .backends import BACKENDS
from .runner import CASES, Case, load, run

FOUND = load(CASES)


@pytest.mark.parametrize("through", BACKENDS)
@pytest.mark.parametrize(("area", "case"), FOUND, ids=[case["name"] for _, case in FOUND])
def test_case(through: str, area: str, case: Case):
    outcome = run(area, case, BACKENDS[through](case))

    assert outcome.kind == "passed", f"{case['why']}\n{outcome.why}"


def test_names_are_unique():
    names = [case["name"] for _, case in FOUND]

    assert len({*names}) == len(names) > 130


def test_every_op_is_used_by_a_case():
    used = {step["op"] for _, case in FOUND for step in case["when"]}

    # A temporary chat is filled by it before a case begins.
    assert {*ops.OPS} - used == {"temporary.append"}


def test_the_other_wish_for_a_live_topic_has_no_command_yet():
    step = {"op": "turn.submit", "user": {"mode": "create", "text": "x"}, "placeholders": []}
    told = p.encode({"topic": "t", **step, "whenLive": "queue"})

    assert ops.lacking({**step, "whenLive": "queue"}) == "whenLive queue"
    with pytest.raises(ValueError, match="whenLive"):
        p.decode_command(told)
