"""The best that the steps of a deployment allow, from its latency model alone: no simulation, a millisecond each."""

from dataclasses import dataclass
from math import ceil, inf

from blis_sim.bench.capacity.targets import Targets
from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.latency.decode_steps import decode_timer

_US = 1e6


@dataclass(frozen=True, slots=True)
class Load:
    """The mean load: requests per second, tokens of a prompt and of an answer."""

    rate_per_s: float
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Seconds:
    """The time of an instance that one request takes when all steps are filled as well as targets and memory allow.

    `refusal` is why no load at all meets the targets, empty where some load does.
    """

    prefill_s: float
    decode_s: float
    refusal: str = ""


def seconds_per_request(deployment: Deployment, load: Load, targets: Targets) -> Seconds:
    """Return the least time of an instance for one request of mean lengths."""
    prompt, output = max(1, round(load.prompt_tokens)), max(1, round(load.output_tokens))
    context = prompt + output // 2
    config = deployment.config
    decode_time = decode_timer(deployment.latency)
    itl_us = 1e3 * _limit(targets, "itl")
    lone_itl_us = decode_time(1, context)
    if lone_itl_us > itl_us:
        return Seconds(inf, inf, f"one request alone has {lone_itl_us / 1e3:.0f} ms between tokens")
    lone_ttft_us = _prompt_us(deployment, prompt, config.max_num_batched_tokens, 1)
    if lone_ttft_us > 1e3 * _limit(targets, "ttft"):
        return Seconds(inf, inf, f"one prompt alone takes {lone_ttft_us / 1e3:.0f} ms")
    prompts = max(1, config.max_num_batched_tokens // prompt)
    prefill_us = _prompt_us(deployment, prompt, config.max_num_batched_tokens, prompts) / prompts
    capacity = config.total_kv_blocks * config.block_size_tokens
    most = max(1, min(config.max_num_seqs, int(capacity / context)))
    good, bad = 1, most + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if decode_time(middle, middle * context) <= itl_us else (good, middle)
    decode_us = output * decode_time(good, good * context) / good
    return Seconds(prefill_us / _US, decode_us / _US)


def _limit(targets: Targets, name: str) -> float:
    """Return the least limit of a latency in milliseconds, infinite without one."""
    return min((limit_ms for figure, limit_ms in targets.limits_ms.items() if figure.startswith(name)), default=inf)


def _prompt_us(deployment: Deployment, prompt: int, most_tokens: int, requests: int) -> float:
    """Return the time of steps that compute so many equal prompts together, each split where it is too long."""
    steps = ceil(prompt / most_tokens)
    tokens = prompt / steps
    total = 0.0
    for number in range(steps):
        context = number * tokens
        shape = BatchShape(
            requests,
            int(requests * tokens),
            int(requests * tokens * tokens),
            int(requests * context),
            int(requests * tokens * context),
            int(requests * tokens * prompt),
            0,
            0,
        )
        total += deployment.latency.step_time(shape)
    return total
