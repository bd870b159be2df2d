"""The worker of the published adaptive scheduler."""

from statistics import fmean
from typing import Any

import pytest

from blis_sim.bench.compare_command import rewritten
from blis_sim.bench.compare_options import CompareOptions
from blis_sim.bench.comparison import (
    sides_of,
    simulate_configuration,
    ttft_percentile_ms,
    window_throughput,
    workload_of,
)
from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished, Preempted
from blis_sim.engine.latency.blackbox import AdaptiveToy
from blis_sim.engine.request import PrefixGroupBlocks, Request, UniqueBlocks
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.urgency import UrgencySettings
from blis_sim.options import options_from
from blis_sim.options.command_line import parse_command_line
from tests.fakes import run


def worker(reports_steps: bool = True, **settings: Any) -> Engine:
    limits: dict[str, Any] = {"total_kv_blocks": 129, "max_num_seqs": 32, "scheduler": "priority-deadline"}
    config = EngineConfig(engine="adaptive", block_size_tokens=16, max_model_len=2048, **(limits | settings))
    return Engine(config, AdaptiveToy(), reports_steps)


def asked(name: str, num_prompt: int, num_output: int, priority: int = 5, group: str = "") -> Request:
    blocks = PrefixGroupBlocks(name, group, num_prompt // 16) if group else UniqueBlocks(name)
    return Request(name, num_prompt, num_output, blocks, num_output, priority=priority)


def ends(engine: Engine, arrivals: list[tuple[int, Request]]) -> dict[str, int]:
    return {each.sequence.request.id: each.at for each in run(engine, arrivals) if isinstance(each, Finished)}


def test_step_times_of_the_worker_are_the_published_formulas() -> None:
    toy = AdaptiveToy()
    assert toy.step_time(BatchShape(1, 100)) == 50 * 100 + 200
    assert toy.step_time(BatchShape(4, 100)) == 50 * 25 + 200
    assert toy.step_time(decodes(8, 1000)) == 100 * 8 + 50
    assert toy.decode_times(decodes(8, 1000), 3).tolist() == [850] * 3


def test_newcomers_compute_their_prompts_in_turn_and_then_all_decode() -> None:
    # Two prompts of 100 tokens share the batch: 2,700 us each; then a pass of two, 250 us, ends both.
    assert ends(worker(), [(0, asked("a", 100, 2)), (0, asked("b", 100, 2))]) == {"a": 5650, "b": 5650}


def test_sleeps_end_at_ticks_of_the_timer() -> None:
    assert ends(worker(timer_us=1000), [(100, asked("a", 100, 3))]) == {"a": 1000 + 6000 + 2 * 1000}


def test_a_stored_prompt_is_not_computed_again() -> None:
    engine = worker()
    found = ends(engine, [(0, asked("a", 160, 1, group="g")), (100_000, asked("b", 160, 1, group="g"))])
    assert found == {"a": 8200, "b": 100_000 + 250}
    assert (engine.kv.hit_tokens, engine.kv.queried_tokens) == (160, 320)


@pytest.mark.parametrize("keeps_progress", [True, False])
def test_an_urgent_request_takes_a_place_and_the_other_goes_on(keeps_progress: bool) -> None:
    settings: dict[str, Any] = {"preemption_policy": "gap", "urgency": UrgencySettings(keeps_progress=keeps_progress)}
    engine = worker(max_num_seqs=1, **settings)
    events = run(engine, [(0, asked("slow", 100, 50, 9)), (8000, asked("urgent", 100, 2, 0))])
    assert [each.sequence.request.id for each in events if isinstance(each, Preempted)] == ["slow"]
    found = {each.sequence.request.id: each.at for each in events if isinstance(each, Finished)}
    assert found["urgent"] < found["slow"]
    # 49 passes of its own; the other's prompt and pass; its own prompt again where progress is not kept.
    assert found["slow"] == 5200 + 49 * 150 + 5200 + 150 + (0 if keeps_progress else 5200)


def test_passes_taken_at_once_end_as_those_taken_one_by_one() -> None:
    arrivals = [(n * 7000, asked(f"r{n}", 30 + 13 * n % 90, 5 + 37 * n % 200, n % 10, f"g{n % 3}")) for n in range(40)]
    of_both: list[dict[str, Any]] = [{"timer_us": 1080}, {"max_num_seqs": 3, "preemption_policy": "gap"}]
    for settings in of_both:
        assert ends(worker(True, **settings), arrivals) == ends(worker(False, **settings), arrivals)


def test_held_requests_wait_until_they_are_let_go() -> None:
    engine = worker()
    engine.submit(asked("a", 100, 2), 0)
    engine.advance(10)
    engine.hold(PauseState.EVERYTHING, 11)
    assert not [each for each in engine.advance(50_000) if isinstance(each, Finished)]
    engine.hold(PauseState.NONE, 60_000)
    assert [each.at for each in engine.advance(100_000) if isinstance(each, Finished)] == [60_000 + 150]


def test_a_client_that_hangs_up_frees_its_place() -> None:
    engine = worker(max_num_seqs=1)
    engine.submit(asked("a", 100, 500), 0)
    engine.submit(asked("b", 100, 2), 10)
    engine.abort("a", 20_000)
    found = {each.sequence.request.id: each.at for each in engine.advance(10**6) if isinstance(each, Finished)}
    assert found["a"] < found["b"] < 30_000
    engine.check_integrity()


def compared(*words: str) -> tuple[CompareOptions, list[list[Any]]]:
    options = options_from(CompareOptions, **parse_command_line(CompareOptions, rewritten(list(words))).values)
    sides = sides_of(options).covered
    return options, [
        [simulate_configuration(side, workload_of(options, number)) for side in sides]
        for number in range(options.repeat)
    ]


def test_the_overload_that_ends_the_original_completes_with_preemptions() -> None:
    flags = ("--baseline", "fifo", "--workers", "1", "--workload", "mixed-priority", "--rate", "60", "--duration", "6")
    _, [(adaptive, fifo)] = compared(*flags, "--", "--max-num-seqs", "4")
    assert adaptive.submitted == fifo.submitted > 300
    assert adaptive.deadlines.counts == fifo.deadlines.counts
    assert int((adaptive.ended_s > 0).sum()) == adaptive.submitted
    assert adaptive.preemptions > 0 == fifo.preemptions


@pytest.mark.slow
def test_a_burst_is_within_the_spread_of_the_recorded_run() -> None:
    _, runs = compared("--baseline", "fifo", "--workload", "burst", "--duration", "15", "--repeat", "3")
    recorded = ((8258, 5.2), (7986, 4.0))
    for place, (throughput, ttft_p50_ms) in enumerate(recorded):
        of_side = [of_seed[place] for of_seed in runs]
        assert all(int((run.ended_s > 0).sum()) == run.submitted for run in of_side)
        assert fmean(map(window_throughput, of_side)) == pytest.approx(throughput, rel=0.1)
        assert fmean(ttft_percentile_ms(run, 50) for run in of_side) == pytest.approx(ttft_p50_ms, rel=0.2)
