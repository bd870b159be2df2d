"""Counts the figures of recordings that lie within the intervals of a prediction.

    python -m workshop.coverage [--kinds N] [--recordings N] [--requests N] [--draws N] [--seed N]

Each kind of server has coefficients of its own, drawn from what `blis fit` expects of an unknown server. Recordings are
simulated on servers of that kind, which differ in the speed of all steps and of arithmetic by the usual spreads.
Coefficients are learned from all recordings of a kind but one, drawn by chance, and predict that one with 90 %
intervals. The command prints how many of the mean, p50, p90 and p99 of TTFT, E2E and ITL lie inside, and their share.

`python -m workshop.left_out --intervals` measures the same for recordings of real servers.
"""

import argparse
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.coefficients_file import LearnedCoefficients
from blis_sim.engine.latency.fitted import Fitted
from blis_sim.engine.latency.wrapped import PhaseShifted, SlowedLatency
from blis_sim.engine.request import Request, UniqueBlocks
from calibrate.fit.coefficients_file import correlation_of, servers_of
from calibrate.fit.estimate import Estimate
from calibrate.fit.learn import Budget, learn
from calibrate.fit.recording import Recording
from calibrate.fit.terms import COMPUTE_TERMS, EXPECTED_COMPUTE, TERMS, FittedDeployment
from replay.arrivals import Arrival
from replay.output.ensemble import intervals_of, sampled_latency_models
from replay.simulation.simulate import simulate
from replay.simulation.uncertainty import ARITHMETIC, LatencySampler, ServerSpread, uncertainty_of
from traces import TraceRow

Floats = npt.NDArray[np.float64]
PERCENTILES = (50, 90, 99)
RATES = (2.0, 6.0)
"""Requests per second of the quietest and of the busiest recording of a kind of server."""
CONFIG = EngineConfig(18_000, max_num_batched_tokens=8192, max_num_seqs=256, engine="vllm")


@dataclass(frozen=True, slots=True)
class Size:
    """Recordings of a kind of server, the predicted one included, requests in each, and draws of an interval."""

    num_recordings: int
    num_requests: int
    num_draws: int


