"""A model with several groups of layers is scheduled alike with and without a decode cohort."""

from functools import partial

import pytest

from blis_sim.engine.context import EngineContext
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished, Preempted, Scheduled
from blis_sim.engine.scheduler.vllm import VllmScheduler
from tests.examples import examples
from workshop.vllm_oracle.features import KINDS, with_groups
from workshop.vllm_oracle.simulated import requests_of
from workshop.vllm_oracle.workload import Workload, draw_workload

SEEDS = max(12, examples(24))
"""Some of the first twelve have groups of each kind."""
MANY_STEPS = 5000


def history(workload: Workload, reports_steps: bool, has_cohort: bool, chunk_us: int) -> list[object]:
    """Everything that can be observed of a run, as plain values."""
    engine = Engine(workload.config, workload.latency, reports_steps)
    new_scheduler = partial(VllmScheduler, reports_steps=reports_steps, has_cohort=has_cohort)
    engine._scheduler = new_scheduler(_context_of(engine))
    for request, at in requests_of(workload):
        engine.submit(request, at)
    for at, request_id in workload.hang_ups:
        engine.abort(request_id, at)
    reported: list[object] = []
    while (due_at := engine.next_event_at()) is not None and len(engine.steps) < MANY_STEPS:
        reported += [_reported(event) for event in engine.advance(due_at + chunk_us) if not _is_of_steps(event)]
        engine.check_integrity()
    if len(engine.steps) >= MANY_STEPS:
        return []
    steps = [(engine.steps.start(index), engine.steps.end(index)) for index in range(len(engine.steps))]
    return [*reported, *steps, engine.stats, engine.kv.hit_tokens, engine.kv.queried_tokens]


def _context_of(engine: Engine) -> EngineContext:
    return engine._context


def _is_of_steps(event: Event) -> bool:
    return not isinstance(event, Scheduled | Preempted | Finished)


def _reported(event: Event) -> tuple[object, ...]:
    assert isinstance(event, Scheduled | Preempted | Finished)
    sequence = event.sequence
    figures = (
        sequence.first_token_at,
        sequence.num_output_tokens,
        sequence.num_cached_tokens,
        sequence.num_preemptions,
    )
    runs = tuple(map(tuple, sequence.token_runs)) if isinstance(event, Finished) else ()
    return type(event).__name__, event.at, sequence.request.id, figures if runs else sequence.num_cached_tokens, runs


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "full"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_cohort_of_a_model_with_groups_changes_no_result(kind: str, is_async: bool) -> None:
    num_compared = 0
    for seed in range(SEEDS):
        workload = with_groups(draw_workload(seed, is_async), seed, kind)
        if not workload.config.kv_groups:
            continue
        changes_no_result(workload, seed)
        num_compared += 1
    assert num_compared


def changes_no_result(workload: Workload, seed: int) -> None:
    plain = history(workload, reports_steps=True, has_cohort=False, chunk_us=0)
    assert history(workload, True, True, 0) == plain, f"seed {seed}"
    assert history(workload, False, True, 10_000) == plain, f"seed {seed}"


def test_a_preempted_request_that_lacked_blocks_is_tried_again_since_it_finds_its_own() -> None:
    """Before its first admission the whole prompt lacked blocks; later only the next chunk does, for some steps."""
    workload = with_groups(draw_workload(seed := 1061, False), seed, "windows")
    assert workload.config.kv_groups
    changes_no_result(workload, seed)
