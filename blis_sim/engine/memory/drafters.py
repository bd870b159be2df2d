"""The model that drafts tokens beside the model that verifies them: its layers and its weights, as vLLM loads them.

The drafter lies on the last pipeline stage, and has the precision of the verifying model. It shares the embeddings and
the output head of that model unless it has its own. Facts: vllm/v1/worker/gpu/spec_decode/eagle/utils.py,
`load_eagle_model`; vllm/model_executor/models, `llama_eagle3.py`, `deepseek_mtp.py`, `qwen3_next_mtp.py` and
`qwen3_dflash.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.engine.hf_config import ConfigKeys
from blis_sim.engine.memory.families import DecoderTraits, dense_layers, latent_layers, read_model
from blis_sim.engine.memory.weights import (
    DTYPE_BYTES,
    HEAD,
    Attention,
    DenseMLP,
    FormatOf,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    ModelShape,
    Module,
    MoE,
    Sharding,
    layer_modules,
    module_bytes,
    plain,
    read_quantization,
)

_MTP_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "n_predict", "num_mtp_layers")
_AUX_STATES = 3
"""Hidden states of the verifying model that an EAGLE-3 head reads where its config does not say."""
_ASSUMED_DRAFT_VOCABULARY = 32_000
_ASSUMED_DFLASH_LAYERS = 5
_INT64_PARAMETERS = 4
"""Size of a number in the map from the drafter's vocabulary to the model's, in parameters of 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterRequest:
    """A way of drafting with a model. Without a `config` the drafter's sizes are assumed from the verifying model."""

    method: str
    num_tokens: int
    config: Mapping[str, Any] | None = None
    hf_quant_config: Mapping[str, Any] | None = None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """The layers of a drafter, and what it has beside them. `head_rows` 0 shares the output head.

    `projections` take the verifying model's hidden states in; `replicated` parameters are whole on every GPU.
    """

    shape: ModelShape
    format_of: FormatOf
    first_layer: int
    has_embeddings: bool = False
    head_rows: int = 0
    replicated_parameters: int = 0
    projections: tuple[Module, ...] = ()

    def weight_bytes(self, sharding: Sharding) -> int:
        """Return the bytes of the drafter's own parameters on one GPU of the last pipeline stage."""
        full = plain(DTYPE_BYTES[self.shape.dtype])
        return sum(module_bytes(module, self.format_of, full) for module in self._modules(sharding))

    def _modules(self, sharding: Sharding) -> Iterator[Module]:
        shape = self.shape
        for index, layer in enumerate(shape.layers, self.first_layer):
            yield from layer_modules(shape, layer, f"layers.{index}.", sharding)
        yield from self.projections
        others = self.replicated_parameters
        if self.has_embeddings:
            others += sharding.vocabulary(shape.vocab_size) * shape.hidden_size
        yield Module(name="drafter", matrices=(), other_parameters=others)
        if self.head_rows:
            rows = sharding.vocabulary(self.head_rows)
            yield Module(name="lm_head", role=HEAD, matrices=((rows, shape.hidden_size),))


def read_drafter(
    request: DrafterRequest,
    target: ModelShape,
    target_config: Mapping[str, Any],
    format_of: FormatOf,
    sharding: Sharding,
) -> Drafter:
    """Return the drafter of a model. Raises EngineError, in one line, for a drafter that is not modelled."""
    if request.method == "mtp":
        return _mtp(target, target_config, format_of, sharding)
    if request.method == "draft_model":
        return _draft_model(request, target)
    if request.method == "medusa":
        return _medusa(request, target)
    return _head(request, target, sharding)


def _mtp(target: ModelShape, config: Mapping[str, Any], format_of: FormatOf, sharding: Sharding) -> Drafter:
    """Return layers for multi-token prediction, which are decoder layers with attention of the model itself."""
    text = config.get("text_config") or config.get("language_config")
    keys = ConfigKeys(target.model, text if isinstance(text, Mapping) else config)
    count = keys.count(*_MTP_COUNTS, default=1) or 1
    layer = next(
        (each for each in reversed(target.layers) if isinstance(each.mixer, Attention | LatentAttention)), None
    )
    if layer is None:
        raise EngineError(f"{target.model} has no layer with attention that a layer for drafts could be like")
    if not layer.feed_forward:  # mixers and MLPs are layers of their own, and a drafter has one of each
        layer = layer._replace(
            feed_forward=next(each.feed_forward for each in reversed(target.layers) if not each.mixer)
        )
    if isinstance(layer.mixer, LatentAttention) and layer.mixer.is_sparse:
        layer = layer._replace(mixer=layer.mixer._replace(has_indexer=True))
    hidden = target.hidden_size
    is_hybrid = any(isinstance(each.mixer, GatedDeltaNet) for each in target.layers)
    if is_hybrid:
        projection = Module(name="mtp.fc", matrices=((sharding.part(hidden, "channels"), 2 * hidden),))
        return _drafter(target, (layer,) * count, format_of, sharding, (projection,), 3 * hidden)
    return _drafter(target, (layer,) * count, format_of, sharding, (), count * (2 * hidden * hidden + 3 * hidden))


