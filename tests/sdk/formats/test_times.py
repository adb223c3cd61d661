import pytest
from livetree.formats.times import ms_of_seconds


@pytest.mark.parametrize(
    ("seconds", "ms"),
    [
        (0, 0),
        (1700000000, 1_700_000_000_000),
        (1704629915.776371, 1_704_629_915_776),
        (1735689601.001, 1_735_689_601_001),
        (253_402_300_799, 253_402_300_799_000),
    ],
)
def test_seconds_become_milliseconds(seconds: float, ms: int):
    assert ms_of_seconds(seconds) == ms


@pytest.mark.parametrize(
    "value",
    [None, True, "1700000000", [], {}, -1, -0.5, 1e300, 1700000000000, float("nan"), float("inf")],
    ids=repr,
)
def test_what_is_no_such_time_gives_none(value: object):
    assert ms_of_seconds(value) is None
