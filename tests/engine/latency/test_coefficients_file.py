"""Reading a file of learned coefficients, and noticing batches it has not seen."""

from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.coefficients_file import read_coefficients
from blis_sim.engine.latency.wrapped import RangeWatch
from tests.coefficients_file import CONTENT, written
from tests.fakes import TestLatency


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    learned = read_coefficients(written(tmp_path))
    assert (learned.model, learned.hardware, learned.tp) == ("qwen3-14b", "H100", 1)
    assert (learned.step.weights, learned.request.arrival_us) == (1.2, 3000)
    assert learned.seen == {"num_tokens": 3000, "decode_requests": 30, "decode_context_tokens": 33000}
    assert learned.seen_prompts is None
    with_prompts = read_coefficients(written(tmp_path, seen={"input_tokens": [900, 1100]}))
    assert with_prompts.seen_prompts == (900, 1100)


def test_coefficients_that_a_file_does_not_name_are_0(tmp_path: Path) -> None:
    step = {name: value for name, value in CONTENT["step"].items() if name not in ("layer_us", "decodes", "burst")}
    learned = read_coefficients(written(tmp_path, step=step))
    assert (learned.step.layer_us, learned.step.decodes, learned.step.burst) == (0, 0, 0)
    with pytest.raises(EngineError, match=r"step\.weights must be a number from 0 to 1e\+12, got nothing"):
        read_coefficients(written(tmp_path, step={"tokens": 1.0}))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"latency_model": "blackbox"}, "latency_model must be fitted, got 'blackbox'"),
        ({"step": None}, "step must be a mapping of names to values, got nothing"),
        ({"step": {**CONTENT["step"], "warp": 1}}, "step has an unknown key 'warp', known are weights, layer_us"),
        ({"step": {**CONTENT["step"], "kv": "fast"}}, "step.kv must be a number from 0 to 1e+12, got 'fast'"),
        ({"step": {**CONTENT["step"], "kv": 1e30}}, "step.kv must be a number from 0 to 1e+12, got 1e+30"),
        ({"step": {**CONTENT["step"], "kv": 10**400}}, "line 21 is not valid YAML: '1000"),
        ({"request": {}}, "request.arrival_us must be a number from 0 to 1e+12, got nothing"),
        ({"seen": {"input_tokens": 7}}, "seen.input_tokens must be the fewest and most tokens of prompts, got 7"),
        ({"seen": {"input_tokens": [1, "x"]}}, "seen.input_tokens must be a number from 0 to 1e+12, got 'x'"),
        ({"learned_for": {"tp": -1}}, "learned_for.tp must be a number from 0 to 1e+12, got -1"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name_and_key(
    tmp_path: Path, sections: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, **sections)
    with pytest.raises(EngineError) as caught:
        read_coefficients(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_batches_within_what_was_seen_are_not_mentioned() -> None:
    watch = RangeWatch(TestLatency(), CONTENT["seen"])
    watch.step_time(BatchShape(prefill_tokens=2970, decode_requests=30, decode_context_tokens=33000))
    assert watch.exceeded() == []


def test_larger_batches_are_mentioned_with_both_numbers() -> None:
    watch = RangeWatch(TestLatency(step_us=5), CONTENT["seen"])
    assert watch.step_time(BatchShape(decode_requests=64, decode_context_tokens=1)) == 5
    assert watch.exceeded() == ["up to 64 decoding requests in a step, the coefficients have seen up to 30"]


def test_prompts_as_long_as_those_seen_are_not_mentioned() -> None:
    watch = RangeWatch(TestLatency(), {}, (900, 1100))
    assert watch.exceeded() == []
    for input_tokens in (1200, 850, 1000):
        watch.queueing_time(input_tokens)
    assert watch.exceeded() == []


@pytest.mark.parametrize(("asked", "said"), [((250, 1000), "250 to 1,000"), ((4096, 1000), "1,000 to 4,096")])
def test_shorter_and_longer_prompts_are_mentioned(asked: tuple[int, int], said: str) -> None:
    watch = RangeWatch(TestLatency(queueing_us=3), {}, (900, 1100))
    assert [watch.queueing_time(input_tokens) for input_tokens in asked] == [3, 3]
    assert watch.exceeded() == [f"prompts of {said} tokens, the coefficients have seen 900 to 1,100"]
