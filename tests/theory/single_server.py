"""Random arrivals at one engine, and what their requests experienced."""

from dataclasses import dataclass

import numpy as np

from blis_sim.engine.core import Engine
from blis_sim.engine.request import Request, UniqueBlocks
from replay.arrivals import Arrival
from replay.simulation.record import RequestRecord
from replay.simulation.simulate import Simulated, simulate
from tests.fakes import TestLatency, config
from traces import TraceRow

SCHEDULINGS: dict[str, dict[str, int | str]] = {
    "blis": {"engine": "blis"},
    "vllm": {"engine": "vllm", "async_scheduling": False},
}
"""Schedulings whose steps follow each other like services; an asynchronous one composes a step ahead."""


@dataclass(frozen=True, slots=True)
class Run:
    """A drained run."""

    simulated: Simulated
    measured: list[RequestRecord]

    @property
    def waits_us(self) -> list[int]:
        """From arrival to admission."""
        return [each.scheduling_delay_us for each in self.measured if each.scheduling_delay_us is not None]

    @property
    def times_us(self) -> list[int]:
        """From arrival to the last token."""
        return [each.e2e_us for each in self.measured if each.e2e_us is not None]


def poisson(rate_per_us: float, output_tokens: list[int], seed: int) -> list[Arrival]:
    """Requests of one prompt token, one for each of `output_tokens`: as many steps of service.

    Each quantile of the exponential gaps occurs once, in random order: estimates vary less than with drawn gaps.
    """
    quantiles = (np.arange(len(output_tokens)) + 0.5) / len(output_tokens)
    gaps = np.random.default_rng(seed).permutation(-np.log1p(-quantiles)) / rate_per_us
    instants = np.rint(np.cumsum(gaps)).astype(int).tolist()
    return [
        arrival(number, at, tokens) for number, (at, tokens) in enumerate(zip(instants, output_tokens, strict=True))
    ]


def arrival(number: int, at: int, output_tokens: int) -> Arrival:
    name = f"r{number}"
    row = TraceRow(request_id=number, input_tokens=1, output_tokens=output_tokens, arrival_time_us=at)
    return Arrival(at, Request(name, 1, output_tokens, UniqueBlocks(name), output_tokens), row)


def served(arrivals: list[Arrival], step_us: int, scheduling: str, max_num_seqs: int = 1) -> Run:
    """Every step takes `step_us`, whatever is in it."""
    limits = config(100_000, 16, max_num_seqs=max_num_seqs, **SCHEDULINGS[scheduling])
    simulated = simulate(Engine(limits, TestLatency(step_us=step_us)), arrivals)
    return Run(simulated, list(simulated.requests))
