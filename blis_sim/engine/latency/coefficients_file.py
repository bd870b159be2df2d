"""The file that `blis fit` writes: coefficients of a step, and notes on its use."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import read_mapping
from blis_sim.engine.latency.fitted import RequestCoefficients, StepCoefficients
from blis_sim.engine.latency.wrapped import WATCHED
from blis_sim.engine.specs import GpuSpec, ModelSpec
from blis_sim.engine.units import LARGEST_COEFFICIENT

T = TypeVar("T")


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
        step=read_section(path, content, "step", StepCoefficients),
        request=read_section(path, content, "request", RequestCoefficients),
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


def read_section(path: Path, content: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Read a section with the numbers of a dataclass; those with a default may be absent. Raises EngineError."""
    section = _section(path, content, name)
    terms = {each.name: each.default is MISSING for each in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    unknown = section.keys() - terms.keys()
    if unknown:
        raise EngineError(f"{path}: {name} has an unknown key {min(map(str, unknown))!r}, known are {', '.join(terms)}")
    given = [term for term, is_needed in terms.items() if is_needed or term in section]
    return kind(**{term: _number(path, name, section, term) for term in given})


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
_ADVICE = "`blis fit` fits coefficients of your own server, for --coefficients FILE"


def notes_on_coefficients(
    learned_for: str, path: str | None, model: ModelSpec, gpu: GpuSpec, tp: int, engine: str
) -> Iterator[str]:
    """Yield a line on each difference between the deployment that coefficients were learned for and this one.

    The coefficients of the file `path`, or those that ship where it is None, were learned for `learned_for`.
    """
    origin = f"{SHIPPED} were" if path is None else f"{path} was"
    used_for = f"{model.name} on {gpu.name} with tp {tp}"
    if learned_for != used_for:
        advice = f"; {_ADVICE}" if path is None else ""
        yield f"warning: {origin} learned for {learned_for}, not for {used_for}{advice}"
    if engine != "vllm":
        yield f"warning: {origin} learned with --engine vllm, not with {engine}"
