"""The file that learned coefficients are kept in, with where they come from and how far to trust them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import yaml

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.latency.wrapped import WATCHED
from blis_sim.options.yaml_text import Dumper, dump_yaml
from calibrate.compare import Comparison
from calibrate.fit.estimate import Estimate
from calibrate.fit.learn import LearningResult, Score
from calibrate.fit.recording import Recording
from calibrate.fit.terms import Learnable

_HEAD = """\
# Learned by `blis fit`; use with --latency-model {name} --coefficients FILE.
# {sections} names in _us are microseconds. spread: one standard deviation.
# correlation: of the coefficients in spread, each with those before it and itself.
# seen: the largest batches and the lengths learned from; beyond them predictions are extrapolation.
# slower_than_usual: the server's step times in parts of equal length of the recording, as a fraction.
# held_out: errors on the last fifth of each recording, predicted from the rest; means are signed.
"""
_HEAD_OF_SERVERS = """\
# servers: how much servers of this kind differ, as standard deviations: in all steps, and in the arithmetic of prompts.
"""
_SECTIONS = {
    "fitted": "step: times at peak rates are multiplied by these,",
    "kernels": "scales: measured kernel times are multiplied by these; host: what is added to them,",
}
_ENGINE_SETTINGS = ("total_kv_blocks", "block_size_tokens", "max_num_seqs", "max_num_batched_tokens", "engine")


class _FlowList(list[float]):
    """A list that is written without a line for each number."""


class _Dumper(Dumper):
    """Plain YAML, and lists on one line."""


def _written(dumper: _Dumper, numbers: _FlowList) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", numbers, flow_style=True)


_Dumper.add_representer(_FlowList, _written)


def content(
    learned: LearningResult, recordings: Sequence[Recording], deployed: Learnable, config: EngineConfig, seed: int
) -> dict[str, Any]:
    """The content of the file."""
    values = dict(zip(deployed.terms.names, map(float, learned.estimate.values), strict=True))
    spreads = dict(zip(deployed.terms.names, map(float, learned.estimate.spreads), strict=True))
    inputs = [arrival.request.input_tokens for recording in recordings for arrival in recording.arrivals]
    outputs = [arrival.request.output_tokens for recording in recordings for arrival in recording.arrivals]
    largest = learned.largest
    return {
        "latency_model": deployed.latency_model,
        "learned_for": {"model": deployed.model.name, "hardware": deployed.gpu.name, "tp": deployed.tp},
        "engine": {name: asdict(config)[name] for name in _ENGINE_SETTINGS},
        **deployed.sections({name: _rounded(value) for name, value in values.items()}),
        **({"host": {"growth_requests": learned.deployed.growth_requests}} if learned.deployed.growth_requests else {}),
        "spread": {name: _rounded(spreads[name]) for name in deployed.learnable()},
        "correlation": correlation_of(learned.estimate),
        **servers_of(learned.estimate),
        "seen": {
            **{name: int(getattr(largest, name)) for name in WATCHED},
            **({"input_tokens": [min(inputs), max(inputs)]} if inputs else {}),
            **({"output_tokens": [min(outputs), max(outputs)]} if outputs else {}),
        },
        "recordings": [
            {
                "file": recording.name,
                "requests": len(recording.arrivals),
                "token_times": recording.stretches is not None,
                **({} if recording.steps is None else {"steps": len(recording.steps)}),
                "slower_than_usual": _FlowList(_rounded(each, 2) for each in slower.tolist()),
            }
            for recording, slower in zip(recordings, learned.spans.of_each(learned.estimate.slower), strict=True)
        ],
        "held_out": [_score(each) for each in learned.held_out],
        **_held_out_steps(learned),
        "seed": seed,
    }


def correlation_of(estimate: Estimate) -> list[list[float]]:
    """Return a row for each coefficient in `spread`: how it goes with those before it, and itself."""
    covariance = estimate.covariance
    if covariance is None:
        return []
    scale = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    rows = covariance / np.outer(scale, scale)
    return [_FlowList(_rounded(each, 3) for each in row[: place + 1].tolist()) for place, row in enumerate(rows)]


def servers_of(estimate: Estimate) -> dict[str, dict[str, float]]:
    """Return the section on how much servers differ; none where too few recordings show it."""
    if estimate.servers is None:
        return {}
    return {"servers": {name: _rounded(value, 3) for name, value in asdict(estimate.servers).items()}}


def text_of(content: dict[str, Any]) -> str:
    """The file's text."""
    name = content["latency_model"]
    head = _HEAD.format(name=name, sections=_SECTIONS[name]) + (_HEAD_OF_SERVERS if "servers" in content else "")
    return head + dump_yaml(content, _Dumper, width=120)


def _score(score: Score) -> dict[str, Any]:
    metrics = {"ttft": score.ttft, "e2e": score.e2e, "itl": score.itl}
    errors = {name: _errors(each) for name, each in metrics.items() if each is not None}
    return {"file": score.name, "requests": score.num_requests, **errors}


def _held_out_steps(learned: LearningResult) -> dict[str, Any]:
    of_each = [
        {"file": name, **{each.kind: _errors(each.comparison) for each in errors}}
        for name, errors in learned.held_out_steps.items()
    ]
    return {"held_out_steps": of_each} if of_each else {}


def _errors(comparison: Comparison) -> dict[str, float | None]:
    r = comparison.pearson_r
    return {
        "mape": _rounded(comparison.mape),
        "pearson_r": None if r is None else _rounded(r),
        "mean_error": _rounded(comparison.sim.mean / comparison.real.mean - 1) if comparison.real.mean else None,
    }


def _rounded(value: float, num_digits: int = 5) -> float:
    """Significant digits."""
    return float(f"{value:.{num_digits}g}")
