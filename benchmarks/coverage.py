"""Which figures of a recording lie within the intervals of a prediction."""

import numpy as np
import numpy.typing as npt

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.latency.coefficients_file import LearnedCoefficients
from blis_sim.engine.latency.fitted import Fitted
from calibrate.fit.coefficients_file import correlation_of
from calibrate.fit.estimate import Estimate
from calibrate.fit.recording import Recording
from calibrate.fit.terms import Deployed
from replay.output.intervals import drawn_latencies, intervals_of
from replay.simulation.uncertainty import uncertainty_of

Floats = npt.NDArray[np.float64]
PERCENTILES = (50, 90, 99)


def figures_inside(
    recording: Recording, deployed: Deployed, estimate: Estimate, config: EngineConfig, num_draws: int
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
    uncertainty = uncertainty_of("estimate", {"spread": spread, "correlation": correlation_of(estimate)})

    def drawn(generator: np.random.Generator) -> Fitted:
        one = uncertainty.drawn(learned, generator)
        return Fitted(deployed.model, deployed.gpu, deployed.tp, one.step, one.request, deployed.growth_requests)

    known = np.isfinite(recording.ttft_us) & np.isfinite(recording.decode_us)
    tokens = np.array([arrival.request.output_tokens for arrival in recording.arrivals], np.float64)[known]
    runs = []
    for each in drawn_latencies(drawn, num_draws, 0):
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
