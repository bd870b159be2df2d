"""Reads a Hugging Face `config.json`: typed access to its keys, and the architecture of a model of any family."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.engine.specs import Checkpoint, ModelSpec

_MAX_COUNT = 10**9
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """The keys of one object of a `config.json`. Every error names the model and the key.

    A key whose value is null counts as missing.
    """

    model: str
    keys: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Return whether `key` is present with a value other than null."""
        return self.keys.get(key) is not None

    def count(self, *names: str, default: int | None = None) -> int:
        """Return the whole number under the first of `names` that is present, else `default`.

        Raises EngineError for a value that is no whole number from 0 to 1e9, and without a default for a missing key.
        """
        for name in names:
            value = self.keys.get(name)
            if value is None:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= _MAX_COUNT or value != int(value):
                raise EngineError(
                    f"{self.model}: {name} must be a whole number from 0 to {_MAX_COUNT}, got {_shown(value)}"
                )
            return int(value)
        if default is None:
            raise EngineError(f"{self.model}: {names[0]} must be a number of at least 1, got no such key")
        return default

    def positive(self, *names: str) -> int:
        """Return the whole number under the first of `names` that is present; EngineError for 0 or no such key."""
        value = self.count(*names)
        if value < 1:
            raise EngineError(f"{self.model}: {names[0]} must be a number of at least 1, got {value}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """Return the boolean under `key`."""
        value = self.keys.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise EngineError(f"{self.model}: {key} must be true or false, got {_shown(value)}")
        return value

    def text(self, key: str, default: str = "") -> str:
        """Return the string under `key`."""
        value = self.keys.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise EngineError(f"{self.model}: {key} must be a string, got {_shown(value)}")
        return value

    def items(self, key: str) -> list[Any]:
        """Return the list under `key`, empty when it is missing."""
        value = self.keys.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise EngineError(f"{self.model}: {key} must be a list, got {_shown(value)}")
        return value

    def per_layer(self, key: str, num_layers: int) -> list[Any]:
        """Return the list under `key`, empty when it is missing; EngineError for a list with fewer than all layers."""
        values = self.items(key)
        if values and len(values) < num_layers:
            raise EngineError(
                f"{self.model}: {key} must have an entry for each of {num_layers} layers, got {len(values)}"
            )
        return values

    def object(self, key: str) -> "ConfigKeys":
        """Return the keys of the object under `key`, none when it is missing."""
        value = self.keys.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise EngineError(f"{self.model}: {key} must be an object, got {_shown(value)}")
        return ConfigKeys(f"{self.model}: {key}", value or {})


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


BYTES_OF_DTYPE: Mapping[str, float] = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "int8": 1.0,
    "uint8": 1.0,
    "fp8": 1.0,
    "int4": 1.0,
    "nf4": 1.0,
}

MAX_LAYERS = 10_000
"""Most layers of a model: the memory of each is planned on its own."""
MAX_SIZE = 10**7
"""No width, number of layers, heads or experts of a model is larger."""
MAX_TOKENS = 10**12
"""No vocabulary and no context window has more tokens."""
_BYTES_WITHOUT_DTYPE = 2.0
"""vLLM runs a checkpoint that states no type in 16 bits."""
_MAX_ROPE_FACTOR = 10**6
_MAX_BITS = 1024

_EXPERT_COUNTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts", "num_routed_experts")
_CHOSEN_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k", "experts_per_token")
ROPE_KEYS = ("rope_scaling", "rope_parameters")
"""Keys of rope scaling: the former one, and that of transformers 5."""
_UNSCALED_ROPE = ("su", "longrope", "llama3")
_WEIGHT_BITS_IN_NAME = re.compile(r"(?:^|[._/-])w(\d+)a\d+(?=$|[._/-])")
_FP8_IN_NAME = re.compile(r"(?:^|[._/-])fp8(?=$|[._/-])")


_OTHER_NAMES: Mapping[str, Sequence[str]] = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "decoder_layers"),
    "num_attention_heads": ("n_head", "n_heads", "decoder_attention_heads"),
    "intermediate_size": ("n_inner", "ffn_dim", "decoder_ffn_dim"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "max_target_positions"),
    "hidden_act": ("activation_function",),
}
"""Names under which classes of transformers keep the sizes that others keep under the first."""
_PLAIN_MLP_TYPES = frozenset({"bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gptj", "gpt_neo", "mpt"})
"""Model types with an MLP of two matrices, four times as wide as the model unless the config states a width."""


def with_usual_names(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config with its sizes under the usual names, such as `hidden_size` for `n_embd` of GPT-2."""
    found = dict(config)
    for name, others in _OTHER_NAMES.items():
        if found.get(name) is None:
            value = next((found[each] for each in others if found.get(each) is not None), None)
            if value is not None:
                found[name] = value
    if str(found.get("model_type")) in _PLAIN_MLP_TYPES:
        found["hidden_act"] = found.get("hidden_act") or "gelu"
        width = found.get("hidden_size")
        if found.get("intermediate_size") is None and isinstance(width, int):
            found["intermediate_size"] = 4 * width
        if found.get("multi_query") is True and not found.get("new_decoder_architecture"):
            found["num_key_value_heads"] = 1
    return found


def parse_hf_config(
    config: Mapping[str, Any], name: str, hf_quant_config: Mapping[str, Any] | None = None
) -> ModelSpec:
    """The sizes in `config`; keys of a `text_config` win over the top level, unknown keys are ignored.

    Weight width comes from `quantization_config`, else from `name` (`w4a16`, `fp8`), else from the compute type. A key
    whose value is null counts as missing. Raises EngineError, with the key named, for a size that is missing, of
    another type or too large.
    """
    keys = with_usual_names({**config, **_mapping(config, name, "text_config")})
    num_heads = _positive(keys, name, "num_attention_heads")
    num_experts = _num_experts(keys, name)
    intermediate_size = _first_count(keys, name, "intermediate_size", "ffn_hidden_size")
    moe_intermediate_size = _count(keys, name, "moe_intermediate_size")
    if not intermediate_size and keys.get("intermediate_size") is None:
        intermediate_size = moe_intermediate_size or _mean_block_width(keys, name)
    bytes_per_activation = _activation_bytes(keys, name)
    hidden_act = keys.get("hidden_act")
    ties = keys.get("tie_word_embeddings")
    if not isinstance(ties, bool | None):
        raise EngineError(f"{name}: tie_word_embeddings must be true or false, got {_shown(ties)}")
    return ModelSpec(
        name=name,
        num_layers=_num_layers(keys, name),
        hidden_size=_positive(keys, name, "hidden_size"),
        num_heads=num_heads,
        num_kv_heads=_first_count(keys, name, "num_key_value_heads", "num_kv_heads", "multi_query_group_num")
        or num_heads,
        vocab_size=_count(keys, name, "vocab_size", MAX_TOKENS),
        intermediate_size=intermediate_size,
        head_dim=_count(keys, name, "head_dim") or None,
        hidden_act=hidden_act if isinstance(hidden_act, str) else "",
        tie_word_embeddings=ties is True,
        num_experts=num_experts,
        num_experts_per_tok=_experts_per_token(keys, name, num_experts),
        moe_intermediate_size=moe_intermediate_size,
        shared_expert_size=_shared_expert_size(keys, name, moe_intermediate_size or intermediate_size),
        interleave_moe_layer_step=_count(keys, name, "interleave_moe_layer_step"),
        intermediate_size_mlp=_count(keys, name, "intermediate_size_mlp"),
        first_k_dense_replace=_count(keys, name, "first_k_dense_replace"),
        kv_lora_rank=_count(keys, name, "kv_lora_rank"),
        qk_rope_head_dim=_count(keys, name, "qk_rope_head_dim"),
        bytes_per_activation=bytes_per_activation,
        bytes_per_weight=_quantised_bytes(_mapping(keys, name, "quantization_config"))
        or _weight_bytes_in_name(name)
        or bytes_per_activation,
        max_model_len=_context_window(keys, name),
        checkpoint=Checkpoint(config, hf_quant_config),
    )


def context_window(config: Mapping[str, Any], name: str) -> int:
    """Return the context window that a `config.json` states, after rope scaling; 0 when it states none."""
    return _context_window(with_usual_names({**config, **_mapping(config, name, "text_config")}), name)


def _mapping(keys: Mapping[str, Any], name: str, key: str) -> Mapping[str, Any]:
    """The object under `key`, empty when absent."""
    value = keys.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise EngineError(f"{name}: {key} must be an object, got {_shown(value)}")
    return value or {}


def _number(keys: Mapping[str, Any], name: str, key: str) -> float:
    """The JSON number under `key`, 0 when absent."""
    value = keys.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EngineError(f"{name}: {key} must be a number, got {_shown(value)}")
    return value


def _count(keys: Mapping[str, Any], name: str, key: str, at_most: int = MAX_SIZE) -> int:
    """The whole number under `key`, 0 when absent. A list that gives each layer the same number is that number."""
    value = keys.get(key)
    if isinstance(value, list) and value and value[0] is not None and value.count(value[0]) == len(value):
        keys = {key: value[0]}
    number = _number(keys, name, key)
    if isinstance(number, float) and not math.isfinite(number):
        raise EngineError(f"{name}: {key} must be a finite number, got {number}")
    if number < 0:
        raise EngineError(f"{name}: {key} must be at least 0, got {_shown(number)}")
    if number > at_most:
        raise EngineError(f"{name}: {key} must be at most {at_most}, got {_shown(number)}")
    if number != int(number):
        raise EngineError(f"{name}: {key} must be a whole number, got {_shown(number)}")
    return int(number)


def _first_count(keys: Mapping[str, Any], name: str, *candidates: str) -> int:
    return next((count for key in candidates if (count := _count(keys, name, key))), 0)


def _positive(keys: Mapping[str, Any], name: str, key: str) -> int:
    count = _count(keys, name, key)
    if count == 0:
        found = repr(keys[key]) if key in keys else "no such key"
        raise EngineError(f"{name}: {key} must be a number of at least 1, got {found}")
    return count


def _num_layers(keys: Mapping[str, Any], name: str) -> int:
    """The layers a config counts, else those that it lists: some hybrids name the kind of every layer instead."""
    listed = keys.get("hybrid_override_pattern") or keys.get("layers_block_type")
    if keys.get("num_hidden_layers") is None and isinstance(listed, str | list):
        return len(listed)
    _count(keys, name, "num_hidden_layers", MAX_LAYERS)
    return _positive(keys, name, "num_hidden_layers")


def _mean_block_width(keys: Mapping[str, Any], name: str) -> int:
    """The mean MLP width of a config that states it for every layer as a multiple of the hidden size, 0 without one."""
    blocks = keys.get("block_configs")
    if not isinstance(blocks, list) or not blocks:
        return 0
    parts = [_mapping(block, name, "ffn") for block in blocks if isinstance(block, Mapping)]
    factor = sum(_number(part, name, "ffn_mult") for part in parts) / len(blocks)
    return int(2 * factor * _count(keys, name, "hidden_size") / 3)


def _num_experts(keys: Mapping[str, Any], name: str) -> int:
    """The first expert count that makes a mixture; a model with one expert is dense."""
    return next((count for key in _EXPERT_COUNTS if (count := _count(keys, name, key)) >= 2), 0)


def _experts_per_token(keys: Mapping[str, Any], name: str, num_experts: int) -> int:
    """Return how many experts a router chooses; a model that does not state its number of experts is not checked."""
    chosen = _first_count(keys, name, *_CHOSEN_EXPERTS)
    if num_experts and chosen > num_experts:
        raise EngineError(f"{name}: num_experts_per_tok must be at most the {num_experts} experts, got {chosen}")
    return chosen


def _shared_expert_size(keys: Mapping[str, Any], name: str, expert_size: int) -> int:
    declared = _count(keys, name, "shared_expert_intermediate_size")
    return declared or _count(keys, name, "n_shared_experts") * expert_size


def _activation_bytes(keys: Mapping[str, Any], name: str) -> float:
    key = "torch_dtype" if isinstance(keys.get("torch_dtype"), str) else "dtype"
    dtype = keys.get(key)
    if dtype is None:
        return _BYTES_WITHOUT_DTYPE
    width = BYTES_OF_DTYPE.get(dtype) if isinstance(dtype, str) else None
    if width is None:
        raise EngineError(f"{name}: {key} must be one of {', '.join(BYTES_OF_DTYPE)}, got {dtype!r}")
    return width


def _quantised_bytes(quantisation: Mapping[str, Any]) -> float:
    bits = _bits(quantisation.get("bits"))
    if bits > 0:
        return bits / 8
    method = quantisation.get("quant_method")
    if method == "fp8":
        return 1.0
    return _compressed_tensors_bytes(quantisation) if method == "compressed-tensors" else 0.0


def _compressed_tensors_bytes(quantisation: Mapping[str, Any]) -> float:
    """Width in the first group, by name, that states one."""
    groups = quantisation.get("config_groups")
    if not isinstance(groups, Mapping):
        return 0.0
    for group in sorted(groups, key=str):
        weights = groups[group].get("weights") if isinstance(groups[group], Mapping) else None
        bits = _bits(weights.get("num_bits")) if isinstance(weights, Mapping) else 0.0
        if bits > 0:
            return bits / 8
    return 0.0


def _bits(value: object) -> float:
    if isinstance(value, str):
        value = float(value) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value.strip(), re.ASCII) else 0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value <= _MAX_BITS else 0.0  # type: ignore[operator, arg-type]


