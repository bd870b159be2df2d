"""The file that `blis fit` writes and the fitted latency model is built from."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.files import read_mapping
from blis_sim.engine.latency.fitted import RequestCoefficients, StepCoefficients
from blis_sim.engine.latency.range_watch import WATCHED
from blis_sim.engine.units import LARGEST_COEFFICIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCoefficients:
    """What a file says: the coefficients, what they were learned for, and the largest batches seen in learning."""

    model: str
    hardware: str
    tp: int
    step: StepCoefficients
    request: RequestCoefficients
    seen: Mapping[str, int]
    seen_prompts: tuple[int, int] | None
    """Tokens of the shortest and the longest prompt; None if the file does not say."""

    @property
    def learned_for(self) -> str:
        """The deployment whose recordings taught them."""
        return f"{self.model} on {self.hardware} with tp {self.tp}"


def read_coefficients(path: str | Path) -> LearnedCoefficients:
    """Read a file. Raises EngineError that names the file and the key for what is missing, unknown or no number."""
    path = Path(path)
    content = read_mapping(path)
    if content.get("latency_model") != "fitted":
        raise EngineError(f"{path}: latency_model must be fitted, got {content.get('latency_model')!r}")
    learned_for = _section(path, content, "learned_for")
    seen = _section(path, content, "seen")
    return LearnedCoefficients(
        model=str(learned_for.get("model", "")),
        hardware=str(learned_for.get("hardware", "")),
        tp=int(_number(path, "learned_for", learned_for, "tp")),
        step=StepCoefficients(**_terms(path, content, "step", StepCoefficients)),
        request=RequestCoefficients(**_terms(path, content, "request", RequestCoefficients)),
        seen={name: int(_number(path, "seen", seen, name)) for name in WATCHED if name in seen},
        seen_prompts=_prompts(path, seen),
    )


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
    """The values of a section by name; those that may be left out keep their default."""
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
        wanted = f"a number from 0 to {LARGEST_COEFFICIENT:g}"
        raise EngineError(f"{path}: {section_name}.{key} must be {wanted}, got {found}")
    return float(value)
