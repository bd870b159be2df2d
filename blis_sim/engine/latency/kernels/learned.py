"""What `blis fit` learns beside kernels: what the host adds to a step, and a scale for each class of kernels."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.files import read_mapping
from blis_sim.engine.latency.catalogue.reader import LEARNED_COEFFICIENTS
from blis_sim.engine.latency.coefficients_file import read_coefficients
from blis_sim.engine.latency.kernel_steps import HostOverheads, KernelScales
from blis_sim.engine.units import LARGEST_COEFFICIENT

_SAMPLING_US = 2.6
"""Of what a decoding request adds to a step by the shipped coefficients: kernels that choose from its 152,000 logits on
an H100. Kernel times have them apart."""


def shipped_learned() -> tuple[HostOverheads, KernelScales]:
    """Return the host overheads of the shipped coefficients of `fitted`, and kernels as they were measured."""
    learned = read_coefficients(LEARNED_COEFFICIENTS)
    step, request = learned.step, learned.request
    arithmetic = step.tokens + step.tiles + step.small_tiles  # bursts are learned in times at peak rate
    host = HostOverheads(
        step_us=step.step_us,
        prompt_us=step.prompt_us,
        request_us=step.request_us - _SAMPLING_US,
        arrival_us=request.arrival_us,
        arrival_token_us=request.arrival_token_us,
        output_us=request.output_us,
        output_request_us=request.output_request_us,
        burst=step.burst / arithmetic,
        burst_again=step.burst_again / arithmetic,
    )
    return host, KernelScales()


def read_learned(path: str | Path, content: Mapping[str, Any] | None = None) -> tuple[HostOverheads, KernelScales]:
    """Read a file, or what was read of it. Raises EngineError that names the file and the key that is wrong."""
    path = Path(path)
    content = read_mapping(path) if content is None else content
    if content.get("latency_model") != "kernels":
        raise EngineError(f"{path}: latency_model must be kernels, got {content.get('latency_model')!r}")
    host = HostOverheads(**_numbers(path, content, "host", HostOverheads))
    return host, KernelScales(**_numbers(path, content, "scales", KernelScales))


def _numbers(
    path: Path, content: Mapping[str, Any], name: str, kind: type[HostOverheads] | type[KernelScales]
) -> dict[str, float]:
    section = content.get(name)
    if not isinstance(section, Mapping):
        found = "nothing" if section is None else repr(section)
        raise EngineError(f"{path}: {name} must be a mapping of names to values, got {found}")
    known = {each.name: each.default is MISSING for each in fields(kind)}
    unknown = section.keys() - known.keys()
    if unknown:
        raise EngineError(f"{path}: {name} has an unknown key {min(map(str, unknown))!r}, known are {', '.join(known)}")
    return {
        each: _number(path, f"{name}.{each}", section.get(each))
        for each, is_needed in known.items()
        if is_needed or each in section
    }


def _number(path: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_COEFFICIENT:
        found = "nothing" if value is None else repr(value)
        raise EngineError(f"{path}: {name} must be a number from 0 to {LARGEST_COEFFICIENT:g}, got {found}")
    return float(value)