def _weight_bytes_in_name(name: str) -> float:
    lowered = name.lower()
    bits = _WEIGHT_BITS_IN_NAME.search(lowered)
    if bits:
        return int(bits[1]) / 8
    return 1.0 if _FP8_IN_NAME.search(lowered) else 0.0


def _context_window(keys: Mapping[str, Any], name: str) -> int:
    """`max_position_embeddings`, stretched by rope scaling where the config's number does not include it yet."""
    base = _count(keys, name, "max_position_embeddings", MAX_TOKENS)
    key = next((key for key in ROPE_KEYS if keys.get(key)), ROPE_KEYS[0])
    rope = _mapping(keys, name, key)
    if "gemma3" in str(keys.get("model_type", "")) or not rope:
        return base
    kind = rope.get("type") or rope.get("rope_type")
    scaling = f"{name}: {key}"
    factor = _number(rope, scaling, "factor")
    if kind in _UNSCALED_ROPE or not factor > 1:
        return base
    if not factor <= _MAX_ROPE_FACTOR:
        raise EngineError(f"{scaling}: factor must be at most {_MAX_ROPE_FACTOR}, got {_shown(factor)}")
    original = _count(rope, scaling, "original_max_position_embeddings", MAX_TOKENS) if kind == "yarn" else 0
    return int((original or base) * factor)
