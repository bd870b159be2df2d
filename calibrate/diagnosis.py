"""Describes the errors of a prediction in words, and names the coefficients to check."""

from collections.abc import Mapping

import numpy as np

from calibrate.calibration import Calibration, Values
from calibrate.compare import Comparison
from calibrate.network import Floats
from traces.client_cap import ClientCap

NAMES = {"ttft": "TTFT", "e2e": "E2E", "itl": "ITL"}
SMALL_BIAS = 0.02
"""Mean errors within this fraction are not worth a coefficient."""
MIN_TREND_R = 0.2
"""Correlation of an error with a cause from which on the cause is named."""


def in_words(found: Calibration, noise_floor: Mapping[str, Comparison] | None = None) -> list[str]:
    """One sentence or more per metric, the hint at coefficients, and how much of the error is chance."""
    summary = _difference if found.is_recording else _summary
    sentences = [summary(name, found.metrics[name]) for name in NAMES if name in found.metrics]
    if found.ignored_cap is not None:
        sentences.append(f"{ignored_cap(found.ignored_cap)}.")
    elif not found.is_recording:
        sentences.extend(_hints(found))
    if noise_floor:
        sentences.extend(_against_noise(found, noise_floor))
    return sentences


def ignored_cap(cap: ClientCap) -> str:
    """Return why a simulation that sent at the recorded times means little here, and how to make one that does not."""
    return (
        f"{cap}; the simulation sent at those times, one of blis replay --reissue --max-concurrency "
        f"{cap.max_concurrency} sends as that client did"
    )


def _difference(name: str, comparison: Comparison) -> str:
    much = comparison.sim.mean / comparison.real.mean - 1 if comparison.real.mean else 0.0
    side = "slower" if much > 0 else "faster"
    bias = f"it is {abs(much):.1%} {side} on average" if abs(much) >= 0.001 else "it is as fast on average"
    return f"The second recording has {NAMES[name]} within {comparison.mape:.1%} per request, and {bias}."


def _summary(name: str, comparison: Comparison) -> str:
    error = comparison.sim.mean / comparison.real.mean - 1 if comparison.real.mean else 0.0
    side = "too slow" if error > 0 else "too fast"
    bias = f"on average {abs(error):.1%} {side}" if abs(error) >= 0.001 else "unbiased on average"
    return f"{NAMES[name]} is predicted within {comparison.mape:.1%} per request and {bias}."


def _hints(found: Calibration) -> list[str]:
    hints = []
    pace = "itl" if "itl" in found.values else "e2e"
    pace_bias = _bias(found.values[pace])
    if abs(pace_bias) >= SMALL_BIAS:
        hints.append(_pace_hint(found.values[pace], pace_bias, NAMES[pace]))
    ttft_bias = _bias(found.values["ttft"])
    if abs(ttft_bias) >= SMALL_BIAS:
        hints.append(_ttft_hint(found.values["ttft"], ttft_bias))
    return hints or ["No systematic error is large enough to blame a coefficient."]


def _pace_hint(values: Values, bias: float, name: str) -> str:
    errors_us = values.sim_us - values.real_us
    much = "much" if bias > 0 else "little"
    if _correlation(errors_us, in_flight(values)) * np.sign(bias) > MIN_TREND_R:
        return (
            f"The error of {name} grows with the number of requests in flight: each decoding request, or its KV cache, "
            f"costs too {much} (coefficients request_us, decodes, kv), or prompts that interrupt it do (tokens, tiles)."
        )
    return (
        f"The error of {name} is about the same under any load: every step costs too {much} (coefficients weights and "
        "layer_us)."
    )


def _ttft_hint(values: Values, bias: float) -> str:
    errors_us = values.sim_us - values.real_us
    much = "much" if bias > 0 else "little"
    inputs = np.array([row.server_input_tokens or row.input_tokens for row in values.rows], np.float64)
    if _correlation(errors_us, inputs) * np.sign(bias) > MIN_TREND_R:
        return (
            f"The error of TTFT grows with the prompt: computing prompts costs too {much} (coefficients tokens, tiles "
            "and attention, and arrival_token_us outside of the engine)."
        )
    if _correlation(errors_us, in_flight(values)) * np.sign(bias) > MIN_TREND_R:
        return (
            f"The error of TTFT grows with the number of requests in flight: waiting costs too {much}. Look at the "
            "scheduling settings, at whether the client had a cap (--reissue), and at output_request_us."
        )
    return (
        f"The error of TTFT is about the same for all requests: what passes outside of steps is too {much} "
        "(coefficients arrival_us and output_us)."
    )


def _against_noise(found: Calibration, noise_floor: Mapping[str, Comparison]) -> list[str]:
    sentences = []
    for name, floor in noise_floor.items():
        if name not in found.metrics:
            continue
        mape = found.metrics[name].mape
        if mape <= floor.mape * 1.1:
            verdict = "no more than"
        else:
            verdict = f"{mape / floor.mape:.1f} times" if floor.mape else "more than"
        sentences.append(
            f"A second run of the real server predicts {NAMES[name]} within {floor.mape:.1%}; "
            f"the simulation's error is {verdict} that."
        )
    return sentences


def _bias(values: Values) -> float:
    real = float(values.real_us.mean())
    return float(values.sim_us.mean()) / real - 1 if real else 0.0


def in_flight(values: Values) -> Floats:
    """How many of the recorded requests were in flight when each was sent, itself included."""
    sent = np.array([row.send_time_us for row in values.rows], np.float64)
    ended = np.array([row.last_chunk_time_us for row in values.rows], np.float64)
    started_before = np.searchsorted(np.sort(sent), sent, side="right")
    ended_before = np.searchsorted(np.sort(ended), sent, side="right")
    counts: Floats = (started_before - ended_before).astype(np.float64)
    return counts


def _correlation(one: Floats, other: Floats) -> float:
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
