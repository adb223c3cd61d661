import pytest
from livetree.backoff import LATER_SECONDS, MOST_SECONDS, RESTART_SECONDS, Backoff, final_error
from livetree.core.errors import Forbidden, TooLarge, Unauthenticated, Validation


def test_delays_double_up_to_the_most():
    backoff = Backoff()

    delays = [backoff.delay(1006, 1.0) for _ in range(10)]

    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert delays[-1] == MOST_SECONDS


def test_chance_spreads_a_delay_over_its_upper_half():
    assert Backoff().delay(None, 0.0) == 0.05
    assert Backoff().delay(None, 1.0) == 0.1


def test_only_a_connection_that_stood_starts_them_over():
    backoff = Backoff()
    for _ in range(5):
        backoff.delay(1006, 1.0)

    backoff.stood(1.0)
    assert backoff.delay(1006, 1.0) > 1
    backoff.stood(MOST_SECONDS)
    assert backoff.delay(1006, 1.0) == 0.1


def test_a_restarting_server_is_come_back_to_soon_and_not_by_all_at_once():
    backoff = Backoff()
    for _ in range(5):
        backoff.delay(1006, 1.0)

    assert backoff.delay(1012, 0.5) == RESTART_SECONDS / 2
    assert backoff.delay(1012, 0.1) == RESTART_SECONDS / 10


@pytest.mark.parametrize("code", [4429, 1013])
def test_a_server_that_has_too_much_to_do_is_left_alone(code: int):
    assert Backoff().delay(code, 0.0) >= LATER_SECONDS


@pytest.mark.parametrize(
    ("code", "kind"),
    [(4400, Validation), (4401, Unauthenticated), (4403, Forbidden), (4413, TooLarge)],
)
def test_codes_that_mean_do_not_come_back_are_errors(code: int, kind: type[Exception]):
    error = final_error(code, "why")

    assert isinstance(error, kind)
    assert "why" in str(error)
    assert error.details == {"close": code}


@pytest.mark.parametrize("code", [1000, 1001, 1006, 1011, 1012, 1013, 4408, 4429, 4999])
def test_other_codes_are_not(code: int):
    assert final_error(code, "") is None
