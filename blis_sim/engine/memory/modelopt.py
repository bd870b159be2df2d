"""The exclusions and per-layer algorithms of checkpoints that NVIDIA ModelOpt wrote."""

import re
from collections.abc import Mapping
from fnmatch import translate
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.config_keys import ConfigKeys
from blis_sim.engine.memory.modules import EXPERTS, FormatOf, Module
from blis_sim.engine.memory.names import canonical, ignores_exactly
from blis_sim.engine.memory.weight_formats import FP8, MXFP8, NVFP4, WeightFormat, block_fp8

_FORMATS: Mapping[str, WeightFormat] = {
    "FP8": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "FP8_PB_WO": block_fp8(128, 128),
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "MXFP8": MXFP8,
}


def modelopt_formats(keys: ConfigKeys, method: str) -> FormatOf:
    """Return the format of every module of a ModelOpt checkpoint. The output head is quantised unless excluded."""
    inner = keys.object("quantization") if keys.has("quantization") else keys
    excluded = _Exclusions(inner.items("exclude_modules") or inner.items("ignore"))
    if method == "modelopt_mixed":
        algorithms = _algorithms(inner.object("quantized_layers").keys, keys.model)
        return lambda module: None if excluded.matches(module) else _mixed_format(algorithms, module)
    algorithm = inner.text("quant_algo").upper()
    if algorithm not in _FORMATS:
        raise EngineError(f"{keys.model}: quant_algo must be one of {', '.join(_FORMATS)}, got {algorithm!r}")
    return lambda module: None if excluded.matches(module) else _FORMATS[algorithm]


class _Exclusions:
    """A list of names, parts of names and wildcards, any of which excludes a module."""

    def __init__(self, patterns: list[Any]) -> None:
        names = [canonical(str(pattern)) for pattern in patterns]
        # A trailing star without a dot stands for the module itself and for all below it.
        self.parts = frozenset(name[:-1] if name.endswith("*") and not name.endswith(".*") else name for name in names)
        wildcards = [name for name in names if any(character in name for character in "*?[")]
        self.wildcard = re.compile("|".join(translate(name) for name in wildcards)) if wildcards else None

    def matches(self, module: Module) -> bool:
        if not self.parts:
            return False
        if ignores_exactly(module, self.parts) or any(part in module.name for part in self.parts):
            return True
        return self.wildcard is not None and self.wildcard.match(module.name) is not None


def _algorithms(layers: Mapping[str, Any], model: str) -> dict[str, str]:
    """Return the algorithm of every listed name, and of every parent of one where the parent itself has none."""
    algorithms: dict[str, str] = {}
    parents: dict[str, str] = {}
    for name, recipe in layers.items():
        algorithm = str(recipe.get("quant_algo", "") if isinstance(recipe, Mapping) else "").upper()
        if algorithm not in _FORMATS:
            raise EngineError(f"{model}: quant_algo of {name} must be one of {', '.join(_FORMATS)}, got {algorithm!r}")
        short = canonical(name)
        algorithms[short] = algorithm
        parent = short.rpartition(".")[0]
        while parent and parent not in parents:
            parents[parent] = algorithm
            parent = parent.rpartition(".")[0]
    return {**parents, **algorithms}


def _mixed_format(algorithms: Mapping[str, str], module: Module) -> WeightFormat | None:
    names = [module.name, *module.shard_names()]
    if module.role == EXPERTS:
        names.append(module.name.removesuffix(".experts"))
    algorithm = next((algorithms[name] for name in names if name in algorithms), None)
    return _FORMATS[algorithm] if algorithm is not None else None
