"""The deployments that a plan tries: GPU type, shape of instances, and a lower bound of their number."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil, inf
from typing import Any, TypeAlias

from blis_sim.bench.capacity.prices import Prices
from blis_sim.bench.capacity.simulations import Targets
from blis_sim.bench.runner.commands import Simulation
from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.latency.decode_steps import decode_timer
from blis_sim.options import BlisError

_US = 1e6


@dataclass(frozen=True, slots=True)
class MeanLoad:
    """The mean load: requests per second, tokens of a prompt and of an answer."""

    rate_per_s: float
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class InstanceSeconds:
    """The time of an instance that one request takes when all steps are filled as well as targets and memory allow.

    `refusal` is why no load at all meets the targets, empty where some load does.
    """

    prefill_s: float
    decode_s: float
    refusal: str = ""


def seconds_per_request(deployment: Deployment, load: MeanLoad, targets: Targets) -> InstanceSeconds:
    """Return the least time of an instance for one request of mean lengths."""
    prompt, output = max(1, round(load.prompt_tokens)), max(1, round(load.output_tokens))
    context = prompt + output // 2
    config = deployment.config
    decode_time = decode_timer(deployment.latency)
    itl_us = 1e3 * _limit(targets, "itl")
    lone_itl_us = decode_time(1, context)
    if lone_itl_us > itl_us:
        return InstanceSeconds(inf, inf, f"one request alone has {lone_itl_us / 1e3:.0f} ms between tokens")
    lone_ttft_us = _prompt_us(deployment, prompt, config.max_num_batched_tokens, 1)
    if lone_ttft_us > 1e3 * _limit(targets, "ttft"):
        return InstanceSeconds(inf, inf, f"one prompt alone takes {lone_ttft_us / 1e3:.0f} ms")
    prompts = max(1, config.max_num_batched_tokens // prompt)
    prefill_us = _prompt_us(deployment, prompt, config.max_num_batched_tokens, prompts) / prompts
    capacity = config.total_kv_blocks * config.block_size_tokens
    most = max(1, min(config.max_num_seqs, int(capacity / context)))
    good, bad = 1, most + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if decode_time(middle, middle * context) <= itl_us else (good, middle)
    decode_us = output * decode_time(good, good * context) / good
    return InstanceSeconds(prefill_us / _US, decode_us / _US)


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


Counts: TypeAlias = tuple[int, ...]
"""Instances of each pool: of the only one, or of prefill and of decode."""

_OVERLAP = 0.5
"""Least share of the time that prompts and decodes take alone in which steps with both can be done: the larger of the
two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A deployment but for its counts of instances.

    `busy_instances` are, for each pool, the instances that the load keeps busy when every step is filled as well as
    targets and memory allow.
    """

    gpu: str
    settings: Mapping[str, Any]
    gpus_per_instance: tuple[int, ...]
    busy_instances: tuple[float, ...]
    price_per_gpu_hour: float
    label: str
    latency_model: str
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_split(self) -> bool:
        """Whether prefill and decode have separate pools."""
        return len(self.gpus_per_instance) > 1

    @property
    def shape(self) -> str:
        """The name of the shape in a report."""
        return "P/D" if self.is_split else "aggregated"

    @property
    def least_counts(self) -> Counts:
        """The fewest instances of each pool that physics allows."""
        share = 1.0 if self.is_split else _OVERLAP
        return tuple(max(1, ceil(share * each)) for each in self.busy_instances)

    def num_gpus(self, counts: Counts) -> int:
        """Return the GPUs of all instances."""
        return sum(gpus * count for gpus, count in zip(self.gpus_per_instance, counts, strict=True))

    def cost_per_hour(self, counts: Counts) -> float:
        """Return the dollars of all instances for an hour."""
        return self.num_gpus(counts) * self.price_per_gpu_hour

    def settings_with(self, counts: Counts) -> dict[str, Any]:
        """Return the settings of a simulation with so many instances."""
        found = {**self.settings, "num_instances": sum(counts)}
        if self.is_split:
            found |= {"prefill_instances": counts[0], "decode_instances": counts[1], "pd_decider": "always"}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The values that a plan tries for each setting; None is the engine's default."""

    gpus: Sequence[str]
    tps: Sequence[int]
    pps: Sequence[int]
    quantizations: Sequence[str]
    batched_tokens: Sequence[int | None]
    shapes: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Instance:
    """One instance, with settings that a pool of any shape may use."""

    settings: Mapping[str, Any]
    deployment: Deployment
    seconds: InstanceSeconds
    label: str


@dataclass(slots=True)
class Candidates:
    """The candidates of all GPU types, and by GPU type why others were left out, each reason with the first of them."""

    found: list[Candidate] = field(default_factory=list)
    refused: dict[str, dict[str, str]] = field(default_factory=dict)