def main() -> int:
    """Print the share of figures inside their intervals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=int, default=16)
    parser.add_argument("--recordings", type=int, default=5)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--draws", type=int, default=19)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    size = Size(arguments.recordings, arguments.requests, arguments.draws)
    deployed = FittedDeployment(load_model("qwen3-14b"), load_gpu("H100"), 1)
    inside = []
    for number in range(arguments.kinds):
        inside += simulated_inside(deployed, size, np.random.default_rng([arguments.seed, number]))
        sys.stdout.write(f"{sum(inside)} of {len(inside)} figures inside their 90 % intervals\n")
        sys.stdout.flush()
    sys.stdout.write(f"{np.mean(inside):.1%} of {len(inside)} figures inside their 90 % intervals\n")
    return 0


def simulated_inside(deployed: FittedDeployment, size: Size, generator: np.random.Generator) -> list[bool]:
    """Return which figures of a simulated server lie within the intervals learned from others of its kind."""
    kind, usual = drawn_kind(generator), ServerSpread()
    recordings = []
    for number, rate in enumerate(np.linspace(*RATES, size.num_recordings)):
        values, speed = drawn_server(kind, usual, generator)
        latency = PhaseShifted(SlowedLatency(deployed.latency(values), speed), 1_000 + number)
        arrivals = _arrivals(size.num_requests, rate, generator)
        record = simulate(Engine(CONFIG, latency, reports_steps=False), arrivals).requests
        ttft_us, e2e_us = record.ttft_us.astype(np.float64), record.e2e_us.astype(np.float64)
        recordings.append(Recording(name=str(number), arrivals=arrivals, ttft_us=ttft_us, decode_us=e2e_us - ttft_us))
    predicted = recordings.pop(int(generator.integers(len(recordings))))
    per_round = sum(len(each.arrivals) for each in recordings)
    learned = learn(recordings, deployed, CONFIG, budget=Budget(per_round, per_round, 3 * per_round))
    return figures_inside(predicted, deployed, learned.estimate, CONFIG, size.num_draws)


def drawn_kind(generator: np.random.Generator) -> Floats:
    """Return coefficients of a kind of server, as expected of an unknown one."""
    values = TERMS.expected_values() + TERMS.expected_spreads() * generator.standard_normal(len(TERMS.names))
    values = np.maximum(values, np.maximum(TERMS.least_values(), TERMS.expected_values() / 10))
    compute = [TERMS.place(name) for name in COMPUTE_TERMS]
    values[compute] *= generator.normal(EXPECTED_COMPUTE.mean, EXPECTED_COMPUTE.spread) / values[compute].sum()
    return values


def drawn_server(kind: Floats, spread: ServerSpread, generator: np.random.Generator) -> tuple[Floats, float]:
    """Return the coefficients of a server of a kind, and the factor of the time of all of its steps."""
    values = kind.copy()
    values[[TERMS.place(name) for name in ARITHMETIC]] *= 1 + spread.arithmetic * generator.standard_normal()
    return values, 1 + spread.speed * float(generator.standard_normal())


def _arrivals(num_requests: int, rate: float, generator: np.random.Generator) -> list[Arrival]:
    """Poisson arrivals of prompts of a few hundred to a few thousand tokens."""
    instants = np.cumsum(generator.exponential(1e6 / rate, num_requests)).astype(int).tolist()
    inputs = np.clip(generator.lognormal(6.5, 0.6, num_requests), 50, 4000).astype(int).tolist()
    outputs = generator.integers(10, 200, num_requests).tolist()
    return [
        Arrival(at, Request(f"r{n}", tokens, output, UniqueBlocks(f"r{n}"), output), _row(n, at, tokens, output))
        for n, (at, tokens, output) in enumerate(zip(instants, inputs, outputs, strict=True))
    ]


def _row(number: int, at_us: int, prompt: int, output: int) -> TraceRow:
    return TraceRow(request_id=number, input_tokens=prompt, output_tokens=output, arrival_time_us=at_us)


def figures_inside(
    recording: Recording, deployed: FittedDeployment, estimate: Estimate, config: EngineConfig, num_draws: int
) -> list[bool]:
    """Return for mean, p50, p90 and p99 of TTFT, E2E and ITL whether the recording's lies within its interval."""
    latency = deployed.latency(estimate.values)
    learned = LearnedCoefficients(
        model=deployed.model.name,
        hardware=deployed.gpu.name,
        tp=deployed.tp,
        step=latency.step,
        request=latency.request,
        growth_requests=deployed.growth_requests,
        seen={},
        seen_prompts=None,
    )
    spread = {name: float(estimate.spreads[deployed.terms.place(name)]) for name in deployed.learnable()}
    content = {"spread": spread, "correlation": correlation_of(estimate), **servers_of(estimate)}
    uncertainty = uncertainty_of("estimate", content)

    def drawn(generator: np.random.Generator) -> Fitted:
        one = uncertainty.drawn(learned, generator)
        return Fitted(deployed.model, deployed.gpu, deployed.tp, one.step, one.request, deployed.growth_requests)

    known = np.isfinite(recording.ttft_us) & np.isfinite(recording.decode_us)
    tokens = np.array([arrival.request.output_tokens for arrival in recording.arrivals], np.float64)[known]
    runs = []
    for each in sampled_latency_models(LatencySampler(drawn, uncertainty.servers), num_draws, 0):
        record = recording.simulated(Engine(config, each, reports_steps=False))
        place_of = {request_id: place for place, request_id in enumerate(record.ids)}
        places = [place_of[arrival.request.id] for arrival in recording.arrivals]
        ttft_us, e2e_us = record.ttft_us[places][known], record.e2e_us[places][known]
        runs.append(_figures(ttft_us.astype(np.float64), (e2e_us - ttft_us).astype(np.float64), tokens))
    real = _figures(recording.ttft_us[known], recording.decode_us[known], tokens)
    return [bool(low <= real[name] <= high) for name, (low, high) in intervals_of(runs).items()]


def _figures(ttft_us: Floats, decode_us: Floats, output_tokens: Floats) -> dict[str, float]:
    metrics = {"TTFT": ttft_us, "E2E": ttft_us + decode_us, "ITL": decode_us / np.maximum(output_tokens - 1, 1)}
    return {
        f"{metric} {name}": value
        for metric, values in metrics.items()
        for name, value in zip(("mean", *PERCENTILES), _mean_and_percentiles(values), strict=True)
    }


def _mean_and_percentiles(values: Floats) -> list[float]:
    return [float(values.mean()), *np.percentile(values, PERCENTILES).tolist()]


if __name__ == "__main__":
    sys.exit(main())
