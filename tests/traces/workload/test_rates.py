"""Division of a rate among clients that are active at the same time."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.workload.sources import Spans, merge_spans, shares

SPANS = st.none() | st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 5)).map(lambda span: (span[0], span[0] + span[1])), min_size=1
).map(merge_spans)


def instants(spans: Spans) -> set[int]:
    return set(range(40)) if spans is None else {at for start, end in spans for at in range(start, end)}


@given(st.lists(st.tuples(st.integers(1, 9), SPANS), min_size=1, max_size=6))
def test_a_share_is_of_those_with_an_instant_in_common(weights: list[tuple[int, Spans]]) -> None:
    for share, (weight, spans) in zip(shares(weights), weights, strict=True):
        active = sum(other for other, their in weights if instants(spans) & instants(their))
        assert share == pytest.approx(weight / active)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(21, 25)), max_size=6))
def test_merged_spans_are_the_same_time_in_pieces_that_do_not_touch(spans: list[tuple[int, int]]) -> None:
    found = merge_spans(spans)
    assert instants(found) == instants(tuple(spans))
    assert all(end < start for (_, end), (start, _) in pairwise(found))
