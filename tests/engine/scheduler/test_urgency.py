"""Waiting requests near their deadlines are raised, and urgent ones take the places of others."""

from typing import Any

import pytest

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import Finished, Preempted
from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.sequence import NO_DEADLINE, Sequence
from blis_sim.engine.urgency import Urgency, UrgencySettings
from tests.fakes import TestLatency, run


def waiting(priority: int, deadline_at: int) -> Sequence:
    sequence = Sequence(Request("a", 10, 3, UniqueBlocks("a")), 0)
    sequence.priority, sequence.deadline_at = priority, deadline_at
    return sequence


def priorities(settings: UrgencySettings, priority: int, instants: list[int], deadline_at: int = 100_000) -> list[int]:
    urgency, sequence = Urgency(settings), waiting(priority, deadline_at)
    urgency.watch(sequence)
    seen = []
    for at in instants:
        urgency.rise(at)
        seen.append(sequence.priority)
    return seen


def test_a_request_rises_once_when_its_deadline_is_within_the_window() -> None:
    assert priorities(UrgencySettings(), 7, [49_999, 50_000, 99_000, 200_000]) == [7, 5, 5, 5]


def test_with_an_interval_a_request_rises_again_until_the_ceiling() -> None:
    settings = UrgencySettings(interval_us=1000)
    assert priorities(settings, 7, [50_000, 50_999, 51_000, 53_000, 90_000]) == [5, 5, 3, 0, 0]


def test_rises_do_not_depend_on_how_often_they_are_looked_at() -> None:
    settings = UrgencySettings(interval_us=1000, ceiling=-9)
    assert priorities(settings, 7, [52_500])[-1] == priorities(settings, 7, list(range(0, 52_501, 500)))[-1] == 1


def test_a_request_above_the_ceiling_is_not_lowered() -> None:
    assert priorities(UrgencySettings(), -4, [60_000]) == [-4]


def test_a_request_without_a_deadline_never_rises() -> None:
    assert priorities(UrgencySettings(), 7, [10**15], NO_DEADLINE) == [7]


def test_the_target_of_a_request_precedes_that_of_its_class() -> None:
    settings = UrgencySettings(deadlines_us={"critical": 5000, "default": 9000})
    request = Request("a", 1, 1, UniqueBlocks("a"), slo_class="critical")
    assert settings.deadline_of(request, 100) == 5100
    assert settings.deadline_of(request._replace(slo_e2e_us=70), 100) == 170
    assert settings.deadline_of(request._replace(slo_class=""), 100) == 9100
    assert settings.deadline_of(request._replace(slo_class="batch"), 100) == NO_DEADLINE


@pytest.mark.parametrize("setting", [{"step": 0}, {"window_us": -1}, {"min_preempt_gap": 0}, {"interval_us": -1}])
def test_impossible_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="must be at least"):
        UrgencySettings(**setting)


def engine(
    *, urgency: UrgencySettings, total_kv_blocks: int = 1000, prefill_token_us: int = 0, **settings: Any
) -> Engine:
    config = EngineConfig(
        total_kv_blocks=total_kv_blocks,
        block_size_tokens=4,
        scheduler="priority-deadline",
        preemption_policy="gap",
        priority_policy="slo-urgency",
        urgency=urgency,
        **({"max_num_seqs": 1} | settings),
    )
    return Engine(config, TestLatency(step_us=1000, prefill_token_us=prefill_token_us))


def asked(name: str, priority: int, output_tokens: int = 20, slo_e2e_us: int = 0) -> Request:
    return Request(name, 8, output_tokens, UniqueBlocks(name), output_tokens, priority=priority, slo_e2e_us=slo_e2e_us)


def ends(engine: Engine, arrivals: list[tuple[int, Request]]) -> tuple[dict[str, int], list[str]]:
    """When each request finished, and which lost their places, in order."""
    events = run(engine, arrivals)
    finished = {event.sequence.request.id: event.at for event in events if isinstance(event, Finished)}
    return finished, [event.sequence.request.id for event in events if isinstance(event, Preempted)]


@pytest.mark.parametrize(("priority", "loses"), [(6, []), (5, ["slow"])])
def test_a_place_is_lost_only_from_the_gap_on(priority: int, loses: list[str]) -> None:
    arrivals = [(0, asked("slow", 8)), (5500, asked("urgent", priority, output_tokens=2))]
    finished, lost = ends(engine(urgency=UrgencySettings()), arrivals)
    assert lost == loses
    assert (finished["urgent"] < finished["slow"]) == bool(loses)


def test_progress_that_is_kept_is_not_computed_again() -> None:
    arrivals = [(0, asked("slow", 8)), (5500, asked("urgent", 0, output_tokens=2))]
    settings = {"prefill_token_us": 100, "enable_prefix_caching": False}
    kept, lost = ends(engine(urgency=UrgencySettings(keeps_progress=True), **settings), arrivals)
    anew, lost_too = ends(engine(urgency=UrgencySettings(), **settings), arrivals)
    assert lost == lost_too == ["slow"]
    assert kept["urgent"] == anew["urgent"]
    # 20 steps of its own, 2 of the other, and two prompts of 8 tokens; then the 8 + 6 tokens that it had by then.
    assert (kept["slow"], anew["slow"]) == (22_000 + 1600, 22_000 + 1600 + 1400)


def test_kept_blocks_go_to_a_more_urgent_request_that_finds_too_few() -> None:
    arrivals = [(0, asked("slow", 8)), (5500, asked("urgent", 0))]
    finished, lost = ends(
        engine(urgency=UrgencySettings(keeps_progress=True), total_kv_blocks=9, max_model_len=32), arrivals
    )
    assert lost == ["slow"]
    assert set(finished) == {"slow", "urgent"}
    assert finished["urgent"] < finished["slow"]


def test_the_least_urgent_loses_its_place_and_among_equals_the_latest_due() -> None:
    settings = UrgencySettings(deadlines_us={"default": 10**6})
    arrivals = [
        (0, asked("early", 8, slo_e2e_us=500_000)),
        (0, asked("late", 8, slo_e2e_us=900_000)),
        (5500, asked("urgent", 0, output_tokens=2)),
    ]
    assert ends(engine(urgency=settings, max_num_seqs=2), arrivals)[1] == ["late"]


def test_no_request_loses_a_place_twice_to_one_request() -> None:
    arrivals = [(0, asked("a", 9)), (2500, asked("b", 6)), (4500, asked("c", 3)), (6500, asked("d", 0))]
    finished, lost = ends(engine(urgency=UrgencySettings(keeps_progress=True)), arrivals)
    assert lost == ["a", "b", "c"]
    assert sorted(finished, key=finished.__getitem__) == ["d", "c", "b", "a"]


def test_a_passed_deadline_is_no_end_where_it_only_counts() -> None:
    request = asked("a", 3)._replace(deadline_us=3000)
    finished = ends(engine(urgency=UrgencySettings(ends_late_requests=False)), [(0, request)])[0]
    assert finished["a"] == 20_000
    ended_at = ends(engine(urgency=UrgencySettings()), [(0, request)])[0]["a"]
    assert ended_at < 20_000
