"""The file that `blis fit` writes: coefficients of a step, notes on its use, and errors to expect."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.entries import short_name
from blis_sim.engine.latency.catalogue.files import read_mapping
from blis_sim.engine.latency.fitted import RequestCoefficients, StepCoefficients
from blis_sim.engine.latency.wrapped import WATCHED
from blis_sim.engine.specs import GpuSpec, ModelSpec
from blis_sim.engine.units import LARGEST_COEFFICIENT


class LearnedCoefficients(NamedTuple):
    """Content of a file: the coefficients, the deployment of the recordings, and the largest batches recorded."""

    model: str
    hardware: str
    tp: int
    step: StepCoefficients
    request: RequestCoefficients
    growth_requests: int
    seen: Mapping[str, int]
    seen_prompts: tuple[int, int] | None
    """Tokens of the shortest and the longest prompt; None if the file has no such figures."""

    @property
    def learned_for(self) -> str:
        """The deployment of the recordings that they were fitted to."""
        return f"{self.model} on {self.hardware} with tp {self.tp}"


def read_content(path: str | Path) -> Mapping[str, Any]:
    """Read a file without checking its content. Raises EngineError."""
    return read_mapping(Path(path))


def latency_model_of(path: str | Path, content: Mapping[str, Any]) -> str:
    """Return the latency model that the coefficients of a file are for. Raises EngineError."""
    name = content.get("latency_model")
    if name not in LEARNABLE:
        raise EngineError(f"{path}: latency_model must be {' or '.join(LEARNABLE)}, got {name!r}")
    return str(name)


def read_coefficients(path: str | Path, content: Mapping[str, Any] | None = None) -> LearnedCoefficients:
    """Read a file, or what was read of it. Raises EngineError that names the file and the key that is missing, unknown
    or not a number."""
    path = Path(path)
    content = read_mapping(path) if content is None else content
    if content.get("latency_model") != "fitted":
        raise EngineError(f"{path}: latency_model must be fitted, got {content.get('latency_model')!r}")
    return _learned(path, content)


def _learned(path: Path, content: Mapping[str, Any]) -> LearnedCoefficients:
    learned_for = _section(path, content, "learned_for")
    seen = _section(path, content, "seen")
    return LearnedCoefficients(
        model=str(learned_for.get("model", "")),
        hardware=str(learned_for.get("hardware", "")),
        tp=int(_number(path, "learned_for", learned_for, "tp")),
        step=StepCoefficients(**_terms(path, content, "step", StepCoefficients)),
        request=RequestCoefficients(**_terms(path, content, "request", RequestCoefficients)),
        growth_requests=_growth_requests(path, content),
        seen={name: int(_number(path, "seen", seen, name)) for name in WATCHED if name in seen},
        seen_prompts=_prompts(path, seen),
    )


def _growth_requests(path: Path, content: Mapping[str, Any]) -> int:
    """Return the value of an optional section."""
    return int(_number(path, "host", _section(path, content, "host"), "growth_requests")) if "host" in content else 0


def _prompts(path: Path, seen: Mapping[str, Any]) -> tuple[int, int] | None:
    lengths = seen.get("input_tokens")
    if lengths is None:
        return None
    if not isinstance(lengths, list) or len(lengths) != 2:
        raise EngineError(f"{path}: seen.input_tokens must be the fewest and most tokens of prompts, got {lengths!r}")
    least, most = (int(_number(path, "seen", {"input_tokens": each}, "input_tokens")) for each in lengths)
    return least, most


def _section(path: Path, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = content.get(name)
    if not isinstance(section, Mapping):
        found = "nothing" if section is None else repr(section)
        raise EngineError(f"{path}: {name} must be a mapping of names to values, got {found}")
    return section


def _terms(
    path: Path, content: Mapping[str, Any], name: str, kind: type[StepCoefficients] | type[RequestCoefficients]
) -> dict[str, float]:
    """Return the values of a section by name, without optional values that are absent."""
    section = _section(path, content, name)
    terms = {each.name: each.default is MISSING for each in fields(kind)}
    unknown = section.keys() - terms.keys()
    if unknown:
        raise EngineError(f"{path}: {name} has an unknown key {min(map(str, unknown))!r}, known are {', '.join(terms)}")
    return {
        term: _number(path, name, section, term) for term, is_needed in terms.items() if is_needed or term in section
    }


def _number(path: Path, section_name: str, section: Mapping[str, Any], key: str) -> float:
    value = section.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_COEFFICIENT:
        found = "nothing" if value is None else repr(value)
        expected = f"a number from 0 to {LARGEST_COEFFICIENT:g}"
        raise EngineError(f"{path}: {section_name}.{key} must be {expected}, got {found}")
    return float(value)


LEARNABLE = ("fitted", "kernels")
"""Latency models with coefficients that `blis fit` fits."""
SHIPPED = "the shipped coefficients"
GPUS_MEASURED = ("H100", "RTX-PRO-6000")
TPS_MEASURED = (1, 2, 4)
EXPERTS_MEASURED = "mixtral-8x7b"
"""The servers whose recordings were compared with predictions by the shipped coefficients (docs/published.md) had these
GPUs and tensor parallelism, and of models with experts ran this one."""


def notes_on_coefficients(
    learned_for: str, path: str | None, model: ModelSpec, gpu: GpuSpec, tp: int, engine: str
) -> Iterator[str]:
    """Yield a line on each difference between the deployment that coefficients were learned for and this one.

    The coefficients of the file `path`, or those that ship where it is None, were learned for `learned_for`.
    """
    origin = f"{SHIPPED} were" if path is None else f"{path} was"
    used_for = f"{model.name} on {gpu.name} with tp {tp}"
    if learned_for != used_for:
        more = _more_on_shipped(model, gpu, tp) if path is None else ""
        yield f"warning: {origin} learned for {learned_for}, not for {used_for}{more}"
    if engine != "vllm":
        yield f"warning: {origin} learned with --engine vllm, not with {engine}"


def _more_on_shipped(model: ModelSpec, gpu: GpuSpec, tp: int) -> str:
    """Return text on measurements of such a deployment, and on how to learn own coefficients."""
    unknown = unmeasured_properties(model, gpu, tp)
    measured = f"; nothing was measured {', nor '.join(unknown)}" if unknown else ""
    return f"{measured}; `blis fit` fits coefficients of your own server, for --coefficients FILE"


def unmeasured_properties(model: ModelSpec, gpu: GpuSpec, tp: int) -> list[str]:
    """Return, in words, properties that no server had of those with which the shipped coefficients were compared."""
    return [
        what
        for what, is_unknown in (
            (f"on {gpu.name}", gpu.name not in GPUS_MEASURED),
            (f"with tp {tp}", tp not in TPS_MEASURED),
            ("with quantised weights", model.bytes_per_weight < model.bytes_per_activation),
            ("with experts but those of Mixtral-8x7B", model.is_moe and not model.name.startswith(EXPERTS_MEASURED)),
        )
        if is_unknown
    ]


_LEARNED = ("qwen3-14b", "H100", 1)
"""The deployment that the shipped coefficients were learned for."""
_ERRORS_ON_LEARNED: Mapping[str, str] = {"fitted": "7.1, 0.8, 0.7 %", "trained-physics": "28.8, 10.5, 9.7 %"}
_ERRORS_BY_GPU: Mapping[str, Mapping[str, str]] = {
    "H100": {"fitted": "4.8, 3.5, 3.6 %", "trained-physics": "30.3, 14.6, 14.5 %"},
    "RTX-PRO-6000": {"fitted": "7.7, 1.9, 1.4 %", "trained-physics": "24.6, 9.0, 10.4 %"},
}
"""Errors of TTFT, E2E and the time between tokens, as in docs/models.md."""


def expected_error(latency_model: str, model: ModelSpec, gpu: GpuSpec, tp: int) -> str:
    """Return in words what to expect of a latency model, from the servers that its predictions were compared with."""
    if (short_name(model.name), gpu.name, tp) == _LEARNED and latency_model in _ERRORS_ON_LEARNED:
        figures, of = _ERRORS_ON_LEARNED[latency_model], "of each request, on this deployment"
    else:
        unlike = unmeasured_properties(model, gpu, tp)
        if unlike:
            return f"not known: nothing was measured {', nor '.join(unlike)}"
        figures, of = _ERRORS_BY_GPU[gpu.name].get(latency_model, ""), f"in the median of servers with {gpu.name}"
    return f"off by {figures} of TTFT, E2E and time between tokens {of}" if figures else "not measured"
