"""Names of modules: checkpoints and vLLM put the decoder under different parents."""

from collections.abc import Collection

from blis_sim.engine.memory.modules import EXPERTS, Module

_PARENTS = (
    "model.language_model.model.",
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "backbone.",
    "model.",
)


def canonical(name: str) -> str:
    """Return a name or a pattern without the parent of the decoder."""
    for parent in _PARENTS:
        if name.startswith(parent):
            return name[len(parent) :]
    return name


def ignores_exactly(module: Module, ignored: Collection[str]) -> bool:
    """Return whether a list of full names ignores a module: experts when one of them is listed, else all shards."""
    if module.name in ignored:
        return True
    if module.role == EXPERTS:
        return any(module.name in name for name in ignored)
    return all(name in ignored for name in module.shard_names())
