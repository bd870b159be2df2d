"""One calibration without files: from a trace and the results of its simulation to grades and words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrate.compare import Comparison, compare, compare_compat, mape
from calibrate.goodput import Goodput, goodput, goodput_compat, recorded_duration_s
from calibrate.itl import Itl, itl, itl_compat
from calibrate.metrics_file import HitRate
from calibrate.pair import CalibrateError, Floats, Latencies, Network, Pairing, latencies, pair, pair_compat
from traces import ResultRow, SloTargets, Trace, TraceRow
from traces.client_cap import ClientCap, client_cap_of


@dataclass(frozen=True, slots=True)
class Throughput:
    """One side: how long it took, and rates over that time."""

    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float


def real_throughput(pairing: Pairing) -> Throughput:
    """From the first sending to the last chunk."""
    return _throughput(recorded_duration_s(pairing), len(pairing.rows), sum(row.output_tokens for row in pairing.rows))


def sim_throughput(pairing: Pairing, times: Latencies) -> Throughput:
    """From the first sending to the last simulated end."""
    sent_us = sim_sent_us(pairing)
    ended_us = (sent_us - sent_us.min()) + times.sim_e2e_us
    output_tokens = sum(result.output_tokens for result in pairing.results)
    return _throughput(float(ended_us.max()) / 1e6, len(pairing.results), output_tokens)


def sim_sent_us(pairing: Pairing) -> Floats:
    """Return when each request was sent in the simulation, on its own clock; if any result lacks that, when they really
    were."""
    simulated = [result.sent_at_us for result in pairing.results]
    recorded = [row.send_time_us for row in pairing.rows]
    return np.array(recorded if None in simulated else simulated, dtype=np.float64)


def _throughput(duration_s: float, num_requests: int, output_tokens: int) -> Throughput:
    if duration_s <= 0:
        return Throughput(0.0, 0.0, 0.0)
    return Throughput(duration_s, num_requests / duration_s, output_tokens / duration_s)


Chunks = Mapping[int, Sequence[int]]
SAME_US = 1000.0
"""A simulation that sends each request this close to when the recording did has taken its send times."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The figures to compare, and how they are graded."""

    pair: Callable[[Trace, Sequence[ResultRow], int], Pairing]
    itl: Callable[[Pairing, Chunks], Itl]
    compare: Callable[..., Comparison]
    goodput: Callable[[Pairing, Latencies, Itl, Mapping[str, SloTargets]], Goodput]


PLAIN = Rules(pair, itl, compare, goodput)
COMPAT = Rules(pair_compat, itl_compat, compare_compat, goodput_compat)


@dataclass(frozen=True, slots=True)
class Group:
    """Prediction errors of the requests of one class or model, as fractions."""

    count: int
    ttft_mape: float
    e2e_mape: float


