"""Coefficients that `blis fit` learns beside kernels: the overheads of the host for a step, and a scale for each class
of kernels.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.files import read_mapping
from blis_sim.engine.latency.catalogue.reader import KERNELS_HOST, LEARNED_COEFFICIENTS
from blis_sim.engine.latency.coefficients_file import read_coefficients
from blis_sim.engine.latency.fitted import RequestCoefficients
from blis_sim.engine.latency.kernel_steps import HostOverheads, KernelScales
from blis_sim.engine.specs import ModelSpec
from blis_sim.engine.units import LARGEST_COEFFICIENT

_TOKENIZER_US = 4.2
"""Per token, of the tokenizers that servers run, on texts that they have not seen: 3.8 to 5.7 us were measured of those
of DeepSeek-V3, Claude, GPT-4 and GPT-4o, as Hugging Face's library runs them."""


def shipped_learned(model: ModelSpec) -> tuple[HostOverheads, KernelScales]:
    """Return the overheads that ship for a model, and kernels as they were measured.

    What passes outside of steps is that of the shipped coefficients of `fitted`. Overheads of steps were learned beside
    kernels from recordings of the same server: in those of `fitted` there are kernels, too. vLLM prepares a step while
    the GPU computes the one before, so what a step takes longer than its kernels is mostly the GPU's: gaps and cold
    caches between the kernels of a layer, and sampling from the logits of a request. Both carry over in proportion.
    """
    fitted = read_mapping(LEARNED_COEFFICIENTS)
    learned = read_coefficients(LEARNED_COEFFICIENTS, fitted)
    arrival_us, arrival_token_us = _arrival(learned.request, most_certain_prompt_tokens(fitted))
    of_requests = {
        "arrival_us": arrival_us,
        "arrival_token_us": arrival_token_us,
        "output_us": learned.request.output_us,
        "output_request_us": learned.request.output_request_us,
    }
    content = dict(read_mapping(KERNELS_HOST))
    content["host"] = {**content["host"], **of_requests}
    host, scales = read_learned(KERNELS_HOST, {**content, "scales": {}})
    learned_for = content["learned_for"]
    layers, logits = model.num_layers / learned_for["num_layers"], model.vocab_size / learned_for["vocab_size"]
    return replace(host, step_us=host.step_us * layers, request_us=host.request_us * logits), scales


def most_certain_prompt_tokens(fitted: Mapping[str, Any]) -> float:
    """Return the length of prompt at which the time before a request is queued is surest, from a file's errors."""
    spread = fitted["spread"]
    places = {name: place for place, name in enumerate(spread)}
    correlation = fitted["correlation"][places["arrival_token_us"]][places["arrival_us"]]
    return float(-correlation * spread["arrival_us"] / spread["arrival_token_us"])


def _arrival(request: RequestCoefficients, tokens: float) -> tuple[float, float]:
    """Return the times before a request is queued, alone and per token.

    Prompts of mostly one length determine the sum at that length alone, which is kept; the time of a tokenizer was
    measured.
    """
    sum_us = request.arrival_us + request.arrival_token_us * tokens
    token_us = min(_TOKENIZER_US, sum_us / tokens)
    return sum_us - token_us * tokens, token_us


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
