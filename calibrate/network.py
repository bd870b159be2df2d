"""Latencies of both sides on the same footing: a recording has a network in it, a simulation has not."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrate.pair import Pairing
from traces import TraceHeader

Floats = npt.NDArray[np.float64]
BITS_PER_TOKEN = 4 * 8
"""A token is four bytes of text on average."""


@dataclass(frozen=True, slots=True)
class Network:
    """The way between client and server: round trip in microseconds, bandwidth in Mbit/s (0: no transfer delay)."""

    rtt_us: int = 0
    bandwidth_mbps: float = 0.0

    def transfer_us(self, tokens: Floats) -> Floats:
        """Time on the wire for so many tokens."""
        return tokens * BITS_PER_TOKEN / self.bandwidth_mbps if self.bandwidth_mbps > 0 else np.zeros_like(tokens)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Arrays with one entry per pair, in microseconds."""

    real_ttft_us: Floats
    sim_ttft_us: Floats
    real_e2e_us: Floats
    sim_e2e_us: Floats


def rtt_us_of(header: TraceHeader) -> int:
    """The round trip measured when recording, in whole microseconds; 0 if it was not."""
    return int((header.measured_rtt_ms or 0.0) * 1000)


def latencies(pairing: Pairing, network: Network) -> Latencies:
    """Recorded latencies, and simulated ones with the network added: round trip and prompt, for E2E output as well."""
    rows, results = pairing.rows, pairing.results
    up_us = network.rtt_us + network.transfer_us(_array([result.input_tokens for result in results]))
    down_us = network.transfer_us(_array([result.output_tokens for result in results]))
    return Latencies(
        real_ttft_us=_array([row.first_chunk_time_us - row.send_time_us for row in rows]),
        sim_ttft_us=_array([result.ttft_us for result in results]) + up_us,
        real_e2e_us=_array([row.last_chunk_time_us - row.send_time_us for row in rows]),
        sim_e2e_us=_array([result.e2e_us for result in results]) + up_us + down_us,
    )


def _array(values: list[int] | list[float]) -> Floats:
    return np.array(values, dtype=np.float64)
