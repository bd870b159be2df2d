"""Prompt tokens computed shortly before a step."""

from dataclasses import dataclass, field

from blis_sim.engine.batch_shape import HALF_LIFE_US, BatchShape, RecentPrompts
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.latency.wrapped import WrappedLatency
from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.simulation import run_virtual
from tests.fakes import TestLatency

PROMPT = BatchShape(prefill_requests=1, prefill_tokens=800)


def test_no_prompt_is_recent_before_the_first() -> None:
    assert RecentPrompts().with_recent(PROMPT, 5_000) == PROMPT


def test_tokens_count_half_after_a_half_life_and_add_up() -> None:
    recent = RecentPrompts()
    recent.add(800, ends_at=10_000)
    assert recent.with_recent(PROMPT, 10_000).recent_prefill_tokens == 800
    assert recent.with_recent(PROMPT, 10_000 + HALF_LIFE_US).recent_prefill_tokens == 400
    recent.add(100, ends_at=10_000 + HALF_LIFE_US)
    assert recent.with_recent(PROMPT, 10_000 + 2 * HALF_LIFE_US).recent_prefill_tokens == 250


def test_prompts_of_long_ago_are_forgotten() -> None:
    recent = RecentPrompts()
    recent.add(8192, ends_at=1)
    assert recent.with_recent(PROMPT, 10**15) == PROMPT


@dataclass(slots=True)
class _Noting(WrappedLatency):
    """A latency model that notes the steps with prompts."""

    reported: list[tuple[int, int]] = field(default_factory=list)

    def step_time(self, shape: BatchShape) -> int:
        if shape.prefill_tokens:
            self.reported.append((shape.prefill_tokens, shape.recent_prefill_tokens))
        return self.model.step_time(shape)


def test_vllms_scheduling_passes_recent_prompts_to_the_latency_model() -> None:
    for reports_steps in (False, True):
        latency = _Noting(TestLatency(step_us=HALF_LIFE_US))
        config = EngineConfig(1000, max_num_batched_tokens=2048, max_num_seqs=8, engine="vllm")
        engine = Engine(config, latency, reports_steps=reports_steps)
        requests = [(at, Request(f"r{at}", 640, 9, UniqueBlocks(f"r{at}"), 9)) for at in (1, 5, HALF_LIFE_US + 5)]
        list(run_virtual(engine, iter(requests)))
        # The second prompt comes after a step that was composed without it, the third right after the second.
        assert latency.reported == [(640, 0), (640, 320), (640, 800)]