def _drafter(
    target: ModelShape,
    layers: tuple[Layer, ...],
    format_of: FormatOf,
    sharding: Sharding,
    projections: tuple[Module, ...],
    replicated: int,
) -> Drafter:
    return Drafter(
        shape=target._replace(layers=layers),
        format_of=format_of,
        first_layer=len(target.layers),
        has_embeddings=sharding.pp > 1,
        replicated_parameters=replicated,
        projections=projections,
    )


def _draft_model(request: DrafterRequest, target: ModelShape) -> Drafter:
    """Return a whole model that drafts, with embeddings and an output head of its own."""
    if request.config is None:
        raise EngineError(f"the drafter {request.name} is neither in the catalogue nor a folder with a config.json")
    shape = read_model(request.config, request.name, target.dtype)
    quantization = read_quantization(request.config, request.hf_quant_config, request.name, "")
    return Drafter(
        shape=shape,
        format_of=quantization.format_of,
        first_layer=0,
        has_embeddings=True,
        head_rows=0 if shape.is_tied else shape.vocab_size,
        replicated_parameters=shape.hidden_size,
    )


def _medusa(request: DrafterRequest, target: ModelShape) -> Drafter:
    """Return heads on the last hidden state, each with residual layers and, unless they share one, an output head."""
    keys = ConfigKeys(request.name or request.method, request.config or {})
    quantization = read_quantization(keys.keys, request.hf_quant_config, keys.model, "")
    hidden = target.hidden_size
    num_heads = keys.count("num_heads", "medusa_num_heads", default=0) or request.num_tokens
    num_layers = keys.count("num_hidden_layers", "medusa_num_layers", default=0) or 1
    rows = keys.count("truncated_vocab_size", default=0) or target.vocab_size
    return Drafter(
        shape=target._replace(model=keys.model, layers=()),
        format_of=quantization.format_of,
        first_layer=len(target.layers),
        head_rows=rows if keys.flag("original_lm_head") else num_heads * rows,
        replicated_parameters=num_heads * num_layers * hidden * hidden,
    )


def _head(request: DrafterRequest, target: ModelShape, sharding: Sharding) -> Drafter:
    """Return a head that reads hidden states of the verifying model: EAGLE, EAGLE-3, DFlash or DSpark."""
    config = _assumed_head(request, target) if request.config is None else request.config
    keys = ConfigKeys(request.name or request.method, config)
    layers = latent_layers(keys, DecoderTraits()) if keys.has("kv_lora_rank") else dense_layers(keys, DecoderTraits())
    hidden = keys.positive("hidden_size")
    shape = target._replace(model=keys.model, hidden_size=hidden, vocab_size=keys.positive("vocab_size"), layers=layers)
    quantization = read_quantization(config, request.hf_quant_config, keys.model, "")
    is_eagle3 = request.method == "eagle3"
    if request.method == "eagle":
        inputs = 2 * hidden
    elif is_eagle3:
        inputs = _num_states(keys) * (keys.count("target_hidden_size", default=0) or target.hidden_size)
    else:
        inputs = len(keys.object("dflash_config").items("target_layer_ids") or layers) * target.hidden_size
    projections = [Module(name="fc", matrices=((hidden, inputs),))]
    if is_eagle3 and isinstance(mixer := layers[0].mixer, Attention):
        # The first layer attends with an embedding and a hidden state side by side.
        rows = sharding.part(mixer.heads, "attention heads") * mixer.head_size
        rows += 2 * sharding.kv_heads(mixer.kv_heads) * mixer.head_size
        projections.append(Module(name="layers.0.self_attn.qkv_proj", matrices=((rows, hidden),)))
    head_rows = (keys.count("draft_vocab_size", default=0) or shape.vocab_size) if is_eagle3 else 0
    return Drafter(
        shape=shape,
        format_of=quantization.format_of,
        first_layer=len(target.layers),
        has_embeddings=sharding.pp > 1 or hidden != target.hidden_size,
        head_rows=head_rows,
        replicated_parameters=2 * hidden + (_INT64_PARAMETERS * head_rows if head_rows != target.vocab_size else 0),
        projections=tuple(projections),
    )


def _num_states(keys: ConfigKeys) -> int:
    layer_ids = keys.object("eagle_config").items("eagle_aux_hidden_state_layer_ids")
    return keys.count("num_aux_hidden_states", default=0) or len(layer_ids) or _AUX_STATES


def _assumed_head(request: DrafterRequest, target: ModelShape) -> Mapping[str, Any]:
    """Return the config of a usual head for a model: layers with the model's own heads, and a dense MLP."""
    attention = next((layer.mixer for layer in target.layers if isinstance(layer.mixer, Attention)), None)
    parts = [part for layer in target.layers for part in layer.feed_forward]
    widths = [part.intermediate_size for part in parts if isinstance(part, DenseMLP)]
    widths += [
        part.experts_per_token * part.intermediate_size + part.shared_size for part in parts if isinstance(part, MoE)
    ]
    return {
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": _ASSUMED_DRAFT_VOCABULARY,
        "num_hidden_layers": 1 if request.method.startswith("eagle") else _ASSUMED_DFLASH_LAYERS,
        "num_attention_heads": attention.heads if attention else target.hidden_size // 128,
        "num_key_value_heads": attention.kv_heads if attention else target.hidden_size // 128,
        "head_dim": attention.head_size if attention else 128,
        "intermediate_size": max(widths, default=4 * target.hidden_size),
    }
