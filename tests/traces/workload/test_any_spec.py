"""Whatever stands in a spec, it is generated from or refused in one line."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.traces.workload.specs import CONSTANT_10, MULTI_TURN, client, cohort, lifecycle, users, window
from traces import TraceError
from traces.workload.generate import generate
from traces.workload.spec import parse_spec

RICH: dict[str, Any] = {
    "version": "2",
    "seed": 1,
    "category": "language",
    "aggregate_rate": 10.0,
    "num_requests": 20,
    "horizon": 60_000_000,
    "goodput_slo_targets": {"batch": {"ttft_ms": 5}},
    "clients": [
        client("a", arrival={"process": "gamma", "cv": 2.0}, prefix_group="g", prefix_length=5, timeout=10**6),
        client("b", lifecycle=lifecycle(window(0, 10**6), window(2 * 10**6, 3 * 10**6, trace_rate=3.0))),
        client("c", arrival={"process": "weibull", "shape": 0.8, "scale": 1e5}, network={"rtt_ms": 1.0}),
        client("d", multimodal={"text_distribution": CONSTANT_10}),
    ],
    "cohorts": [
        cohort("h", diurnal={"peak_hour": 3, "peak_to_trough_ratio": 2.0}),
        cohort("i", drain={"start_time_us": 10, "ramp_duration_us": 10**6}, prefix_sharing="shared"),
        cohort("j", spike={"start_time_us": 10, "duration_us": 10**6, "trace_rate": 2.0}, reasoning=MULTI_TURN),
    ],
}
OTHERS: list[dict[str, Any]] = [
    {
        "version": "2",
        "aggregate_rate": 5.0,
        "num_requests": 20,
        "clients": [
            client(
                agent={
                    "turns_distribution": CONSTANT_10,
                    "helpers_distribution": {"type": "empirical", "params": {"0": 0.5, "2": 0.5}},
                    "helper_turns_distribution": CONSTANT_10,
                    "helper_context": "spawn",
                    "helper_prefix_length": 5,
                    "task_distribution": CONSTANT_10,
                    "tool_time_ms_distribution": CONSTANT_10,
                }
            )
        ],
    },
    {"version": "2", "num_requests": 20, "clients": [users(think_time_us=50)]},
    {
        "inference_perf": {
            "stages": [{"rate": 4.0, "duration": 2}, {"rate": 8.0, "duration": 2}],
            "shared_prefix": {
                "num_unique_system_prompts": 2,
                "num_users_per_system_prompt": 3,
                "system_prompt_len": 64,
                "question_len": 100,
                "output_len": 20,
                "enable_multi_turn_chat": True,
            },
        }
    },
    {
        "inference_perf": {
            "concurrent_stages": [{"num_requests": 9, "concurrency_level": 2}],
            "process": "constant",
            "shared_prefix": {
                "num_unique_system_prompts": 2,
                "num_users_per_system_prompt": 3,
                "system_prompt_len": 64,
                "question_len": 100,
                "output_len": 20,
                "output_distribution": {"type": "constant", "params": {"value": 7}},
                "turns_per_conversation": 2,
            },
        }
    },
]
Place = tuple[str | int, ...]

scalars = st.none() | st.booleans() | st.integers(-3, 2_000) | st.floats(-10, 1e4) | st.text(max_size=4)
values = (
    st.sampled_from(["", "weibull", "gaussian", "accumulate", 0, 1, -1, 1e-9, float("nan"), float("inf")]) | scalars
)
replacements = values | st.lists(scalars, max_size=2) | st.dictionaries(st.sampled_from(["id", "mean", "5"]), scalars)


def places(part: Any, here: Place = ()) -> Iterator[Place]:
    """Place of a value in a spec."""
    if here:
        yield here
    entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for name, inner in entries:
        yield from places(inner, (*here, name))


def changed(spec: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    """The spec with something else in one place."""
    result = copy.deepcopy(spec)
    part: Any = result
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    return result


@pytest.mark.slow
@given(st.sampled_from([RICH, *OTHERS]), st.data(), replacements)
@settings(max_examples=examples(120))
def test_any_value_in_any_place_is_understood_or_refused(spec: dict[str, Any], data: st.DataObject, value: Any) -> None:
    place = data.draw(st.sampled_from(list(places(spec))))
    text = yaml.safe_dump(changed(spec, place, value))
    try:
        workload = generate(parse_spec(text, "spec.yaml"))
    except TraceError as error:
        said = str(error)
    else:
        said = f"{len(workload.requests)} requests"
        arrivals = [request.arrival_us for request in workload.requests]
        assert arrivals == sorted(arrivals)
        assert all(request.input_tokens >= 0 and request.output_tokens >= 0 for request in workload.requests)
    assert "\n" not in said


def test_the_specs_that_are_changed_are_sound() -> None:
    for spec in (RICH, *OTHERS):
        workload = generate(parse_spec(yaml.safe_dump(spec), "spec.yaml"))
        assert len(workload.requests) + len(workload.sessions) + len(workload.rows) > 2
