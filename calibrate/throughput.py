"""Requests and tokens per second of a recording and its simulation, over the requests compared."""

from dataclasses import dataclass

import numpy as np

from calibrate.goodput import recorded_duration_s
from calibrate.network import Floats, Latencies
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
    """From the first sending to the last simulated end."""
    sent_us = sim_sent_us(pairing)
    ended_us = (sent_us - sent_us.min()) + times.sim_e2e_us
    output_tokens = sum(result.output_tokens for result in pairing.results)
    return _throughput(float(ended_us.max()) / 1e6, len(pairing.results), output_tokens)


def sim_sent_us(pairing: Pairing) -> Floats:
    """When each request was sent in the simulation, on its own clock; where it does not say so, when it really was."""
    simulated = [result.sent_at_us for result in pairing.results]
    recorded = [row.send_time_us for row in pairing.rows]
    return np.array(recorded if None in simulated else simulated, dtype=np.float64)


def _throughput(duration_s: float, num_requests: int, output_tokens: int) -> Throughput:
    if duration_s <= 0:
        return Throughput(0.0, 0.0, 0.0)
    return Throughput(duration_s, num_requests / duration_s, output_tokens / duration_s)
