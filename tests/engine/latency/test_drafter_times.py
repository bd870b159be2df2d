"""The time of drafting by method: passes of heads and models, searches of the host, and times that are set."""

import json
from typing import Any

import numpy as np
import pytest

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.events import StepDone
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.speculation import DraftingTimes
from blis_sim.engine.speculation_options import SpeculationOptions
from tests.engine.latency.test_verification import verification
from tests.fakes import request

ONE = decodes(1, 1000)
PROMPT = BatchShape(1, 8192, 8192**2, 0, 0, 8192**2)


def deployment(method: str = "eagle", tokens: int = 3, *, drafter: str = "a/head", **given: Any) -> Deployment:
    fields: dict[str, Any] = {"method": method, "num_speculative_tokens": tokens}
    if method not in ("ngram", "ngram_gpu", "suffix", "mtp"):
        fields["model"] = drafter
    extra = {name: given.pop(name) for name in ("parallel_drafting", "draft_cost") if name in given}
    drafts = SpeculationOptions(
        speculative_config=json.dumps({**fields, **extra}), speculative_draft_time=given.pop("draft_time", None)
    )
    given = {"model": "llama-3.1-8b-instruct", "hardware": "H100", "tp": 1, **given}
    return resolve(DeploymentOptions(**given, drafts=drafts))


def times(*args: Any, **given: Any) -> DraftingTimes:
    speculation = deployment(*args, **given).config.speculation
    assert speculation is not None
    assert speculation.times is not None
    return speculation.times


def drafting_us(*args: Any, shape: BatchShape = ONE, num_sampling: int = 1, **given: Any) -> int:
    return times(*args, **given).drafting_us(shape, num_sampling)


MEASURED_TPOT_MS = {2: 4.37, 3: 4.29, 4: 4.48, 5: 4.71, 6: 4.94, 7: 5.20}
TOKENS_A_STEP = {2: 2.1, 3: 2.29, 4: 2.39, 5: 2.43, 6: 2.45, 7: 2.47}
"""Llama-3.1-8B with an EAGLE head on one H100, one request of MT-Bench at a time, as published for vLLM 0.9."""
TPOT_WITHOUT_DRAFTS_MS = 7.07


def predicted_tpot_ms(num_drafts: int) -> float:
    sut = deployment("eagle", num_drafts)
    shape = verification(1, num_drafts, context=230)
    assert sut.config.speculation is not None
    step_us = sut.latency.step_time(shape)
    return (step_us + sut.config.speculation.drafting_us(step_us, shape, 1)) / 1e3 / TOKENS_A_STEP[num_drafts]


def test_a_measured_server_with_an_eagle_head_is_predicted_and_its_best_number_of_drafts_is_found() -> None:
    predicted = {num_drafts: predicted_tpot_ms(num_drafts) for num_drafts in MEASURED_TPOT_MS}
    errors = [abs(predicted[each] / measured - 1) for each, measured in MEASURED_TPOT_MS.items()]
    assert np.median(errors) < 0.06
    assert max(errors) < 0.08
    assert min(predicted, key=predicted.__getitem__) == min(MEASURED_TPOT_MS, key=MEASURED_TPOT_MS.__getitem__) == 3


@pytest.mark.parametrize("left_out", MEASURED_TPOT_MS)
def test_no_row_is_needed_to_find_the_two_times_that_were_learned_from_it(left_out: int) -> None:
    sut = {each: times("eagle", each) for each in MEASURED_TPOT_MS}
    others = [each for each in MEASURED_TPOT_MS if each != left_out]

    def more_ms(num_drafts: int) -> float:
        """Measured time of a step with drafts, less one without and less the passes as predicted."""
        step_ms = MEASURED_TPOT_MS[num_drafts] * TOKENS_A_STEP[num_drafts]
        return step_ms - TPOT_WITHOUT_DRAFTS_MS - sut[num_drafts].drafting_us(ONE, 1) / 1e3

    slope, start = np.polyfit(others, [more_ms(each) for each in others], 1)
    step_ms = MEASURED_TPOT_MS[left_out] * TOKENS_A_STEP[left_out]
    assert abs(start + slope * left_out - more_ms(left_out)) < 0.015 * step_ms
    assert abs(slope) < 0.05, "milliseconds that a pass differs from its prediction"


def test_each_draft_of_a_head_reads_its_layer_and_the_output_head() -> None:
    more_us = [drafting_us("eagle", each + 1) - drafting_us("eagle", each) for each in (1, 2, 6)]
    read_us = 2 * (218e6 + 2 * 4096**2 + 128_256 * 4096) / 3.35e6
    assert all(read_us < each < 2 * read_us for each in more_us)


