"""Vidur's synthetic workloads: the same seed gives the requests that Vidur generates, number by number.

Its Poisson gaps and uniform lengths take turns with one generator of Python's `random`. Its gamma gaps are numpy's, and
zipf and trace lengths have generators of their own. Facts: vidur/request_generator.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice, pairwise, repeat, takewhile
from pathlib import Path
from random import Random
from typing import TypeAlias

import numpy as np

from blis_sim.options.option import LATEST_US
from traces.table import Column, read_table
from traces.text_file import TraceError
from traces.workload.request import WorkloadRequest
from traces.workload.sources import check_count
from traces.workload.spec import VIDUR_QPS, Vidur, VidurInterval, VidurLength

Length: TypeAlias = tuple[int, int]
"""Tokens of a prompt and of its output."""

LONGEST_POISSON_GAP = 3.0
"""In mean gaps; longer ones are cut, which makes the rate 5 % higher than asked."""
_LENGTHS = (
    Column("num_prefill_tokens", float, required=True, at_least=0),
    Column("num_decode_tokens", float, required=True, at_least=0),
)
_ARRIVALS = (Column("arrival_time", str, required=True),)


def vidur_requests(section: Vidur, seed: int, num_requests: int, horizon_us: int) -> list[WorkloadRequest]:
    """The first `num_requests`, or all up to the horizon, or all that a trace gives; 0 limits nothing.

    Raises TraceError for a workload without end, or a file that cannot be used.
    """
    if not num_requests and not horizon_us and "trace" not in (section.interval.type, section.length.type):
        raise TraceError("the workload never ends: expected num_requests or horizon to bound it, got neither")
    if section.interval.type == "static" and not num_requests and section.length.type != "trace":
        raise TraceError("static intervals are 0, so the workload never ends: expected num_requests, got none")
    if not num_requests and section.length.type != "trace" and section.interval.type != "trace":
        check_count(horizon_us / 1e6 * (section.interval.qps or VIDUR_QPS[section.interval.type]))
    requests = _requests(arrivals_s(section, Random(seed), seed))
    if horizon_us:
        requests = takewhile(lambda request: request.arrival_us <= horizon_us, requests)
    return list(islice(requests, num_requests or None))


def arrivals_s(
    section: Vidur, shared: Random, seed: int, longest_poisson_gap: float = LONGEST_POISSON_GAP
) -> Iterator[tuple[float, Length]]:
    """Instants in seconds and lengths of requests. Some kinds draw from `shared`, others from what `seed` gives.

    Longer gaps of Poisson arrivals than `longest_poisson_gap`, in mean gaps, are cut.
    """
    now_s = 0.0
    for gap_s, length in zip(
        _gaps_s(section.interval, shared, seed, longest_poisson_gap),
        _lengths(section.length, shared, seed),
        strict=False,
    ):
        now_s += gap_s
        yield now_s, length


def _requests(pairs: Iterator[tuple[float, Length]]) -> Iterator[WorkloadRequest]:
    for now_s, (prefill, decode) in pairs:
        if now_s * 1e6 > LATEST_US:
            raise TraceError(f"the workload has requests later than {LATEST_US:.2g} us: give it fewer or a higher qps")
        yield WorkloadRequest(
            arrival_us=round(now_s * 1e6),
            client_id="vidur",
            input_tokens=prefill,
            output_tokens=decode,
            streaming=True,
        )


def _gaps_s(interval: VidurInterval, shared: Random, seed: int, longest_poisson_gap: float) -> Iterator[float]:
    """Gaps in seconds, the first one before the first request."""
    if interval.type == "poisson":
        return _poisson(interval.qps or VIDUR_QPS["poisson"], shared, longest_poisson_gap)
    if interval.type == "gamma":
        shape = 1 / (interval.cv or 0.5) ** 2
        draws = np.random.RandomState(seed % 2**32)
        scale = 1 / ((interval.qps or VIDUR_QPS["gamma"]) * shape)
        return (float(draws.standard_gamma(shape) * scale) for _ in repeat(None))
    if interval.type == "static":
        return repeat(0.0)
    return iter(_recorded_gaps_s(interval))


def _poisson(qps: float, shared: Random, longest_gap: float) -> Iterator[float]:
    while True:
        yield min(-math.log(1.0 - shared.random()) / qps, longest_gap / qps)


def _recorded_gaps_s(interval: VidurInterval) -> Sequence[float]:
    """Between the arrivals of a file, in whole seconds since its first one, scaled."""
    path = Path(interval.trace_file or "")
    start, end = (_time(name, given) for name, given in (("start", interval.start_time), ("end", interval.end_time)))
    times = [_time(str(path), text) for text in read_table(path, _ARRIVALS).columns["arrival_time"]]
    inside = [at for at in times if at and (start is None or at > start) and (end is None or at < end)]
    if not inside:
        raise TraceError(f"{path}: expected arrivals between start_time and end_time, got none")
    first = min(inside)
    seconds = [(at - first).total_seconds() // 1 * (interval.time_scale_factor or 1.0) for at in inside]
    return [later - earlier for earlier, later in pairwise(seconds)]


def _time(where: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise TraceError(f"{where}: expected a time like 1970-01-04 12:00:00, got {text!r}") from None


def _lengths(length: VidurLength, shared: Random, seed: int) -> Iterator[Length]:
    if length.type == "fixed":
        return repeat((length.prefill_tokens or 2048, length.decode_tokens or 512))
    if length.type == "trace":
        return iter(_recorded_lengths(length, seed))
    if length.type == "uniform":
        return _uniform(length, shared)
    return _zipf(length, seed)


def _uniform(length: VidurLength, shared: Random) -> Iterator[Length]:
    parts = 1 + (length.prefill_to_decode_ratio or 20.0)
    while True:
        total = shared.uniform(length.min_tokens or 1024, length.max_tokens or 4096)
        decode = math.ceil(total / parts)
        yield int(total - decode), decode


def _zipf(length: VidurLength, seed: int) -> Iterator[Length]:
    parts = 1 + (length.prefill_to_decode_ratio or 20.0)
    least, theta = length.min_tokens or 1024, length.theta or 0.6
    count = (length.max_tokens or 4096) - least + 1
    # The sum is one term short, as in Vidur.
    zeta = math.fsum(place**-theta for place in range(1, count))
    alpha = 1 / (1 - theta)
    eta = (1 - (2 / count) ** (1 - theta)) / (1 - 1.0 / (zeta + 1e-8))
    draws = np.random.RandomState(seed % 2**32)
    while True:
        drawn = float(draws.rand())
        if drawn * zeta < 1:
            total = least
        elif drawn * zeta < 1 + 0.5**theta:
            total = least + 1
        else:
            total = least + int(count * (eta * drawn - eta + 1) ** alpha)
        decode = total / parts
        yield int(total - decode), int(decode)


def _recorded_lengths(length: VidurLength, seed: int) -> list[Length]:
    """The lengths of a file in a random order; of longer ones than `max_tokens` both parts lose their share."""
    path, most = Path(length.trace_file or ""), length.max_tokens or 4096
    columns = read_table(path, _LENGTHS).columns
    prefill = (np.array(columns["num_prefill_tokens"]) * (length.prefill_scale_factor or 1)).astype(np.int64)
    decode = (np.array(columns["num_decode_tokens"]) * (length.decode_scale_factor or 1)).astype(np.int64)
    total = prefill + decode
    excess = np.maximum(total - most, 0)
    shares = [np.ceil(excess * (part / np.maximum(total, 1))).astype(np.int64) for part in (prefill, decode)]
    order = np.random.RandomState(seed % 2**32).permutation(len(total))
    prompts, outputs = (
        np.maximum(part - share, 1)[order].tolist() for part, share in zip((prefill, decode), shares, strict=True)
    )
    return list(zip(prompts, outputs, strict=True))
