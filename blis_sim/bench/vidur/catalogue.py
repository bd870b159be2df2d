"""The catalogues of Vidur and SimAI: models, GPUs and nodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blis_sim.bench.errors import BenchError
from blis_sim.bench.vidur.experts import DEEPSEEK, QWEN_MOE, QWEN_NEXT, ExpertModel


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
    VidurModel("deepseek-671B", 61, 128, 128, 7168, 18432, 129280, experts=DEEPSEEK),
    VidurModel("qwen3-moe-235B", 94, 64, 4, 4096, 12288, 151936, experts=QWEN_MOE),
    VidurModel("qwen3-next-80B", 48, 16, 2, 2048, 5120, 151936, experts=QWEN_NEXT),
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
    """Return what a table has under a name. Raises BenchError."""
    if name not in table:
        raise BenchError(f"{flag} must be one of {', '.join(table)}, got {name!r}")
    return table[name]
