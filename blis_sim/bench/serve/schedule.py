"""What to send when: the rates of a benchmark, and the requests of each."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

import numpy as np

from blis_sim.bench.datasets import Sample
from blis_sim.bench.rate_search import Verdict, rates_to_try
from blis_sim.bench.serve.options import BenchServeOptions
from observe.requests.schedule import Planned


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that rises from the first request to the last, in requests per second."""

    strategy: str
    start_rps: float
    end_rps: float

    def rate(self, place: int, count: int) -> float:
        """The rate at one of `count` requests."""
        progress = place / max(count - 1, 1)
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return float(self.start_rps * (self.end_rps / self.start_rps) ** progress)


def arrivals_us(count: int, rate: float, burstiness: float, seed: int, ramp: Ramp | None = None) -> list[int]:
    """Instants from the start of the run, ascending, in microseconds; all 0 at an unlimited rate.

    Gaps are gamma distributed with shape `burstiness`, all equal where that is infinite. Without a ramp they are
    stretched so that the last request is due after exactly `count / rate` seconds.
    """
    if ramp is None and rate == inf:
        return [0] * count
    rates = np.array([rate if ramp is None else ramp.rate(place, count) for place in range(count)])
    means_s = 1 / np.maximum(rates, 1e-9)
    if ramp is not None and ramp.start_rps == 0:
        means_s[0] = 0.0  # a ramp from nothing would never begin
    if burstiness == inf:
        gaps_s = means_s
    else:
        gaps_s = np.random.default_rng([seed, 1]).gamma(burstiness, 1 / burstiness, count) * means_s
    instants_s = np.cumsum(gaps_s)
    if ramp is None and instants_s[-1] > 0:
        instants_s *= count / rate / instants_s[-1]
    return [round(float(at_s) * 1e6) for at_s in instants_s]


def rates_of(options: BenchServeOptions) -> Generator[float, Verdict, None]:
    """The rates to run, each after the verdict on the one before."""
    if not options.find_rate:
        for each in options.rates:
            _ = yield each  # whatever came of the one before
        return
    search = rates_to_try(options.tolerance)
    rate = next(search)
    while True:
        verdict = yield inf if rate is None else rate
        try:
            rate = search.send(verdict)
        except StopIteration:
            return


def plan_at(options: BenchServeOptions, samples: Sequence[Sample], rate: float) -> list[Planned]:
    """When to send what at this rate."""
    ramp = None
    if options.ramp_up_strategy is not None:
        assert options.ramp_up_start_rps is not None
        assert options.ramp_up_end_rps is not None
        ramp = Ramp(options.ramp_up_strategy, options.ramp_up_start_rps, options.ramp_up_end_rps)
    due_us = arrivals_us(len(samples), rate, options.burstiness, options.dataset.seed, ramp)
    models = _models(options, len(samples))
    return [
        Planned(
            at_us=at_us,
            input_tokens=sample.input_tokens,
            output_tokens=sample.output_tokens,
            prompt=sample.text,
            prefix_group=sample.prefix_group,
            prefix_tokens=sample.prefix_tokens,
            model=model,
        )
        for at_us, sample, model in zip(due_us, samples, models, strict=True)
    ]


def _models(options: BenchServeOptions, count: int) -> list[str]:
    """The model of each request where they differ, else nothing."""
    modules = options.lora_modules
    if not modules:
        return [""] * count
    if options.lora_assignment == "round-robin":
        return [modules[place % len(modules)] for place in range(count)]
    return Random(f"{options.dataset.seed}/models").choices(modules, k=count)
