"""Pipeline stages: batches are composed as vLLM's scheduler composes them with its queue of batches."""

import csv
from itertools import groupby
from pathlib import Path

import pytest

from blis_sim.engine.config import EngineConfig, Pipeline, PipelineStages
from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import StepDone
from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.speculation import Speculation
from tests.fakes import TestLatency
from workshop.vllm_oracle.features import with_pipeline, with_speculation
from workshop.vllm_oracle.simulated import changes, simulated_story
from workshop.vllm_oracle.table import composition_rows
from workshop.vllm_oracle.workload import draw_workload

TABLES = Path(__file__).parent / "tables"
"""Written by `python -m workshop.vllm_oracle --table` with vLLM 0.33: stages, kind, seed, instant, tokens by request,
preempted requests."""


def captured(name: str) -> list[tuple[tuple[int, bool, int], list[str]]]:
    with (TABLES / name).open() as file:
        rows = list(csv.reader(file))
    return [
        ((int(stages), kind == "async", int(seed)), [",".join(row) for row in story])
        for (stages, kind, seed), story in groupby(rows, lambda row: row[:3])
    ]


@pytest.mark.parametrize(("drawn", "story"), captured("pipeline.csv"), ids=str)
def test_batches_are_composed_as_by_vllm(drawn: tuple[int, bool, int], story: list[str]) -> None:
    stages, async_scheduling, seed = drawn
    workload = with_pipeline(draw_workload(seed, async_scheduling), seed, stages)
    assert list(composition_rows(stages, async_scheduling, seed, simulated_story(workload).reported())) == story


@pytest.mark.parametrize(("drawn", "story"), captured("pipeline_drafts.csv"), ids=str)
def test_batches_with_drafts_follow_each_other_as_in_vllm(drawn: tuple[int, bool, int], story: list[str]) -> None:
    stages, async_scheduling, seed = drawn
    workload = with_pipeline(with_speculation(draw_workload(seed, async_scheduling), seed), seed, stages)
    assert list(composition_rows(stages, async_scheduling, seed, simulated_story(workload).reported())) == story


def test_a_step_with_drafts_ends_when_its_outputs_are_processed() -> None:
    speculation = Speculation(method="eagle", num_tokens=2, acceptance_rates=(1.0, 1.0))
    stages = PipelineStages((0.25, 0.25, 0.25, 0.25))
    engine = Engine(EngineConfig(1000, pipeline=stages, speculation=speculation, async_scheduling=False), TestLatency())
    engine.submit(Request("r", 20, 40, UniqueBlocks("r"), 40), 0)
    ends: dict[int, int] = {}
    while (due_at := engine.next_event_at()) is not None:
        ends |= {event.index: event.at for event in engine.advance(due_at) if isinstance(event, StepDone)}
    assert [engine.steps.end(index) for index in ends] == list(ends.values())
    assert engine.num_begun_steps == len(ends)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_reporting_changes_no_step(async_scheduling: bool) -> None:
    for seed in range(6):
        workload = with_pipeline(draw_workload(seed, async_scheduling), seed, 3)
        assert changes(workload, reports_steps=True) == changes(workload, reports_steps=False)


def test_a_step_waits_for_the_step_before_it_in_every_stage() -> None:
    pipeline = Pipeline(PipelineStages((0.25, 0.75), transfer_start_us=10))
    for duration_us, started_at, ends in ((400, 0, (100, 410)), (400, 100, (200, 710)), (40, 200, (210, 740))):
        pipeline.composed()
        assert pipeline.start(0) == started_at
        assert pipeline.enter(started_at, duration_us, 1, samples=False) == ends


def test_a_step_waits_for_tokens_sampled_as_many_compositions_before_as_there_are_stages() -> None:
    pipeline = Pipeline(PipelineStages((0.5, 0.5)))
    pipeline.composed()
    assert pipeline.enter(pipeline.start(0), 100, 1, samples=True) == (50, 100)
    pipeline.composed()
    assert pipeline.start(0) == 50
    pipeline.composed()
    assert pipeline.start(0) == 100


def test_two_stages_take_prompts_of_several_chunks_in_half_the_time() -> None:
    def ends_at(pipeline: PipelineStages | None) -> int:
        config = EngineConfig(1000, max_num_batched_tokens=100, pipeline=pipeline)
        engine = Engine(config, TestLatency(step_us=1000))
        engine.submit(Request("r", 1000, 1, UniqueBlocks("r"), 1), 0)
        while (due_at := engine.next_event_at()) is not None:
            engine.advance(due_at)
        return engine.clock

    assert ends_at(None) == 10_000
    assert ends_at(PipelineStages((0.5, 0.5))) == 5_500


def test_blis_has_no_pipeline_stages() -> None:
    with pytest.raises(EngineError, match="pipeline stages need engine vllm, got blis"):
        EngineConfig(10, engine="blis", pipeline=PipelineStages((0.5, 0.5)))


def test_a_pipeline_has_two_stages_at_least() -> None:
    with pytest.raises(EngineError, match="a pipeline must have at least 2 stages, got 1"):
        PipelineStages((1.0,))
