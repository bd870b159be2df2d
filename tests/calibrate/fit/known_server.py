"""Recordings of a server whose latency model is known, for tests."""

import numpy as np

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.wrapped import PhaseShifted
from blis_sim.engine.request import Request, UniqueBlocks
from calibrate.fit.recording import Recording
from calibrate.fit.terms import TERMS, FittedDeployment
from replay.arrivals import Arrival
from replay.simulation.record import Record
from replay.simulation.simulate import simulate
from tests.replay.small_traces import row

DEPLOYED = FittedDeployment(load_model("qwen3-14b"), load_gpu("H100"), 1)
CONFIG = EngineConfig(18_000, max_num_batched_tokens=4096, max_num_seqs=128, engine="vllm")
KNOWN = {
    "weights": 1.03,
    "layer_us": 42.0,
    "tokens": 0.6,
    "tiles": 0.8,
    "small_tiles": 0.1,
    "attention": 1.7,
    "kv": 1.05,
    "all_reduce": 1.0,
    "decodes": 1.0,
    "burst": 0.04,
    "burst_again": 0.07,
    "sustained": 0.02,
    "step_us": 150.0,
    "prompt_us": 100.0,
    "request_us": 15.0,
    "idle_start_us": 1800.0,
    "arrival_us": 4500.0,
    "arrival_token_us": 1.2,
    "output_us": 600.0,
    "output_request_us": 25.0,
    "output_turn_us": 45.0,
}
"""Coefficients that differ from those expected of an unknown server."""
VALUES = np.array([KNOWN[name] for name in TERMS.names])


def arrivals(num_requests: int, rate: float, seed: int = 0) -> list[Arrival]:
    """Poisson arrivals of prompts of a few hundred to a few thousand tokens."""
    generator = np.random.default_rng(seed)
    instants = np.cumsum(generator.exponential(1e6 / rate, num_requests)).astype(int)
    inputs = np.clip(generator.lognormal(6.5, 0.8, num_requests), 50, 4000).astype(int)
    outputs = generator.integers(10, 200, num_requests)
    return [
        Arrival(at, Request(f"r{number}", tokens, output, UniqueBlocks(f"r{number}"), output), row(number))
        for number, (at, tokens, output) in enumerate(
            zip(instants.tolist(), inputs.tolist(), outputs.tolist(), strict=True)
        )
    ]


def measured(requests: list[Arrival], phase: int = 99) -> Record:
    """Return the measurements of the known server's clients."""
    engine = Engine(CONFIG, PhaseShifted(DEPLOYED.latency(VALUES), phase), reports_steps=False)
    return simulate(engine, requests).requests


def recording(num_requests: int = 600, rate: float = 3.0, seed: int = 0) -> Recording:
    """A recording of the known server."""
    requests = arrivals(num_requests, rate, seed)
    record = measured(requests)
    ttft_us, e2e_us = record.ttft_us.astype(np.float64), record.e2e_us.astype(np.float64)
    return Recording(name=f"known-{seed}", arrivals=requests, ttft_us=ttft_us, decode_us=e2e_us - ttft_us)