def candidates_of(
    simulation: Simulation,
    settings: Mapping[str, Any],
    choices: Choices,
    prices: Prices,
    load: MeanLoad,
    targets: Targets,
) -> Candidates:
    """Return all candidates that hold the model and whose steps are fast enough for a lone request. Raises BlisError.

    `settings` are those that all candidates share. A setting that they name is not varied.
    """
    result = Candidates()
    for gpu in choices.gpus:
        price = prices.of(gpu).per_hour
        refused = result.refused.setdefault(gpu, {})
        instances = list(_instances(simulation, settings, choices, gpu, load, targets, refused))
        if "aggregated" in choices.shapes:
            result.found += [_aggregated(each, gpu, price, load) for each in instances]
        if "pd" in choices.shapes:
            result.found += _split(instances, gpu, price, load)
    return result


def _instances(
    simulation: Simulation,
    settings: Mapping[str, Any],
    choices: Choices,
    gpu: str,
    load: MeanLoad,
    targets: Targets,
    refused: dict[str, str],
) -> Iterator[_Instance]:
    for tp, pp in product(choices.tps, choices.pps):
        for own in _variants(settings, choices, {"hardware": gpu, "tp": tp, "pp": pp}):
            label = _label(own)
            try:
                deployment = resolve(simulation.options_with({**settings, **own}).cluster.deployment)
            except BlisError as error:
                refused.setdefault(str(error), label)
                continue
            if own.get("quantization") == "fp8" and not deployment.gpu.tflops_fp8:
                refused.setdefault(f"{gpu} has no FP8 arithmetic", "fp8")
                continue
            if own.get("enable_expert_parallel") and not deployment.model.is_moe:
                continue
            seconds = seconds_per_request(deployment, load, targets)
            if seconds.refusal:
                refused.setdefault(seconds.refusal, label)
                continue
            yield _Instance({**settings, **own}, deployment, seconds, label)


def _variants(settings: Mapping[str, Any], choices: Choices, placed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the settings that vary between instances of one placement; settings that the user gives do not vary."""
    experts = (False, True) if placed["tp"] > 1 and "enable_expert_parallel" not in settings else (False,)
    for quantization, tokens, parallel in product(choices.quantizations, choices.batched_tokens, experts):
        own = dict(placed)
        if quantization:
            own["quantization"] = quantization
        if tokens is not None:
            own["max_num_batched_tokens"] = tokens
        if parallel:
            own["enable_expert_parallel"] = True
        yield own


def _label(own: Mapping[str, Any]) -> str:
    parts = [f"tp {own['tp']}"]
    parts += [f"pp {own['pp']}"] if own["pp"] > 1 else []
    parts += ["ep"] if own.get("enable_expert_parallel") else []
    parts += [own["quantization"]] if own.get("quantization") else []
    tokens = own.get("max_num_batched_tokens")
    return " ".join([*parts, *([f"{tokens} tokens/step"] if tokens else [])])


def _aggregated(instance: _Instance, gpu: str, price: float, load: MeanLoad) -> Candidate:
    seconds = instance.seconds.prefill_s + instance.seconds.decode_s
    return Candidate(
        gpu=gpu,
        settings=instance.settings,
        gpus_per_instance=(instance.deployment.num_gpus,),
        busy_instances=(load.rate_per_s * seconds,),
        price_per_gpu_hour=price,
        label=instance.label,
        latency_model=instance.deployment.latency_name,
        notes=instance.deployment.notes,
    )


def _split(instances: Sequence[_Instance], gpu: str, price: float, load: MeanLoad) -> Iterator[Candidate]:
    """Return candidates with two pools, whose instances differ in their tensor parallelism alone."""
    for prefill, decode in product(instances, instances):
        if _without_tp(prefill) != _without_tp(decode):
            continue
        tp_prefill, tp_decode = prefill.settings["tp"], decode.settings["tp"]
        settings = {**decode.settings, "prefill_tp": tp_prefill, "decode_tp": tp_decode}
        yield Candidate(
            gpu=gpu,
            settings=settings,
            gpus_per_instance=(prefill.deployment.num_gpus, decode.deployment.num_gpus),
            busy_instances=(load.rate_per_s * prefill.seconds.prefill_s, load.rate_per_s * decode.seconds.decode_s),
            price_per_gpu_hour=price,
            label=decode.label if tp_prefill == tp_decode else f"prefill tp {tp_prefill}, decode {decode.label}",
            latency_model=decode.deployment.latency_name,
            notes=tuple(dict.fromkeys((*prefill.deployment.notes, *decode.deployment.notes))),
        )


def _without_tp(instance: _Instance) -> dict[str, Any]:
    return {name: value for name, value in instance.settings.items() if name != "tp"}


def with_other_settings(candidate: Candidate, label: str, **settings: Any) -> Candidate:
    """Return the candidate with further settings, which its label names."""
    return replace(candidate, settings={**candidate.settings, **settings}, label=f"{candidate.label} {label}")
