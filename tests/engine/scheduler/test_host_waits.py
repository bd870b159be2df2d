"""Steps on an idle GPU, and batches larger than any before, for which the host of a server waits."""

from dataclasses import dataclass
from itertools import pairwise

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished, StepDone
from blis_sim.engine.latency.wrapped import PhaseShifted, WrappedLatency
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from tests.fakes import TestLatency, config, request, run

PROMPT_STEP_US = 10_000
DECODE_STEP_US = 1_000


@dataclass(slots=True)
class Waits(WrappedLatency):
    """`model` with steps that take longer with prompts, and with waits of the host."""

    idle_share: float = 0.0
    multiple: int = 0

    def step_time(self, shape: BatchShape) -> Micros:
        return PROMPT_STEP_US if shape.prefill_tokens else DECODE_STEP_US

    def idle_start_time(self, idle_us: Micros) -> Micros:
        return int(self.idle_share * idle_us)

    @property
    def growth_requests(self) -> int:
        return self.multiple


def engine(reports_steps: bool = True, **settings: float) -> Engine:
    latency = Waits(TestLatency(step_us=DECODE_STEP_US), **settings)  # type: ignore[arg-type]
    return Engine(config(engine="vllm", max_num_seqs=64), latency, reports_steps)


def step_ends(events: list[Event]) -> list[tuple[int, Micros]]:
    return [(each.index, each.at) for each in events if isinstance(each, StepDone)]


def first_tokens(events: list[Event]) -> dict[str, Micros | None]:
    return {each.sequence.request.id: each.sequence.first_token_at for each in events if isinstance(each, Finished)}


def test_the_first_step_after_an_idle_time_depends_on_how_long_it_was() -> None:
    arrivals = [(1_000, request("a", output_tokens=2)), (32_000, request("b", output_tokens=2))]
    events = run(engine(idle_share=0.5), arrivals)
    assert first_tokens(events) == {"a": 11_500, "b": 32_000 + 10_000 + (32_000 - 12_500) // 2}


def test_a_step_that_follows_another_at_once_was_never_idle() -> None:
    arrivals = [(1_000, request("a", output_tokens=30)), (12_000, request("b", output_tokens=30))]
    steps = [each for each in run(engine(idle_share=1.0), arrivals) if isinstance(each, StepDone)]
    durations_us = [each.at - each.started_at for each in steps]
    assert durations_us[0] == PROMPT_STEP_US + 1_000
    assert set(durations_us[1:]) == {PROMPT_STEP_US, DECODE_STEP_US}


def test_a_latency_model_without_idle_starts_has_no_timer_of_them() -> None:
    assert TestLatency().idle_start_timer() is None
    starter = PhaseShifted(Waits(TestLatency(), idle_share=0.5), 1).idle_start_timer()
    assert starter is not None
    assert starter(100) == 50


def burst(num_requests: int) -> list[tuple[Micros, Request]]:
    return [(4_000 * number, request(f"r{number}", output_tokens=200)) for number in range(num_requests)]


def test_outputs_of_a_step_wait_while_the_host_launches_the_largest_batch_so_far() -> None:
    plain, late = (step_ends(run(engine(multiple=multiple), burst(6))) for multiple in (0, 1))
    # Step 2 has the prompts of r1 and r2, step 3 those of the others: late, it is composed at the end of step 2 only.
    assert plain[:4] == [(0, 10_000), (1, 11_000), (2, 21_000), (3, 22_000)]
    assert late[:4] == [(0, 10_000), (1, 21_000), (2, 31_000), (3, 31_000)]


def test_a_batch_of_a_size_that_was_seen_makes_nothing_wait() -> None:
    once = burst(6)
    again = [(at + 1_000_000, request(f"again{number}", output_tokens=200)) for number, (at, _) in enumerate(once)]
    events = run(engine(multiple=1), [*once, *again])
    instants = [at for _, at in step_ends(events)]
    doubled = [at for at, following in pairwise(instants) if at == following]
    assert doubled
    assert max(doubled) < 1_000_000


@pytest.mark.parametrize("multiple", [1, 2, 8])
def test_results_do_not_depend_on_how_often_an_engine_is_advanced(multiple: int) -> None:
    results = []
    for stride_us, reports_steps in ((None, True), (700, True), (None, False)):
        sut = engine(reports_steps, multiple=multiple, idle_share=0.01)
        events: list[Event] = []
        for at, each in burst(20):
            sut.submit(each, at + 1)
        if stride_us is not None:
            for until in range(0, 600_000, stride_us):
                events += sut.advance(until)
        events += sut.advance(10_000_000)
        sut.check_integrity()
        results.append(
            (first_tokens(events), [(e.sequence.request.id, e.at) for e in events if isinstance(e, Finished)])
        )
    assert results[0] == results[1] == results[2]
