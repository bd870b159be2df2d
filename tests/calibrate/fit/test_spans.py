"""Parts of recordings."""

import numpy as np
import pytest

from calibrate.fit.recording import MAX_SPANS, MIN_REQUESTS, spans_of
from tests.calibrate.fit.known_server import recording


@pytest.mark.slow
def test_short_recordings_are_one_part_and_long_ones_have_a_dozen() -> None:
    sizes = (1, MIN_REQUESTS, 2 * MIN_REQUESTS + 50, 3000)
    spans = spans_of([recording(3000).head(size) for size in sizes])
    assert spans.counts == (1, 1, 2, MAX_SPANS)
    assert spans.total == 4 + MAX_SPANS


def test_each_request_is_in_one_part_of_its_recording() -> None:
    spans = spans_of([recording(300), recording(500)])
    assert spans.memberships(0, 300).tolist() == [[1, 0, 0]] * 300
    assert spans.memberships(1, 500).tolist() == [[0, 1, 0]] * 250 + [[0, 0, 1]] * 250


def test_the_first_requests_are_in_the_same_parts_without_the_others() -> None:
    spans = spans_of([recording(500)])
    assert spans.memberships(0, 280).tolist() == spans.memberships(0, 500)[:280].tolist()


def test_values_of_parts_are_named_by_recording() -> None:
    spans = spans_of([recording(500), recording(300)])
    assert [each.tolist() for each in spans.of_each(np.array([1.0, 2.0, 3.0]))] == [[1.0, 2.0], [3.0]]
