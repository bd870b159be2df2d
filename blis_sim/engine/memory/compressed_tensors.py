"""The groups and ignore lists of checkpoints in the format of compressed-tensors."""

import re
from collections.abc import Mapping
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.config_keys import ConfigKeys
from blis_sim.engine.memory.modules import HEAD, FormatOf, Module
from blis_sim.engine.memory.names import canonical
from blis_sim.engine.memory.weight_formats import (
    FP8,
    INT8,
    MXFP4,
    NVFP4,
    WeightFormat,
    block_fp8,
    grouped_integers,
)

_MODULE_CLASSES = ("Linear", "FusedMoE", "RoutedExperts")


def compressed_tensors_formats(keys: ConfigKeys) -> FormatOf:
    """Return the format of every module: that of the first group whose targets name it, unless it is ignored."""
    ignored = [str(item) for item in keys.items("ignore")]
    groups = [
        (ConfigKeys(f"{keys.model}: config_groups", group), keys.text("format"))
        for _, group in sorted(keys.object("config_groups").keys.items())
        if isinstance(group, Mapping)
    ]
    formats = [(group.items("targets"), _group_format(group, fallback)) for group, fallback in groups]

    def format_of(module: Module) -> WeightFormat | None:
        if any(_names(module, pattern) for pattern in ignored):
            return None
        for targets, weight_format in formats:
            is_class = module.role != HEAD and any(target in _MODULE_CLASSES for target in targets)
            if is_class or any(_names(module, str(target)) for target in targets):
                return weight_format
        return None

    return format_of


def _names(module: Module, pattern: str) -> bool:
    """Return whether a name, or a regular expression after `re:`, means the module or its shards."""
    names = (module.name, *module.shard_names())
    if pattern.startswith("re:"):
        try:
            expression = re.compile(pattern[3:])
        except re.error:
            return False
        return any(expression.match(f"model.{name}") or expression.match(name) for name in names)
    return canonical(pattern) in names


def _group_format(group: ConfigKeys, fallback: str) -> WeightFormat:
    weights = group.object("weights")
    kind, bits = weights.text("type", "int"), weights.count("num_bits", default=16)
    packing = group.text("format", fallback)
    if kind == "float":
        return _float_format(group.model, bits, packing, weights)
    if bits == 8 and "pack" not in packing:
        return INT8
    group_size = weights.count("group_size", default=0) if weights.text("strategy") == "group" else 0
    return grouped_integers(bits, group_size, not weights.flag("symmetric", True))


def _float_format(model: str, bits: int, packing: str, weights: ConfigKeys) -> WeightFormat:
    if bits == 4:
        return MXFP4 if "mxfp4" in packing or weights.count("group_size", default=16) == 32 else NVFP4
    if bits != 8:
        raise EngineError(f"{model}: num_bits of float weights must be 4 or 8, got {bits}")
    block: list[Any] = weights.items("block_structure")
    return block_fp8(int(block[0]), int(block[1])) if len(block) == 2 else FP8
