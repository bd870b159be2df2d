"""A spec at another rate sends more or fewer requests of the same kinds, in the same shape."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.traces.workload.specs import client
from traces.text_file import TraceError
from traces.workload.generate import generate, rate_of, read_spec_at, with_rate
from traces.workload.request import WorkloadRequest
from traces.workload.spec import WorkloadSpec, parse_spec

HORIZON_US = 40_000_000


def spec(*clients: dict[str, Any], **keys: Any) -> WorkloadSpec:
    given = {"version": "2", "seed": 3, "horizon": HORIZON_US, "clients": list(clients), **keys}
    return parse_spec(yaml.safe_dump({key: value for key, value in given.items() if value != []}), "spec.yaml")


def sent(made: WorkloadSpec, rate: float | None = None) -> Sequence[WorkloadRequest]:
    return generate(made if rate is None else with_rate(made, rate)).requests


LENGTHS = {
    name: {"type": "constant", "params": {"value": tokens}}
    for name, tokens in (("input_distribution", 30), ("output_distribution", 5))
}
TWO_TO_ONE = spec(client("a", rate_fraction=2.0), client("b", rate_fraction=1.0), aggregate_rate=60.0)
WINDOWS = spec(
    client(
        "w",
        lifecycle={
            "windows": [
                {"start_us": 0, "end_us": 10_000_000, "trace_rate": 30.0},
                {"start_us": 20_000_000, "end_us": 30_000_000, "trace_rate": 90.0},
            ]
        },
    )
)
STAGES = spec(
    inference_perf={
        "stages": [{"rate": 10.0, "duration": 20.0}, {"rate": 40.0, "duration": 10.0}],
        "shared_prefix": {
            "num_unique_system_prompts": 2, "num_users_per_system_prompt": 2, "system_prompt_len": 10,
            "question_len": 20, "output_len": 4,
        },
    },
    horizon=0,
)  # fmt: skip
GAMMA = spec(client(arrival={"process": "gamma", "shape": 0.5, "scale": 40_000.0}), aggregate_rate=50.0)
VIDUR = spec(
    vidur={"interval": {"type": "gamma", "qps": 20.0, "cv": 1.0}, "length": {"type": "fixed", "prefill_tokens": 9}}
)
BURST = spec(scenario={"name": "burst"}, horizon=0)
SPECS = {
    "clients": TWO_TO_ONE, "windows": WINDOWS, "stages": STAGES, "gaps of their own": GAMMA, "vidur": VIDUR,
    "burst": BURST,
}  # fmt: skip


@pytest.mark.parametrize("made", SPECS.values(), ids=SPECS)
def test_thirty_percent_more_is_thirty_percent_more_requests(made: WorkloadSpec) -> None:
    count, more = len(sent(made)), len(sent(made, 1.3 * rate_of(made)))
    assert more / count == pytest.approx(1.3, abs=5 * count**-0.5)
    assert more > 1.1 * count


@pytest.mark.parametrize("made", SPECS.values(), ids=SPECS)
def test_its_own_rate_changes_nothing(made: WorkloadSpec) -> None:
    assert sent(made, rate_of(made)) == sent(made)
    assert rate_of(with_rate(made, 2.5)) == pytest.approx(2.5)


def test_shares_of_clients_stay() -> None:
    counts = Counter(each.client_id for each in sent(TWO_TO_ONE, 120.0))
    assert counts["a"] / counts["b"] == pytest.approx(2, rel=0.1)
    assert counts.total() == pytest.approx(120 * 40, rel=0.05)


@pytest.mark.parametrize("made", [WINDOWS, STAGES, BURST], ids=["windows", "stages", "burst"])
def test_the_shape_stays(made: WorkloadSpec) -> None:
    def by_second(requests: Sequence[WorkloadRequest]) -> list[float]:
        counts = Counter(each.arrival_us // 10_000_000 for each in requests)
        return [counts[place] / len(requests) for place in range(4)]

    assert by_second(sent(made, 3 * rate_of(made))) == pytest.approx(by_second(sent(made)), abs=0.06)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"clients": [{"id": "u", "concurrency": 3, **LENGTHS}]}, "its users send when replies come"),
        (
            {"vidur": {"interval": {"type": "static"}, "length": {"type": "fixed"}}, "num_requests": 3},
            "its static intervals send all requests at once",
        ),
    ],
)
def test_a_spec_without_a_rate_is_refused_in_one_line(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump({"version": "2", "horizon": HORIZON_US, **keys}))
    with pytest.raises(TraceError, match=f"spec.yaml: {message}"):
        read_spec_at(str(path), 3.0)
