"""A language model and an accelerator, as far as time and memory depend on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_HOPPER = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """Peak rates of one GPU and the fraction of the compute peak that inference reaches.

    `tflops` and its kin are 1e12 dense operations per second in 16, 8 and 4 bits (0: not in that width), without
    sparsity. `bandwidth_tb_s` is 1e12 bytes per second, `memory_gib` is 2**30 bytes as the GPU is sold and
    `cuda_memory_gib` as CUDA reports it. `compute_capability` is NVIDIA's, such as 9.0 for Hopper, or what ROCm reports
    in its place. A utilisation, a memory or a capability of 0 means it is not known.

    Links carry 1e9 bytes per second in each direction for one GPU. `nvlink_gb_s` is the rate among the `nvlink_gpus`
    that NVLink or another fabric of the maker joins (0: none). `pcie_gb_s` to the CPU and to GPUs that NVLink does not
    reach, and `network_gb_s` to another node. A node of the usual server has `gpus_per_node` GPUs.
    """

    name: str
    tflops: float
    bandwidth_tb_s: float
    tflops_fp8: float = 0.0
    tflops_fp4: float = 0.0
    tflops_int8: float = 0.0
    mfu_prefill: float = 0.0
    mfu_decode: float = 0.0
    memory_gib: float = 0.0
    compute_capability: float = 0.0
    cuda_memory_gib: float = 0.0
    nvlink_gb_s: float = 0.0
    nvlink_gpus: int = 1
    pcie_gb_s: float = 0.0
    network_gb_s: float = 0.0
    gpus_per_node: int = 8

    @property
    def is_hopper(self) -> bool:
        return self.compute_capability // 1 == _HOPPER

    def peak_tflops(self, bytes_per_weight: float) -> float:
        """The peak for weights of that width: FP8 only for exactly one byte and where the GPU has it."""
        return self.tflops_fp8 if bytes_per_weight == 1.0 and self.tflops_fp8 > 0 else self.tflops

    def link_gb_s(self, num_gpus: int) -> float:
        """Return the rate of the slowest link, in each direction, that an exchange among `num_gpus` crosses.

        GPUs fill a node before the next one; 0 means it is not known.
        """
        if self.nvlink_gb_s and num_gpus <= self.nvlink_gpus:
            return self.nvlink_gb_s
        return self.pcie_gb_s if num_gpus <= self.gpus_per_node else self.network_gb_s


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Configuration files of a checkpoint: its `config.json`, and `hf_quant_config.json` where it has one.

    It is compared by identity, so that what follows from it can be kept.
    """

    config: Mapping[str, Any]
    hf_quant_config: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Sizes read from a model's `config.json`; a size of 0 means the model has no such part.

    `bytes_per_activation` is the width of the compute type, which the KV cache also has unless `bytes_per_kv_element`
    is above 0. `bytes_per_weight` is the width of a stored weight, smaller when the model is quantised. `max_model_len`
    is the context window after rope scaling, 0 when unknown. `checkpoint` is what the model was read from.
    `attention_head_size` is the head size for step times, `cache_head_dim` the one for memory.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    intermediate_size: int
    head_dim: int | None = None
    hidden_act: str = ""
    tie_word_embeddings: bool = False
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    shared_expert_size: int = 0
    interleave_moe_layer_step: int = 0
    intermediate_size_mlp: int = 0
    first_k_dense_replace: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    bytes_per_activation: float = 2.0
    bytes_per_weight: float = 2.0
    bytes_per_kv_element: float = 0.0
    max_model_len: int = 0
    checkpoint: Checkpoint | None = field(default=None, compare=False, repr=False)

    @property
    def is_moe(self) -> bool:
        """Whether tokens are routed to experts."""
        return self.num_experts >= 2

    @property
    def is_mla(self) -> bool:
        """Whether the KV cache holds a compressed latent instead of keys and values."""
        return self.kv_lora_rank > 0

    @property
    def lacks_expert_count(self) -> bool:
        """Whether the config has experts but not their number, so that weights cannot be counted."""
        return not self.is_moe and (self.num_experts_per_tok > 0 or self.moe_intermediate_size > 0)

    @property
    def num_moe_layers(self) -> int:
        """Layers with experts. With an interleave step s every (s+1)th layer has them."""
        if not self.is_moe:
            return 0
        step = self.interleave_moe_layer_step
        return self.num_layers // (step + 1) if step > 0 else self.num_layers

    @property
    def num_dense_layers(self) -> int:
        """Layers with an ordinary MLP."""
        return self.num_layers - self.num_moe_layers

    @property
    def interleaves_moe(self) -> bool:
        """Whether layers with and without experts alternate."""
        return self.is_moe and self.interleave_moe_layer_step > 0

    @property
    def expert_size(self) -> int:
        """Intermediate size of one expert."""
        return self.moe_intermediate_size or self.intermediate_size

    @property
    def dense_size(self) -> int:
        """Intermediate size of an ordinary MLP layer."""
        return self.intermediate_size_mlp or self.intermediate_size

    @property
    def cache_head_dim(self) -> int:
        """Head size in the KV cache and in the weights: the declared one, else an equal share of the hidden size."""
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def attention_head_size(self) -> int | None:
        """Declared size of a head of queries, keys and values, which together may be wider or narrower than the hidden
        size. None stands for no declared size, and for a latent of low rank between hidden size and heads."""
        return None if self.is_mla or self.qk_rope_head_dim else self.head_dim or None
