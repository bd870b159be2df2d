"""Readings of a simulated server: its metrics page at each scrape."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from blis_sim.bench.drift import (
    CACHE,
    E2E,
    HISTOGRAMS,
    ITL,
    OUTPUTS,
    PROMPTS,
    RUNNING,
    SUCCESS,
    TTFT,
    WAITING,
    Histogram,
    Reading,
    Sample,
)
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.latency.wrapped import PhaseShifted, SlowedLatency
from blis_sim.engine.request import Request, UniqueBlocks
from replay.arrivals import Arrival
from replay.simulation.simulate import simulate
from traces import TraceRow

BOUNDS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, float("inf"))
BEGINS_AT_S = 1_700_000_000.0


def readings_of(
    deployment: Deployment, *, rate: float, seconds: int, every_s: float, factor: float = 1.0, seed: int = 3
) -> list[Reading]:
    """Return the readings of a server whose steps take `factor` times as long as those of the deployment."""
    generator = np.random.default_rng(seed)
    count = int(generator.poisson(rate * seconds))
    at_s = np.sort(generator.uniform(0, seconds, count))
    prompts, outputs = generator.integers(100, 900, count), generator.integers(4, 60, count)
    arrivals = [
        _arrival(number, int(at * 1e6), int(prompt), int(output))
        for number, (at, prompt, output) in enumerate(zip(at_s, prompts, outputs, strict=True))
    ]
    latency = PhaseShifted(SlowedLatency(deployment.latency, factor), seed)
    record = simulate(Engine(deployment.config, latency, reports_steps=False), arrivals).requests
    first_at, last_at = record.arrived_at + record.ttft_us, record.arrived_at + record.e2e_us
    found = []
    for at in np.arange(0, seconds + every_s / 2, every_s):
        has_first, has_last = first_at <= at * 1e6, last_at <= at * 1e6
        histograms = {name: Histogram() for name in HISTOGRAMS}
        for name, observed in (
            (TTFT, record.ttft_us[has_first] / 1e6),
            (E2E, record.e2e_us[has_last] / 1e6),
            (PROMPTS, record.input_tokens[has_last].astype(float)),
            (OUTPUTS, record.output_tokens[has_last].astype(float)),
        ):
            histograms[name] = _histogram(observed)
        gaps = float((record.output_tokens[has_last] - 1).sum())
        histograms[ITL] = Histogram(float((record.e2e_us - record.ttft_us)[has_last].sum() / 1e6), gaps)
        in_flight = int(((record.arrived_at <= at * 1e6) & ~has_last).sum())
        values = defaultdict(float, {SUCCESS: float(has_last.sum()), RUNNING: float(in_flight), WAITING: 0.0})
        found.append(Reading(BEGINS_AT_S + float(at), values, histograms))
    return found


def samples_of(reading: Reading) -> Iterator[Sample]:
    """Yield the samples of which a reading is made."""
    labels = {"model_name": "qwen/qwen3-14b", "engine": "0"}
    yield CACHE, {"engine": "0", "cache_dtype": "auto"}, 1.0  # as in vLLM, this one does not name the model
    for name, value in reading.values.items():
        yield name, labels, value
    for name, histogram in reading.histograms.items():
        yield f"{name}_sum", labels, histogram.total
        yield f"{name}_count", labels, histogram.count
        for bound, count in histogram.buckets.items():
            yield f"{name}_bucket", {**labels, "le": str(bound)}, count


def prometheus_reply(readings: Sequence[Reading], instances: Sequence[str] = ("a:8000",)) -> dict[str, object]:
    """Return how Prometheus answers a query for a range of these readings."""
    series: dict[tuple[tuple[str, str], ...], list[list[object]]] = defaultdict(list)
    for reading in readings:
        for name, labels, value in samples_of(reading):
            for instance in instances:
                metric = {"__name__": name, **labels, "instance": instance, "job": "vllm"}
                series[tuple(metric.items())].append([reading.at_s, str(value)])
    result = [{"metric": dict(metric), "values": values} for metric, values in series.items()]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def _histogram(values: npt.NDArray[np.float64]) -> Histogram:
    return Histogram(float(values.sum()), float(len(values)), {each: float((values <= each).sum()) for each in BOUNDS})


def _arrival(number: int, at_us: int, prompt: int, output: int) -> Arrival:
    name = f"r{number}"
    request = Request(name, prompt, output, UniqueBlocks(name), max_output_tokens=output)
    row = TraceRow(request_id=number, input_tokens=prompt, output_tokens=output, arrival_time_us=at_us)
    return Arrival(at_us, request, row)
