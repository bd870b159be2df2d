"""The bytes that the GPUs of a model with experts exchange in each layer, as AICB counts them.

Facts: aicb, workload_generator/Vidur_workload_generator.py.
"""

from collections.abc import Iterator
from typing import NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.operators.aicb import ATTENTION, COLUMNS, DISPATCH_SHARE, MLP, MOE, PREFILL
from blis_sim.engine.memory.families import read_model
from blis_sim.engine.memory.shapes import MoE
from blis_sim.engine.specs import ModelSpec

_BYTES_PER_VALUE = 2


class LayerPart(NamedTuple):
    """A part of a layer that ends with an exchange: values of a token, and experts that it passes through."""

    layer: int
    name: str
    width: int
    experts_per_token: int = 0


def exchange_table(model: ModelSpec, tp: int, phase: str, size: int, tokens: int) -> str:
    """Return a table of AICB without its computation: a row for each part of each layer.

    A batch of prompts computes `tokens`, one of decodes `size`. Raises EngineError for a model without experts.
    """
    parts = list(layer_parts(model))
    if not any(part.name == MOE for part in parts):
        raise EngineError(f"{model.name} has no experts, so its GPUs exchange nothing for them")
    num_tokens = tokens if phase == PREFILL else size
    rows = (f"{part.layer}\t{part.name}\t0\t{exchanged_bytes(part, tp, num_tokens)}" for part in parts)
    return "\n".join(("\t".join(COLUMNS), *rows)) + "\n"


def exchanged_bytes(part: LayerPart, tp: int, num_tokens: int) -> int:
    """Return the bytes of the exchange after a part, for `num_tokens` computed tokens.

    Attention and MLP sum up what the GPUs of tensor parallelism have; experts get tokens (dispatch) and return them
    (combine), of which each of these GPUs has a share.
    """
    values_bytes = _BYTES_PER_VALUE * num_tokens * part.width
    if part.name != MOE:
        return values_bytes if tp > 1 else 0
    combined = values_bytes * part.experts_per_token // tp
    return int(combined * DISPATCH_SHARE) + combined


def layer_parts(model: ModelSpec) -> Iterator[LayerPart]:
    """Yield the parts of all layers, of a kind of attention that is not modelled too. Raises EngineError."""
    if model.checkpoint is None:
        raise EngineError(f"{model.name} has no config.json to read its layers from")
    try:
        layers = read_model(model.checkpoint.config, model.name).layers
    except EngineError:
        if not model.is_moe:
            raise
        yield from _parts_by_sizes(model)
        return
    hidden = model.hidden_size
    for index, layer in enumerate(layers):
        if layer.mixer is not None:
            yield LayerPart(index, ATTENTION, hidden)
        for part in layer.feed_forward:
            if isinstance(part, MoE):
                yield LayerPart(index, MOE, part.latent_size or hidden, part.experts_per_token)
            else:
                yield LayerPart(index, MLP, hidden)


def _parts_by_sizes(model: ModelSpec) -> Iterator[LayerPart]:
    for index in range(model.num_layers):
        yield LayerPart(index, ATTENTION, model.hidden_size)
        if index < model.first_k_dense_replace:
            yield LayerPart(index, MLP, model.hidden_size)
        else:
            yield LayerPart(index, MOE, model.hidden_size, max(model.num_experts_per_tok, 1))
