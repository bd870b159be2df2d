"""The scenarios of the published adaptive scheduler: steady, a burst, and mixed priorities.

A request has a prompt of log-normal length whose text is one of 200, and an output of uniform length. It has a level
from 0 to 9 with a deadline that follows from it. Its priority is 9 less the level, as smaller numbers are more urgent
in vLLM.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from random import Random

from traces.workload.request import WorkloadRequest
from traces.workload.sources import check_count
from traces.workload.spec import Scenario

TIMER_US = 1080
"""Pauses between requests end at ticks of a timer, as in a program that waits with asyncio."""
_NUM_TEXTS = 200
_PROMPT_MU, _PROMPT_SIGMA, _PROMPT_LEAST, _PROMPT_MOST = 5.5, 1.0, 10, 1500
_OUTPUT_LEAST, _OUTPUT_MOST = 20, 256
_LEVEL_WEIGHTS = (12, 12, 10, 10, 10, 10, 8, 5, 2, 1)
HIGHEST_LEVEL = len(_LEVEL_WEIGHTS) - 1
_BANDS = (("batch", 3, 5000), ("standard", 6, 2000), ("critical", 9, 500))
"""SLO class, its highest level, and milliseconds to its deadline."""


def _steady(rate: float, _at_s: float, _duration_s: float) -> float:
    return rate


def _burst(rate: float, at_s: float, duration_s: float) -> float:
    begins_s = duration_s * 0.33
    return 40.0 * rate if begins_s <= at_s < begins_s + 5 else rate


def _mixed(rate: float, at_s: float, duration_s: float) -> float:
    begins_s = duration_s * 0.25
    return 80.0 if begins_s <= at_s < begins_s + 10 else rate


SCENARIOS: Mapping[str, Callable[[float, float, float], float]] = {
    "steady": _steady,
    "burst": _burst,
    "mixed-priority": _mixed,
    "mixed_priority": _mixed,
}
"""From a rate, an instant and a duration in seconds to the requests per second of that instant."""


def scenario_requests(scenario: Scenario, seed: int) -> list[WorkloadRequest]:
    """The requests of a scenario, in order of arrival. Raises TraceError for more than memory has room for."""
    check_count(scenario.duration_s * scenario.rate_per_s)
    random = Random(seed)
    return [_request(random, at_us) for at_us in _arrivals_us(scenario, random)]


def _arrivals_us(scenario: Scenario, random: Random) -> Iterator[int]:
    rate_at, at_us = SCENARIOS[scenario.name], 0
    while True:
        rate = rate_at(scenario.rate_per_s, at_us / 1e6, scenario.duration_s)
        at_us += math.ceil(random.expovariate(rate) * 1e6 / TIMER_US) * TIMER_US
        if at_us >= scenario.duration_s * 1e6:
            return
        yield at_us


def _request(random: Random, at_us: int) -> WorkloadRequest:
    num_prompt = min(_PROMPT_MOST, max(_PROMPT_LEAST, int(random.lognormvariate(_PROMPT_MU, _PROMPT_SIGMA))))
    num_output = random.randint(_OUTPUT_LEAST, _OUTPUT_MOST)
    (level,) = random.choices(range(len(_LEVEL_WEIGHTS)), _LEVEL_WEIGHTS)
    slo_class, deadline_ms = next((name, limit_ms) for name, highest, limit_ms in _BANDS if level <= highest)
    return WorkloadRequest(
        arrival_us=at_us,
        client_id="scenario",
        slo_class=slo_class,
        prefix_group=f"text_{random.randrange(_NUM_TEXTS)}",
        prefix_tokens=num_prompt,
        input_tokens=0,
        output_tokens=num_output,
        streaming=True,
        priority=HIGHEST_LEVEL - level,
        slo_e2e_us=deadline_ms * 1000,
    )
