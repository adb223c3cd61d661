import pytest

from tests.house.generate import GENERATED, ROOT


@pytest.mark.parametrize("name", GENERATED)
def test_what_is_committed_is_what_would_be_made_now(name: str):
    committed = (ROOT / name).read_text("utf-8")

    assert committed == GENERATED[name](), "it is old: python -m tests.house.generate"


@pytest.mark.parametrize("name", GENERATED)
def test_what_is_made_is_the_same_each_time(name: str):
    assert GENERATED[name]() == GENERATED[name]()