def test_a_model_that_drafts_takes_its_own_steps() -> None:
    given: dict[str, Any] = {"model": "llama-3.3-70b-instruct", "tp": 4}
    three_b = drafting_us("draft_model", 4, drafter="llama-3.2-3b-instruct", **given)
    head = drafting_us("eagle3", 4, **given)
    verifying_us = deployment("draft_model", 4, drafter="llama-3.2-3b-instruct", **given).latency.step_time(ONE)
    assert three_b > 4 * 3.2e9 * 2 / 4 / 3.35e6
    assert 2 * head < three_b < verifying_us
    on_one = drafting_us("draft_model", 4, drafter="llama-3.2-3b-instruct", model="qwen3-32b", tp=1)
    assert on_one > 4 * 3.2e9 * 2 / 3.35e6


def test_a_layer_for_multi_token_prediction_reads_the_experts_of_its_tokens() -> None:
    sut = times("mtp", 1, model="deepseek-r1", hardware="H200", tp=8)
    few_us, many_us = sut.drafting_us(ONE, 1), sut.drafting_us(decodes(64, 64_000), 64)
    layer_us = 256 * 3 * 7168 * 2048 / 8 / 4.8e6
    assert layer_us * 0.7 < many_us - few_us < layer_us * 1.3


def test_heads_of_medusa_draft_all_at_once() -> None:
    one, three = (drafting_us("medusa", each) for each in (1, 3))
    read_us = 2 * (4096**2 + 128_256 * 4096) / 3.35e6
    assert 2 * read_us < three - one < 2.5 * read_us


@pytest.mark.parametrize("method", ["eagle", "draft_model"])
def test_parallel_drafts_take_one_pass(method: str) -> None:
    given: dict[str, Any] = {"drafter": "llama-3.2-1b-instruct"}
    alone = drafting_us(method, 1, **given)
    assert drafting_us(method, 5, parallel_drafting=True, **given) < 1.2 * alone
    assert drafting_us(method, 5, **given) > 2.5 * alone


def test_an_ngram_is_looked_for_in_the_whole_context() -> None:
    sut = times("ngram")
    short, long = (sut.drafting_us(decodes(16, 16 * each), 16) for each in (1000, 9000))
    assert 16 * 8000 * 0.006 < long - short < 16 * 8000 * 0.011
    assert sut.drafting_us(PROMPT, 0) == 0


def test_a_drafter_with_a_cache_takes_in_prompts_that_go_on() -> None:
    sut = deployment("eagle", 3)
    layer_us = times("eagle", 3).drafting_us(PROMPT, 0)
    assert 0.7 / 32 < layer_us / sut.latency.step_time(PROMPT) < 1.5 / 32
    assert drafting_us("medusa", 3, shape=PROMPT, num_sampling=0) == 0


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "draft_model", "dflash", "medusa", "ngram", "suffix"])
def test_more_requests_never_draft_faster(method: str) -> None:
    given: dict[str, Any] = {"model": "deepseek-r1", "hardware": "H200", "tp": 8} if method == "mtp" else {}
    sut = times(method, 4, drafter="llama-3.2-1b-instruct" if method == "draft_model" else "a/head", **given)
    found = [sut.drafting_us(decodes(each, each * 1000), each) for each in (1, 2, 8, 32, 128, 512)]
    assert found == sorted(found)


def test_a_time_that_is_set_replaces_that_of_the_method() -> None:
    for given, expected_us in ({"draft_time": 0}, 0), ({"draft_time": 80}, 80), ({"draft_cost": 0.25}, 250):
        speculation = deployment(**given).config.speculation
        assert speculation is not None
        assert speculation.times is None
        assert speculation.drafting_us(1000, ONE, 1) == expected_us
        assert speculation.drafting_us(1000, ONE, 0) == 0


def test_a_model_of_unknown_size_drafts_for_free_with_a_warning() -> None:
    sut = deployment("draft_model", drafter="nowhere/model")
    assert sut.config.speculation is not None
    assert sut.config.speculation.times is None
    assert any(note.startswith("warning: drafting takes no time, --speculative-draft-time") for note in sut.notes)


def test_steps_of_an_engine_last_longer_by_the_time_of_drafting() -> None:
    free, drafting = deployment("eagle", 3, draft_time=0), deployment("eagle", 3)
    durations = []
    for sut in (free, drafting):
        engine = Engine(sut.config, sut.latency)
        events = list(run_virtual(engine, [(0, request("a", 500, 40))]))
        assert any(isinstance(event, StepDone) for event in events)
        durations.append(engine.steps.durations())
    more_us = durations[1] - durations[0]
    expected_us = times("eagle", 3).drafting_us(verification(1, 3, context=520), 1)
    assert more_us[2] == pytest.approx(expected_us, rel=0.01)
    assert (more_us > 0).all()
