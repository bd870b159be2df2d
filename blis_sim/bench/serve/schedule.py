"""What to send when: the rates of a benchmark, and the requests of each."""

from collections.abc import Generator, Sequence
from math import inf
from random import Random

from blis_sim.bench.datasets import Sample
from blis_sim.bench.rate_search import Verdict, rates_to_try
from blis_sim.bench.serve.arrivals import Ramp, arrivals_us
from blis_sim.bench.serve.options import BenchServeOptions
from observe.requests.schedule import Planned


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
    due_us = arrivals_us(len(samples), rate, options.burstiness, options.seed, ramp)
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
    return Random(f"{options.seed}/models").choices(modules, k=count)
