"""With --compat adaptive the rules of urgency are those of the published adaptive scheduler, on vLLM's engine, too."""

from typing import Any

import pytest

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.events import Finished
from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.options import OptionError, options_from
from tests.fakes import TestLatency, run


def config_of(**flags: Any) -> EngineConfig:
    return resolve(options_from(DeploymentOptions, model="qwen/qwen3-14b", max_num_seqs=1, **flags)).config


def asked(name: str, output_tokens: int, slo_e2e_us: int, priority: int = 5) -> Request:
    return Request(name, 8, output_tokens, UniqueBlocks(name), output_tokens, priority=priority, slo_e2e_us=slo_e2e_us)


def order_of_ends(config: EngineConfig, arrivals: list[tuple[int, Request]]) -> list[str]:
    events = run(Engine(config, TestLatency(step_us=1000)), arrivals)
    return [event.sequence.request.id for event in events if isinstance(event, Finished)]


def test_the_order_is_by_the_time_allowed_and_rises_come_every_millisecond() -> None:
    config = config_of(compat="adaptive")
    assert (config.priority_policy, config.scheduler) == ("slo-urgency", "priority-slo-target")
    assert (config.urgency.interval_us, config.urgency.ends_late_requests) == (1000, False)
    usual = config_of(priority_policy="slo-urgency")
    assert (usual.scheduler, usual.urgency.interval_us) == ("priority-deadline", 0)
    adaptive, again = config_of(engine="adaptive"), config_of(engine="adaptive", compat="adaptive")
    assert again == adaptive


def test_flags_that_are_given_come_first() -> None:
    config = config_of(compat="adaptive", scheduler="priority-deadline", urgency_interval=7000)
    assert (config.scheduler, config.urgency.interval_us) == ("priority-deadline", 7000)


@pytest.mark.parametrize(
    ("compat", "expected"), [("", ["long", "due", "brief"]), ("adaptive", ["long", "brief", "due"])]
)
def test_of_equal_priorities_the_shorter_time_allowed_goes_first_though_it_ends_later(
    compat: str, expected: list[str]
) -> None:
    """`due` has its deadline at 400 ms, `brief`, which arrives later, at 410 ms."""
    config = config_of(compat=compat, priority_policy="slo-urgency")
    late = [(10_000, asked("due", 3, 390_000)), (60_000, asked("brief", 3, 350_000))]
    assert order_of_ends(config, [(0, asked("long", 100, 0)), *late]) == expected


@pytest.mark.parametrize(
    ("compat", "expected"), [("", ["long", "other", "near"]), ("adaptive", ["long", "near", "other"])]
)
def test_a_request_near_its_deadline_rises_until_the_ceiling(compat: str, expected: list[str]) -> None:
    """`near` rises from 9 at 50 ms: once to 7, or each millisecond to 0, before the 3 of the other."""
    config = config_of(compat=compat, priority_policy="slo-urgency")
    waiting = [(1000, asked("near", 3, 99_000, priority=9)), (2000, asked("other", 3, 0, priority=3))]
    assert order_of_ends(config, [(0, asked("long", 80, 0)), *waiting]) == expected


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"engine": "blis"}, "--compat adaptive needs --engine vllm or adaptive, got blis"),
        ({"priority_policy": "constant"}, "--compat adaptive needs --priority-policy slo-urgency, got constant"),
    ],
)
def test_engines_and_policies_without_urgency_are_refused(flags: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        config_of(compat="adaptive", **flags)
