"""A memo keeps no more results than its bound, whatever the keys."""

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.options.memo import Memo


def test_returns_what_it_keeps() -> None:
    memo = Memo[str, int](2)
    assert memo.get("a") is None
    assert memo.keep("a", 1) == 1
    assert memo.get("a") == 1


def test_begins_anew_when_it_is_full() -> None:
    memo = Memo[str, int](2)
    for number, key in enumerate("abc"):
        memo.keep(key, number)
    assert memo == {"c": 2}


@given(st.integers(1, 5), st.lists(st.integers(0, 20)))
def test_never_exceeds_its_bound_and_has_the_latest_result(most: int, keys: list[int]) -> None:
    memo = Memo[int, int](most)
    for key in keys:
        if memo.get(key) is None:
            memo.keep(key, -key)
        assert len(memo) <= most
        assert memo[key] == -key
