"""Figures made up for the metrics page: what they are at which time, and what is refused in one line."""

import json

import pytest

from blis_sim.options import OptionError
from mockserve.options.server import read_fake_metrics


@pytest.mark.parametrize(
    ("course", "figures"),
    [
        (3, [3, 3, 3, 3, 3]),
        ("ramp:10:20:4s", [10, 12.5, 15, 17.5, 20]),
        ("rampreset:10:20:2s", [10, 15, 10, 15, 10]),
        ("squarewave:10:20:2s", [10, 20, 10, 20, 10]),
        ("oscillate:20:10:2s", [20, 10, 20, 10, 20]),
    ],
)
def test_a_figure_follows_its_course(course: object, figures: list[float]) -> None:
    found = read_fake_metrics(json.dumps({"running-requests": course})).value_functions["num_requests_running"]
    assert [found(seconds) for seconds in range(5)] == pytest.approx(figures)


def test_a_ramp_stays_where_it_ends() -> None:
    assert read_fake_metrics('{"kv-cache-usage": "ramp:0:1:500ms"}').value_functions["kv_cache_usage_perc"](60) == 1


def test_an_empty_text_makes_nothing_up() -> None:
    found = read_fake_metrics("")
    assert (found.value_functions, found.buckets, found.success, found.loras) == ({}, {}, None, None)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("[]", "must be a JSON object, got '\\[\\]'"),
        ("{", "must be a JSON object, got '{'"),
        ('{"ttft": 1}', "unknown key 'ttft', known are running-requests, .*"),
        ('{"running-requests": "ramp:1:2"}', "running-requests must be a number or one of oscillate:start:.*"),
        ('{"running-requests": "slope:1:2:1s"}', "running-requests must be a number or one of oscillate:start:.*"),
        ('{"running-requests": true}', "running-requests must be a number or one of .*, got True"),
        ('{"running-requests": "ramp:a:2:1s"}', "running-requests must go from a number to a number, got .*"),
        ('{"running-requests": "ramp:1:2:0s"}', "running-requests must have a period above 0, got .*"),
        (f'{{"running-requests": {10**400}}}', "running-requests must be a number or one of .*"),
        (f'{{"ttft-buckets-values": [{10**400}]}}', "ttft-buckets-values must be a list of counts per bucket, got .*"),
        ('{"ttft-buckets-values": [1, -1]}', "ttft-buckets-values must be a list of counts per bucket, got .*"),
        ('{"request-success-total": 3}', "request-success-total must map reasons to numbers, got 3"),
        ('{"request-success-total": {"stop": "3"}}', "request-success-total must map reasons to numbers, got .*"),
        ('{"loras": {}}', "loras must be a list of objects, got {}"),
        ('{"loras": [{"timestamp": "noon"}]}', "the timestamp of loras must be a number, got 'noon'"),
    ],
)
def test_an_invalid_figure_is_refused(given: str, complaint: str) -> None:
    with pytest.raises(OptionError, match=f"^--fake-metrics:? {complaint}$"):
        read_fake_metrics(given)
