"""The families of models that the planner reads, by the names of vLLM's classes in `architectures`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.hf_config import ConfigKeys, with_usual_names
from blis_sim.engine.memory.decoders import (
    DecoderTraits,
    dense_layers,
    gemma4_layers,
    latent_layers,
    layer_embedding_size,
    llama4_layers,
    mimo_v2_layers,
    minimax_m3_layers,
    nemotron_nas_layers,
)
from blis_sim.engine.memory.hybrids import kimi_linear_layers, nemotron_h_layers, qwen_hybrid_layers
from blis_sim.engine.memory.shapes import Layer, ModelShape
from blis_sim.engine.memory.weights import DTYPE_BYTES

_MLP_MATRICES, _GATED_MATRICES = 2, 3


class VisionParameters(NamedTuple):
    """Parameters that tensor parallelism divides, and those that every GPU holds in full."""

    sharded: int = 0
    replicated: int = 0


def vision_parameters(config: ConfigKeys, hidden_size: int) -> VisionParameters:
    """Return the parameters of the tower that `vision_config` describes, none without one.

    Towers differ in their keys, not in their parts: patches, positions, blocks of attention and an MLP, a projector.
    """
    vision = config.object("vision_config")
    if not vision.keys:
        return VisionParameters()
    width = vision.count("vt_hidden_size", "hidden_size", "embed_dim", default=0)
    depth = vision.count("vt_num_hidden_layers", "depth", "num_hidden_layers", default=0)
    inner = vision.count("vt_intermediate_size", "intermediate_size", default=0) or 4 * width
    attention = vision.count("qkv_hidden_size", default=0) or width
    kind = vision.text("model_type", config.text("model_type"))
    is_gated = kind.startswith(("gemma4", "pixtral", "qwen2_5_vl"))
    blocks = depth * (4 * width * attention + (_GATED_MATRICES if is_gated else _MLP_MATRICES) * width * inner)
    patches = _patch_parameters(vision, width)
    projector = _projector_parameters(config, vision, width, hidden_size)
    if kind.startswith("gemma4"):
        return VisionParameters(replicated=blocks + patches + projector)
    return VisionParameters(sharded=blocks + projector, replicated=patches)


def _patch_parameters(vision: ConfigKeys, width: int) -> int:
    """Return the parameters of the patch embedding and of learned positions."""
    patch = vision.count("patch_size", default=0)
    frames = vision.count("temporal_patch_size", default=1) or 1
    positions = vision.count("num_position_embeddings", default=0)
    if not positions and vision.has("position_embedding_size"):
        positions = 2 * vision.count("position_embedding_size")
    if not positions and vision.has("init_pos_emb_height"):
        positions = vision.count("init_pos_emb_height") * vision.count("init_pos_emb_width", default=0)
    if not positions and vision.has("image_size") and patch and vision.text("position_embedding_type") != "rope":
        positions = (vision.count("image_size") // patch) ** 2 + 1
    return width * (3 * frames * patch * patch + positions)


def _projector_parameters(config: ConfigKeys, vision: ConfigKeys, width: int, hidden_size: int) -> int:
    """Return the parameters between the tower and the decoder."""
    merge = vision.count("spatial_merge_size", default=0)
    kernel = vision.items("merge_kernel_size")
    if kernel:
        merge = int(kernel[0])
    output = vision.count("out_hidden_size", "text_hidden_size", default=0) or hidden_size
    if config.text("model_type") == "llama4":
        middle = vision.count("projector_input_dim", default=0)
        last = vision.count("projector_output_dim", default=0)
        wide = vision.count("vision_output_dim", default=0)
        return middle * vision.count("intermediate_size", default=0) + middle * last + wide * hidden_size
    compression = config.object("img_token_compression_config")
    if compression.keys:
        merge = compression.count("spatial_merge_size", default=2)
        inner = config.count("projector_hidden_size", default=hidden_size)
        merger = inner * inner * merge * merge + inner * hidden_size
        return width * inner + inner * inner + merger
    if merge:
        merged = width * merge * merge
        heads = 1 + len(vision.items("deepstack_visual_indexes"))
        return heads * (merged * merged + merged * output)
    return width * hidden_size


Reader = Callable[[ConfigKeys, DecoderTraits], tuple[Layer, ...]]


class Family(NamedTuple):
    """How the decoder of a family is read. `is_tied` is the default of `tie_word_embeddings`.

    Classes of `embeds_everywhere` and `has_heads_everywhere` keep embeddings or head on all pipeline stages.
    """

    reader: Reader
    traits: DecoderTraits = DecoderTraits()
    is_tied: bool = False
    embeds_everywhere: bool = False
    has_heads_everywhere: bool = False


def _everywhere(reader: Reader, traits: DecoderTraits | None = None, is_tied: bool = False) -> Family:
    """Return a family whose class keeps embeddings and head on all pipeline stages."""
    return Family(reader, traits or DecoderTraits(), is_tied, embeds_everywhere=True, has_heads_everywhere=True)


_PLAIN = Family(dense_layers)
_BLOCK_SPARSE = Family(dense_layers, DecoderTraits(moe_name="block_sparse_moe"))
_QWEN2 = Family(dense_layers, DecoderTraits(has_qkv_bias=True, needs_use_sliding_window=True))
_QWEN3 = Family(dense_layers, DecoderTraits(needs_use_sliding_window=True))
_QWEN_MOE = _everywhere(dense_layers, DecoderTraits(shared_name="shared_expert", needs_use_sliding_window=True))
_QWEN2_MOE = _everywhere(
    dense_layers, DecoderTraits(has_qkv_bias=True, shared_name="shared_expert", needs_use_sliding_window=True)
)
_GEMMA = _everywhere(dense_layers, is_tied=True)
_LATENT = Family(latent_layers)
_QWEN_HYBRID = Family(qwen_hybrid_layers, DecoderTraits(shared_name="shared_expert"), embeds_everywhere=True)
_QWEN_NEXT = _everywhere(qwen_hybrid_layers, DecoderTraits(shared_name="shared_expert"))
_NEMOTRON_H = _everywhere(nemotron_h_layers)
_KIMI = Family(kimi_linear_layers, DecoderTraits(moe_name="block_sparse_moe"))
_GPT_OSS = _everywhere(
    dense_layers,
    DecoderTraits(has_qkv_bias=True, has_output_bias=True, has_moe_bias=True, windows_every_other_layer=True),
)
_PHI_MOE = _everywhere(
    dense_layers, DecoderTraits(has_qkv_bias=True, has_output_bias=True, moe_name="block_sparse_moe")
)
_LLAMA4 = Family(llama4_layers)
_GEMMA4 = _everywhere(gemma4_layers, is_tied=True)
_PLAIN_MLP = Family(
    dense_layers, DecoderTraits(has_qkv_bias=True, has_output_bias=True, has_gated_mlp=False, has_mlp_bias=True)
)
_GPT2 = _PLAIN_MLP._replace(is_tied=True)
_GEMMA2 = _everywhere(dense_layers, DecoderTraits(windows_every_other_layer=True), is_tied=True)
_MINIMAX_M3 = Family(minimax_m3_layers, DecoderTraits(moe_name="block_sparse_moe"))

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": _PLAIN,
    "MistralForCausalLM": _PLAIN,
    "Ministral3ForCausalLM": _PLAIN,
    "Mistral3ForConditionalGeneration": _PLAIN,
    "LlavaForConditionalGeneration": _PLAIN,
    "MixtralForCausalLM": _everywhere(dense_layers, DecoderTraits(moe_name="block_sparse_moe")),
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen2MoeForCausalLM": _QWEN2_MOE,
    "Qwen2VLForConditionalGeneration": _QWEN2,
    "Qwen2_5_VLForConditionalGeneration": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": _QWEN_MOE,
    "Qwen3VLForConditionalGeneration": _QWEN3,
    "Qwen3VLMoeForConditionalGeneration": _QWEN_MOE,
    "Qwen3NextForCausalLM": _QWEN_NEXT,
    "Qwen3_5ForCausalLM": _QWEN_HYBRID,
    "Qwen3_5MoeForCausalLM": _QWEN_HYBRID,
    "Qwen3_5ForConditionalGeneration": _QWEN_HYBRID,
    "Qwen3_5MoeForConditionalGeneration": _QWEN_HYBRID,
    "MiMoForCausalLM": _QWEN2,
    "MiMoV2FlashForCausalLM": Family(mimo_v2_layers),
    "MiniMaxM2ForCausalLM": _BLOCK_SPARSE,
    "MiniMaxM3ForCausalLM": _MINIMAX_M3,
    "MiniMaxM3SparseForCausalLM": _MINIMAX_M3,
    "MiniMaxM3SparseForConditionalGeneration": _MINIMAX_M3,
    "DeepseekV2ForCausalLM": _LATENT,
    "DeepseekV3ForCausalLM": _LATENT,
    "DeepseekV32ForCausalLM": _LATENT,
    "DeepseekV4ForCausalLM": _LATENT,
    "GlmMoeDsaForCausalLM": _LATENT,
    "Glm4MoeLiteForCausalLM": _LATENT,
    "KimiK25ForConditionalGeneration": _LATENT,
    "KimiLinearForCausalLM": _KIMI,
    "KimiK3ForConditionalGeneration": _KIMI,
    "GptOssForCausalLM": _GPT_OSS,
    "Llama4ForCausalLM": _LLAMA4,
    "Llama4ForConditionalGeneration": _LLAMA4,
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA,
    "Gemma3ForConditionalGeneration": _GEMMA,
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "NemotronHForCausalLM": _NEMOTRON_H,
    "DeciLMForCausalLM": Family(nemotron_nas_layers),
    "Glm4MoeForCausalLM": _PLAIN,
    "Phi3ForCausalLM": _PLAIN,
    "PhiMoEForCausalLM": _PHI_MOE,
    "OPTForCausalLM": _GPT2,
    "GPT2LMHeadModel": _GPT2,
    "GPTBigCodeForCausalLM": _GPT2,
    "GPTNeoXForCausalLM": _PLAIN_MLP,
    "GPTJForCausalLM": _PLAIN_MLP,
    "BloomForCausalLM": _GPT2,
    "FalconForCausalLM": _GPT2,
    "MPTForCausalLM": _GPT2,
    "PhiForCausalLM": _PLAIN_MLP,
    "Starcoder2ForCausalLM": _PLAIN_MLP,
    "StableLmForCausalLM": _PLAIN,
    "SmolLM3ForCausalLM": _PLAIN,
    "InternLM2ForCausalLM": _PLAIN,
    "OlmoForCausalLM": _PLAIN,
    "GraniteForCausalLM": _PLAIN,
    "GraniteMoeForCausalLM": _everywhere(dense_layers, DecoderTraits(moe_name="block_sparse_moe")),
    "Olmo2ForCausalLM": _PLAIN,
    "SeedOssForCausalLM": _PLAIN,
    "Step3p5ForCausalLM": _PLAIN,
    "Step3p7FlashForCausalLM": _PLAIN,
}


_BY_MODEL_TYPE: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "llama4": "Llama4ForConditionalGeneration",
    "llama4_text": "Llama4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "granite": "GraniteForCausalLM",
}
"""vLLM's class for a `config.json` that has a `model_type` and no `architectures`."""


