"""Media in prompts: steps are composed as vLLM's scheduler composes them with its encoder's budget and cache."""

import csv
from itertools import groupby
from pathlib import Path

import pytest

from blis_sim.engine.config import EngineConfig, PipelineStages
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.request import EncoderLimits, Medium, Request, UniqueBlocks
from tests.fakes import TestLatency
from workshop.vllm_oracle.features import with_media
from workshop.vllm_oracle.simulated import changes, simulated_story
from workshop.vllm_oracle.table import composition_rows
from workshop.vllm_oracle.workload import draw_workload

TABLE = Path(__file__).parent / "tables" / "media.csv"
"""Written by `python -m workshop.vllm_oracle --features media --table` with vLLM 0.33: stages, kind, seed, instant,
tokens by request, preempted requests."""


def captured() -> list[tuple[tuple[bool, int], list[str]]]:
    with TABLE.open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return [
        ((kind == "async", int(seed)), [",".join(row) for row in story])
        for (_, kind, seed), story in groupby(rows, lambda row: row[:3])
    ]


@pytest.mark.parametrize(("drawn", "story"), captured(), ids=str)
def test_steps_with_media_are_composed_as_by_vllm(drawn: tuple[bool, int], story: list[str]) -> None:
    async_scheduling, seed = drawn
    workload = with_media(draw_workload(seed, async_scheduling), seed)
    assert list(composition_rows(1, async_scheduling, seed, simulated_story(workload).reported())) == story


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_reporting_changes_no_step_with_media(async_scheduling: bool) -> None:
    for seed in range(6):
        workload = with_media(draw_workload(seed, async_scheduling), seed)
        assert changes(workload, reports_steps=True) == changes(workload, reports_steps=False)


def ends_at(limits: EncoderLimits | None, *media: Medium, input_tokens: int = 100) -> int:
    """Return the steps of one prompt with so many tokens in a step, each a millisecond."""
    engine = Engine(EngineConfig(1000, max_num_batched_tokens=60, encoder=limits), TestLatency(step_us=1000))
    engine.submit(Request("r", input_tokens, 1, UniqueBlocks("r"), 1, media=media), 0)
    while (due_at := engine.next_event_at()) is not None:
        engine.advance(due_at)
    assert not engine.stats.num_waiting + engine.stats.num_running
    return engine.clock // 1000


def test_a_prompt_stops_before_a_medium_that_the_encoder_cannot_compute_in_the_same_step() -> None:
    first, second = Medium(0, 30, "a"), Medium(40, 30, "b")
    assert ends_at(EncoderLimits(step_tokens=60, cache_tokens=60), first, second) == 2  # 60, 40
    assert ends_at(EncoderLimits(step_tokens=30, cache_tokens=60), first, second) == 2  # 40, 60
    assert ends_at(EncoderLimits(step_tokens=30, cache_tokens=60), first, second, input_tokens=110) == 3


def test_a_medium_that_is_not_split_waits_for_a_step_with_room_for_all_of_it() -> None:
    medium = Medium(30, 50, "a")
    assert ends_at(EncoderLimits(step_tokens=60, cache_tokens=60), medium, input_tokens=100) == 2
    whole = EncoderLimits(step_tokens=60, cache_tokens=60, splits_media=False)
    assert ends_at(whole, medium, input_tokens=100) == 3  # 30, 60, 10


def test_a_medium_larger_than_all_limits_is_computed_all_the_same() -> None:
    limits = EncoderLimits(step_tokens=10, cache_tokens=10, splits_media=False)
    assert ends_at(limits, Medium(10, 80, "a")) == ends_at(None) == 2


def test_by_default_a_step_encodes_as_many_tokens_as_it_computes() -> None:
    assert ends_at(None, Medium(0, 30, "a"), Medium(40, 40, "b"), input_tokens=110) == 3  # 40, 60, 10
    assert ends_at(None, Medium(0, 30, "a"), Medium(40, 30, "b"), input_tokens=110) == 2


def test_the_flag_keeps_media_in_one_piece() -> None:
    def limits(disable_chunked_mm_input: bool = False) -> EncoderLimits | None:
        options = DeploymentOptions(
            model="qwen3-14b", hardware="H100", tp=1, disable_chunked_mm_input=disable_chunked_mm_input
        )
        return resolve(options).config.encoder

    assert limits() is None
    assert limits(disable_chunked_mm_input=True) == EncoderLimits(
        step_tokens=8192, cache_tokens=8192, splits_media=False
    )


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(EngineError, match="cache_tokens must be at least 1, got 0"):
        EncoderLimits(step_tokens=1, cache_tokens=0)


@pytest.mark.parametrize("pipeline", [None, PipelineStages((0.5, 0.5))])
def test_a_hang_up_lets_others_go_on_though_no_step_executes(pipeline: PipelineStages | None) -> None:
    """The first request waits for ever: its medium fits in no step and must not be split."""
    limits = EncoderLimits(step_tokens=100, cache_tokens=100, splits_media=False)
    config = EngineConfig(1000, max_num_batched_tokens=60, max_num_seqs=1, encoder=limits, pipeline=pipeline)
    engine = Engine(config, TestLatency(step_us=1000))
    engine.submit(Request("stuck", 100, 1, UniqueBlocks("stuck"), 1, media=(Medium(10, 80, "a"),)), 0)
    engine.submit(Request("next", 40, 1, UniqueBlocks("next"), 1), 0)
    engine.abort("stuck", 50_000)
    while (due_at := engine.next_event_at()) is not None:
        engine.advance(due_at)
    assert not engine.stats.num_waiting
    assert engine.clock == 51_000
