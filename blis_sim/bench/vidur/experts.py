"""Models with experts as SimAI has them: their names in AICB's tables, their memory, and the KV cache of a prompt.

Facts: vidur-alibabacloud, vidur/utils/param_counter.py and vidur/entities/replica.py.
"""

from dataclasses import dataclass

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


DEEPSEEK = ExpertModel(
    aicb_name="DeepSeek-671B",
    catalogue_name="deepseek-ai/deepseek-v3",
    hidden_size=7168,
    num_layers=61,
    num_heads=128,
    num_kv_heads=128,
    head_dim=128,
    num_experts=256,
    expert_size=2048,
    shared_experts=1,
    dense_layers=3,
    dense_experts=9,
    q_lora_rank=1536,
    kv_lora_rank=512,
    rope_head_dim=64,
)
QWEN_MOE = ExpertModel(
    aicb_name="Qwen3-Moe-235B",
    catalogue_name="qwen/qwen3-235b-a22b",
    hidden_size=4096,
    num_layers=94,
    num_heads=64,
    num_kv_heads=4,
    head_dim=128,
    num_experts=128,
    expert_size=1536,
)
QWEN_NEXT = ExpertModel(
    aicb_name="Qwen3-Next-80B",
    catalogue_name="qwen/qwen3-next-80b-a3b-instruct",
    hidden_size=2048,
    num_layers=48,
    num_heads=16,
    num_kv_heads=2,
    head_dim=256,
    num_experts=512,
    expert_size=512,
    shared_experts=1,
    full_attention_interval=4,
    linear_key_heads=16,
    linear_value_heads=32,
    linear_head_dim=128,
    linear_kernel=4,
)
