"""The catalogues of Vidur and SimAI: models, the memory of those with experts, GPUs and nodes.

Facts: vidur-alibabacloud, vidur/utils/param_counter.py and vidur/entities/replica.py.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from blis_sim.options import OptionError

FP8 = "fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertModel:
    """Sizes of a model with experts. Sizes of 0 mean that the model has no such part."""

    aicb_name: str
    catalogue_name: str
    """The model of our catalogue."""
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    expert_size: int
    shared_experts: int = 0
    dense_layers: int = 0
    dense_experts: int = 0
    """Experts that have as many weights as the MLP of a dense layer."""
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    full_attention_interval: int = 1
    """Only each such layer has full attention, the others have linear attention."""
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_head_dim: int = 0
    linear_kernel: int = 0

    @property
    def num_full_layers(self) -> int:
        """Layers with full attention."""
        return self.num_layers // self.full_attention_interval

    def kv_values_per_token(self) -> int:
        """Return the elements of the KV cache of a token in one layer with full attention."""
        if self.kv_lora_rank:
            return self.kv_lora_rank + self.rope_head_dim
        return 2 * self.num_kv_heads * self.head_dim

    def state_values(self) -> int:
        """Return the elements of the state of a request in one layer with linear attention."""
        keys, values = (heads * self.linear_head_dim for heads in (self.linear_key_heads, self.linear_value_heads))
        return values * self.linear_head_dim + (2 * keys + values) * max(self.linear_kernel - 1, 0)

    def kv_values(self, num_tokens: int) -> int:
        """Return the elements of the KV cache of a request."""
        full = self.num_full_layers
        return num_tokens * full * self.kv_values_per_token() + (self.num_layers - full) * self.state_values()

    def weight_bytes(self, tp: int, num_gpus: int, dtype: str) -> float:
        """Return the bytes of the layers on one of the GPUs that share the experts."""
        width = 1 if dtype == FP8 else 2
        expert = 3 * self.hidden_size * self.expert_size
        full, sparse = self.num_full_layers, self.num_layers - self.dense_layers
        attention = full * self._attention_weights() + (self.num_layers - full) * self._linear_weights()
        dense = self.dense_layers * expert * self.dense_experts
        experts = sparse * expert * (self.shared_experts + self.num_experts / num_gpus)
        return width * ((attention + dense) / tp + experts)

    def _attention_weights(self) -> int:
        hidden, heads = self.hidden_size, self.num_heads
        if not self.kv_lora_rank:
            return 2 * hidden * self.head_dim * (heads + self.num_kv_heads)
        q, kv, nope, rope, value = self.q_lora_rank, self.kv_lora_rank, self.head_dim, self.rope_head_dim, self.head_dim
        return (
            hidden * q + q * heads * (nope + rope) + hidden * kv + kv * heads * (nope + value) + hidden * heads * value
        )

    def _linear_weights(self) -> int:
        keys, values = (heads * self.linear_head_dim for heads in (self.linear_key_heads, self.linear_value_heads))
        return self.hidden_size * (2 * keys + 3 * values + 2 * self.linear_value_heads)


def _experts() -> dict[str, ExpertModel]:
    """Return the models of the table by Vidur's names."""
    found: dict[str, ExpertModel] = {}
    for row in csv.DictReader(files(__package__).joinpath("experts.csv").read_text().splitlines()):
        sizes: dict[str, Any] = {key: int(text) if text.isdecimal() else text for key, text in row.items()}
        name = sizes.pop("name")
        found[name] = ExpertModel(**sizes)
    return found


_EXPERTS = _experts()


@dataclass(frozen=True, slots=True)
class VidurModel:
    """Sizes of a model as Vidur has them."""

    name: str
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    embedding_dim: int
    mlp_hidden_dim: int
    vocab_size: int
    use_gated_mlp: bool = True
    post_attn_norm: bool = True
    experts: ExpertModel | None = None
    """The sizes that SimAI has for a model with experts."""

    @property
    def head_size(self) -> int:
        """Elements of one head."""
        return self.embedding_dim // self.num_q_heads

    def described(self) -> dict[str, Any]:
        """Return the model as `config.json` describes it."""
        sizes = ("num_layers", "num_q_heads", "num_kv_heads", "embedding_dim", "mlp_hidden_dim", "vocab_size")
        names = (*sizes, "use_gated_mlp", "post_attn_norm", "name")
        return {name: getattr(self, name) for name in names}


_MODELS = (
    VidurModel("meta-llama/Llama-2-7b-hf", 32, 32, 32, 4096, 11008, 32768),
    VidurModel("meta-llama/Llama-2-70b-hf", 80, 64, 8, 8192, 28672, 32768),
    VidurModel("meta-llama/Meta-Llama-3-8B", 32, 32, 8, 4096, 14336, 128256),
    VidurModel("meta-llama/Meta-Llama-3-70B", 80, 64, 8, 8192, 28672, 128256),
    VidurModel("codellama/CodeLlama-34b-Instruct-hf", 48, 64, 8, 8192, 22016, 32768),
    VidurModel("internlm/internlm-20b", 60, 40, 40, 5120, 13824, 103168),
    VidurModel("internlm/internlm2-20b", 48, 48, 8, 6144, 16384, 92544),
    VidurModel("Qwen/Qwen-72B", 80, 64, 64, 8192, 24576, 152064),
    VidurModel("microsoft/phi-2", 32, 32, 32, 2560, 10240, 51200, use_gated_mlp=False, post_attn_norm=False),
    VidurModel("NousResearch/Llama-2-7b-hf", 32, 32, 32, 4096, 11008, 32000),
    VidurModel("deepseek-671B", 61, 128, 128, 7168, 18432, 129280, experts=_EXPERTS["deepseek-671B"]),
    VidurModel("qwen3-moe-235B", 94, 64, 4, 4096, 12288, 151936, experts=_EXPERTS["qwen3-moe-235B"]),
    VidurModel("qwen3-next-80B", 48, 16, 2, 2048, 5120, 151936, experts=_EXPERTS["qwen3-next-80B"]),
)
MODELS: Mapping[str, VidurModel] = {model.name: model for model in _MODELS}

DEVICES: Mapping[str, tuple[float, int]] = {
    "a40": (150, 45),
    "a100": (312, 80),
    "h100": (1000, 80),
    "h800": (989, 80),
    "h20": (148, 141),
}
"""TFLOP/s at 16 bits, and GiB of memory, by the name of a GPU."""

NODES: Mapping[str, tuple[int, str]] = {
    "a40_pairwise_nvlink": (8, "a40"),
    "a100_pairwise_nvlink": (4, "a100"),
    "h100_pairwise_nvlink": (4, "h100"),
    "a100_dgx": (8, "a100"),
    "h100_dgx": (8, "h100"),
    "h800_dgx": (8, "h800"),
    "h20_dgx": (8, "h20"),
}
"""GPUs of a node and their kind, by the name of its network."""


def known(table: Mapping[str, Any], flag: str, name: str) -> Any:
    """Return what a table has under a name. Raises OptionError."""
    if name not in table:
        raise OptionError(f"{flag} must be one of {', '.join(table)}, got {name!r}")
    return table[name]