@dataclass(frozen=True, slots=True)
class Values:
    """One metric of every request that has it on both sides, in microseconds, with the rows of the recording."""

    real_us: Floats
    sim_us: Floats
    rows: list[TraceRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Results of a calibration. `metrics` has the keys ttft, e2e and, with token times, itl; `values` has
    what they were computed from."""

    pairing: Pairing
    network: Network
    metrics: dict[str, Comparison]
    values: dict[str, Values]
    num_itl_dropped: int
    num_without_token_times: int
    real_throughput: Throughput
    sim_throughput: Throughput
    by_slo_class: dict[str, Group]
    by_model: dict[str, Group]
    by_tenant: dict[str, Group]
    goodput: Goodput | None
    hit_rate: HitRate | None
    ttft_threshold: float
    is_recording: bool
    """Whether the other side is a second recording, of which no coefficient is to blame."""
    ignored_cap: ClientCap | None
    """The cap that the client of the recording had, if the simulation nevertheless sent when that client did."""

    @property
    def other(self) -> str:
        """Name of the other side."""
        return "second" if self.is_recording else "simulated"

    @property
    def ttft_within(self) -> bool:
        """Whether the MAPE of TTFT is within its threshold."""
        return self.metrics["ttft"].mape <= self.ttft_threshold


def calibrate(
    trace: Trace,
    results: Sequence[ResultRow],
    chunks: Chunks,
    rules: Rules,
    *,
    warm_up_requests: int,
    network: Network,
    targets: Mapping[str, SloTargets],
    hit_rate: HitRate | None,
    ttft_threshold: float,
    is_recording: bool = False,
) -> Calibration:
    """Compare a recording with its simulation, or with results that are a second recording's.

    Raises CalibrateError when no pair can be compared.
    """
    pairing = rules.pair(trace, results, warm_up_requests)
    _check_pairs(trace, pairing)
    times = latencies(pairing, network)
    itls = rules.itl(pairing, chunks)
    comparable = np.array(pairing.comparable, dtype=np.bool_)
    values = {
        "ttft": _values(pairing, comparable, times.real_ttft_us, times.sim_ttft_us),
        "e2e": _values(pairing, comparable, times.real_e2e_us, times.sim_e2e_us),
    }
    both = itls.both()
    if both.any():
        values["itl"] = _values(pairing, both, itls.real_us, itls.sim_us)
    return Calibration(
        pairing=pairing,
        network=network,
        metrics={name: rules.compare(each.real_us, each.sim_us) for name, each in values.items()},
        values=values,
        num_itl_dropped=itls.num_without_gaps,
        num_without_token_times=sum(row.request_id not in chunks for row in pairing.rows),
        real_throughput=real_throughput(pairing),
        sim_throughput=sim_throughput(pairing, times),
        by_slo_class=_groups([row.slo_class for row in pairing.rows], comparable, times),
        by_model=_groups([row.model for row in pairing.rows], comparable, times),
        by_tenant=_groups([row.tenant_id for row in pairing.rows], comparable, times),
        goodput=rules.goodput(pairing, times, itls, targets) if targets else None,
        hit_rate=hit_rate,
        ttft_threshold=ttft_threshold,
        is_recording=is_recording,
        ignored_cap=None if is_recording or not _sent_as_recorded(pairing) else client_cap_of(trace.rows),
    )


def _sent_as_recorded(pairing: Pairing) -> bool:
    recorded = np.array([row.send_time_us for row in pairing.rows], np.float64)
    return bool(np.ptp(sim_sent_us(pairing) - recorded) <= SAME_US)


def _values(pairing: Pairing, which: npt.NDArray[np.bool_], real_us: Floats, sim_us: Floats) -> Values:
    rows = [row for row, is_one in zip(pairing.rows, which, strict=True) if is_one]
    return Values(real_us[which], sim_us[which], rows)


def _check_pairs(trace: Trace, pairing: Pairing) -> None:
    if not trace.rows:
        raise CalibrateError(f"{trace.data_path} has no rows, so there is nothing to compare")
    if any(pairing.comparable):
        return
    # Pairs without anything to compare exist under the compat rules only; they count as unmatched, too.
    fates = {
        "are warm-up": pairing.num_warm_up,
        "failed": pairing.num_failed,
        "repeat an earlier request_id": pairing.num_repeated,
        "have no usable times": pairing.num_without_times + pairing.num_matched,
        "have a request_id the results lack": pairing.num_unmatched_rows - pairing.num_matched,
    }
    counts = ", ".join(f"{count} {fate}" for fate, count in fates.items() if count > 0)
    raise CalibrateError(f"no row of {trace.data_path} can be compared: of {len(trace.rows)}, {counts}")


def _groups(names: list[str], comparable: np.ndarray, times: Latencies) -> dict[str, Group]:
    groups = {}
    for name in sorted({name for name in names if name}):
        members = comparable & np.array([each == name for each in names], dtype=np.bool_)
        if members.any():
            groups[name] = Group(
                count=int(members.sum()),
                ttft_mape=mape(times.real_ttft_us[members], times.sim_ttft_us[members]),
                e2e_mape=mape(times.real_e2e_us[members], times.sim_e2e_us[members]),
            )
    return groups


NAMES = {"ttft": "TTFT", "e2e": "E2E", "itl": "ITL"}
SMALL_BIAS = 0.02
"""Mean errors within this fraction are not worth a coefficient."""
MIN_TREND_R = 0.2
"""Correlation of an error with a cause from which on the cause is named."""


def summary_sentences(found: Calibration, noise_floor: Mapping[str, Comparison] | None = None) -> list[str]:
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
    """Return the number of requests in flight when each recorded request was sent, itself included."""
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
