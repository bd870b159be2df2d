"""Requests and tokens per second of a recording and its simulation, over the requests compared."""

from dataclasses import dataclass

import numpy as np

from calibrate.goodput import recorded_duration_s
from calibrate.network import Latencies
from calibrate.pair import Pairing


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
    """From the first sending to the last simulated end: every request is simulated from when it was really sent."""
    sent_us = np.array([row.send_time_us for row in pairing.rows], dtype=np.int64)
    ended_us = (sent_us - sent_us.min()) + times.sim_e2e_us
    output_tokens = sum(result.output_tokens for result in pairing.results)
    return _throughput(float(ended_us.max()) / 1e6, len(pairing.results), output_tokens)


def _throughput(duration_s: float, num_requests: int, output_tokens: int) -> Throughput:
    if duration_s <= 0:
        return Throughput(0.0, 0.0, 0.0)
    return Throughput(duration_s, num_requests / duration_s, output_tokens / duration_s)