def read_model(config: Mapping[str, Any], model: str, dtype: str = "auto") -> ModelShape:
    """Return the shape of the model that a `config.json` describes.

    `dtype` is the value of --dtype. Raises EngineError, in one line, for an architecture or a layer kind that is not
    modelled and for a key that is missing or impossible.
    """
    top = ConfigKeys(model, with_usual_names(config))
    text = config.get("text_config") or config.get("language_config")
    keys = ConfigKeys(model, with_usual_names(text)) if isinstance(text, Mapping) else top
    model_type = top.text("model_type")
    architecture = next((str(name) for name in top.items("architectures")), _BY_MODEL_TYPE.get(model_type, ""))
    if not architecture:
        raise EngineError(
            f"{model}: architectures must name vLLM's class of the model, got no such key and model_type {model_type!r}"
        )
    family = FAMILIES.get(architecture)
    if family is None:
        raise EngineError(f"{model}: the architecture {architecture} is not modelled, so its layer kinds are not known")
    hidden = keys.positive("hidden_size")
    vision = vision_parameters(top, hidden)
    return ModelShape(
        model=model,
        hidden_size=hidden,
        vocab_size=keys.positive("vocab_size"),
        is_tied=_is_tied(top, keys, family),
        layers=family.reader(keys, family.traits),
        layer_embedding_size=layer_embedding_size(keys) * keys.count("num_hidden_layers", default=0),
        dtype=_dtype(top, keys, dtype),
        vision_parameters=vision.sharded,
        vision_replicated=vision.replicated,
        architecture=architecture,
        embeds_everywhere=family.embeds_everywhere,
        has_heads_everywhere=family.has_heads_everywhere,
    )


def _is_tied(top: ConfigKeys, keys: ConfigKeys, family: Family) -> bool:
    if top.has("tie_word_embeddings"):
        return top.flag("tie_word_embeddings")
    return keys.flag("tie_word_embeddings", family.is_tied)


def _dtype(top: ConfigKeys, keys: ConfigKeys, requested: str) -> str:
    """Return the precision of the model: what was requested, else the config's; 32 bits run as 16, as in vLLM."""
    if requested != "auto":
        if requested not in DTYPE_BYTES:
            raise EngineError(f"--dtype must be one of auto, {', '.join(DTYPE_BYTES)}, got {requested!r}")
        return requested
    places = (top, keys, top.object("vision_config"))
    found = next(
        (place.text(key) for place in places for key in ("dtype", "torch_dtype") if place.has(key)), "float32"
    ).removeprefix("torch.")
    if found not in DTYPE_BYTES:
        raise EngineError(f"{top.model}: dtype must be one of {', '.join(DTYPE_BYTES)}, got {found!r}")
    return "bfloat16" if found in ("float32", "float") else found
