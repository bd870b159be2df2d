"""A load of five minutes from which all coefficients of a server can be learned."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.options.yaml_text import Dumper, dump_yaml

OUTPUT_TOKENS = 128
SHORTEST_PROMPT = 32
MAX_PROMPT = 8_000
"""Longer prompts teach nothing more: attention shows in these."""
LONE_SHARE = 0.1
"""Load of requests that mostly find an idle server."""
_HEAD = """\
# Five minutes of load from which `blis fit` learns all coefficients: for blis observe --workload-spec.
# Record token times (--record-itl) and send with --max-concurrency {max_num_seqs}, then learn with
# blis fit TRACE.yaml --reissue --max-concurrency {max_num_seqs}.
"""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the load: what it shows, its seconds, its requests per second, and the lengths of its prompts."""

    shows: str
    start_s: int
    end_s: int
    rate: float
    arrival: dict[str, Any]
    inputs: dict[str, Any]


def design(config: EngineConfig, latency: LatencyModel) -> str:
    """Return a workload spec for a server that `latency` describes roughly, as YAML."""
    phases = list(_phases(config, latency))
    content = {
        "version": "2",
        "seed": 1,
        "horizon": max(each.end_s for each in phases) * 1_000_000,
        "clients": list(map(_client, phases)),
    }
    return _HEAD.format(max_num_seqs=config.max_num_seqs) + dump_yaml(content, Dumper, width=120)


def _phases(config: EngineConfig, latency: LatencyModel) -> Iterator[Phase]:
    longest = max(SHORTEST_PROMPT + 1, min(MAX_PROMPT, config.limit_tokens - OUTPUT_TOKENS - 1))
    mean = min(1_000, longest // 2)
    any_length = {"type": "lognormal", "params": {"mu": 6.5, "sigma": 1.0, "min": SHORTEST_PROMPT, "max": longest}}
    short = {
        "type": "gaussian",
        "params": {"mean": mean // 2, "std_dev": mean // 4, "min": SHORTEST_PROMPT, "max": mean},
    }
    most = capacity(config, latency, mean)
    poisson = {"process": "poisson"}
    lone = min(0.4, LONE_SHARE * most)
    yield Phase("idle starts, lone steps", 0, 60, lone, poisson, any_length)
    yield Phase("prompts of all lengths", 60, 150, 0.3 * most, poisson, any_length)
    yield Phase("bursts of prompts", 150, 210, 0.3 * most, {"process": "gamma", "cv": 4.0}, short)
    yield Phase("the largest batches", 210, 270, 1.6 * capacity(config, latency, mean // 2), poisson, short)
    yield Phase("idle starts again", 285, 300, lone, poisson, any_length)


def capacity(config: EngineConfig, latency: LatencyModel, prompt_tokens: int) -> float:
    """Return roughly how many requests per second a server bears, with prompts so long."""
    running = min(config.max_num_seqs, max(1, config.kv_capacity_tokens // (prompt_tokens + OUTPUT_TOKENS)))
    context = running * (prompt_tokens + OUTPUT_TOKENS // 2)
    square = prompt_tokens * prompt_tokens
    alone = latency.step_time(BatchShape(0, 0, 0, 0, 0, 0, running, context))
    beside = latency.step_time(BatchShape(1, prompt_tokens, square, 0, 0, square, running, context))
    return running * 1e6 / (OUTPUT_TOKENS * alone + running * max(1, beside - alone))


def _client(phase: Phase) -> dict[str, Any]:
    window = {
        "start_us": phase.start_s * 1_000_000,
        "end_us": phase.end_s * 1_000_000,
        "trace_rate": round(phase.rate, 4),
    }
    return {
        "id": phase.shows,
        "rate_fraction": 1.0,
        "streaming": True,
        "arrival": phase.arrival,
        "input_distribution": phase.inputs,
        "output_distribution": {"type": "gaussian", "params": _outputs()},
        "lifecycle": {"windows": [window]},
    }


def _outputs() -> dict[str, int]:
    return {"mean": OUTPUT_TOKENS, "std_dev": OUTPUT_TOKENS // 4, "min": 2, "max": 2 * OUTPUT_TOKENS}
