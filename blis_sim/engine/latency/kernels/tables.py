"""Tables of measured kernels: those of the distribution `aiconfigurator-core`, queried one operation at a time."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.kernels.operations import (
    AllReduce,
    AttentionOperation,
    DeltaNet,
    Experts,
    HeadAttention,
    LatentAttention,
    Matmul,
    SparseLatentAttention,
)

MeasuredOperation = Matmul | Experts | AllReduce

DISTRIBUTION, VERSION = "aiconfigurator-core", "0.12.0"
INSTALL = "pip install 'blis-mockserve[kernels]'"
SYSTEMS: Mapping[str, str] = {
    "A100-SXM": "a100_sxm",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "H100": "h100_sxm",
    "H200": "h200_sxm",
    "L40S": "l40s",
    "RTX-PRO-6000": "rtx_pro_6000_server",
}
"""Names of the catalogue's GPUs in the tables."""
VLLM, TRTLLM, SGLANG = "vllm", "trtllm", "sglang"
BACKENDS: Mapping[str, str] = {VLLM: "0.24.0", TRTLLM: "1.3.0rc20", SGLANG: "0.5.14"}
"""Engines with measured kernels, and the version measured of each."""
OLDER_BACKENDS: Mapping[tuple[str, str], str] = {
    ("a100_sxm", VLLM): "0.14.0",
    ("a100_sxm", TRTLLM): "1.0.0",
    ("a100_sxm", SGLANG): "0.5.10",
}
_SPEC_VERSION, _CONFIG_VERSION = 15, 1
_LANES = (
    "vllm_flash_attn_fa3",
    "vllm_flash_attn_fa4",
    "vllm_flash_attn_fa2",
    "vllm_flash_attn",
    "vllm_flashinfer_trtllmprefill",
    "vllm_flashinfer_trtllmdecode",
    "vllm_flashinfer_fiprefill",
    "vllm_flashinfer_fidecode",
    "vllm_triton_attn",
    "default",
)
"""Attention kernels that were measured, in vLLM's order of preference."""
MXFP4_WITH_MXFP8 = "mxfp4 with mxfp8"
"""Experts in MXFP4 whose inputs are brought to MXFP8."""
_LATENT_WEIGHTS = {"fp8": "fp8_block", "block fp8": "fp8_block", "nvfp4": "bfloat16"}
"""Weight types in the tables of latent attention beside 16 bits."""
_MATMUL_WEIGHTS = {
    "bfloat16": "bfloat16",
    "fp8": "fp8",
    "block fp8": "fp8_block",
    "nvfp4": "nvfp4",
    "int8": "int8_wo",
    "int4": "int4_wo",
}
_EXPERT_WEIGHTS = {
    "bfloat16": "bfloat16",
    "fp8": "fp8",
    "block fp8": "fp8_block",
    "nvfp4": "nvfp4",
    "int4": "int4_wo",
    "mxfp4": "w4a16_mxfp4",
    MXFP4_WITH_MXFP8: "w4a8_mxfp4_mxfp8",
}
_COMPUTED = "sol"
"""The source of times that the distribution computes where nothing was measured."""
_TOKENS_CHOSEN = 2048
"""Number of tokens that an indexer of sparse attention chooses. Tables hold nothing else."""
_EVENLY_CHOSEN = 16
"""Most experts of a model that are chosen about equally often, as they are trained; more experts are not."""


def are_installed() -> bool:
    """Whether the tables can be read here."""
    return find_spec("aiconfigurator_core") is not None


class Tables:
    """The tables of one GPU. Times are microseconds of one execution, on one GPU of those that share the work."""

    def __init__(self, gpu: str) -> None:
        if gpu not in SYSTEMS:
            raise EngineError(f"no kernels were measured on {gpu}, only on {', '.join(SYSTEMS)}")
        if not are_installed():
            raise EngineError(f"kernel times of {gpu} need the tables of {DISTRIBUTION}: {INSTALL}")
        self._system = SYSTEMS[gpu]

    def token_us(self, operation: MeasuredOperation, num_tokens: int, backend: str = VLLM) -> float:
        """Return the time of an operation on `num_tokens` tokens. Raises EngineError when it was not measured."""
        return self._looked_up_us(operation, backend, token_spec(operation), (num_tokens, 1, 0), is_context=True)

    def context_us(
        self, attention: AttentionOperation, requests: int, new: int, before: int, backend: str = VLLM
    ) -> float:
        """Time of the attention of `requests` prompts with `new` tokens each, after `before` tokens."""
        before = 0 if isinstance(attention, DeltaNet) else before
        return self._looked_up_us(attention, backend, context_spec(attention), (requests, new, before), is_context=True)

    def decode_us(self, attention: AttentionOperation, requests: int, context: int, backend: str = VLLM) -> float:
        """Time of the attention of `requests` that decode, each with `context` tokens, the new one included."""
        context = 1 if isinstance(attention, DeltaNet) else context
        return self._looked_up_us(attention, backend, decode_spec(attention), (requests, context, 0), is_context=False)

    def _looked_up_us(
        self,
        operation: MeasuredOperation | AttentionOperation,
        backend: str,
        spec: str,
        sizes: tuple[int, int, int],
        *,
        is_context: bool,
    ) -> float:
        """Return the time of a batch of `sizes`: how many, the tokens of each, and those before them."""
        engine = _engine(self._system, backend)
        try:
            found = engine.evaluate_ops_json(spec, is_context, *sizes, 1.0, None)
        except (ValueError, RuntimeError, KeyError):
            found = None
        if found is None or any(each[3] == _COMPUTED for each in found):
            raise EngineError(f"the tables of {self._system} ({backend}) have no times of {operation} at {sizes}")
        return float(sum(each[1] for each in found)) * 1e3


@cache
def _engine(system: str, backend: str) -> Any:
    """Return the reader of a backend's tables on a system, without a model."""
    import aiconfigurator_core

    version = OLDER_BACKENDS.get((system, backend), BACKENDS[backend])
    unset = ("kv_block_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "cp_size", "weight_dtype", "moe_dtype")
    engine: dict[str, object] = {
        "schema_version": _CONFIG_VERSION,
        "model_name": "blis",
        "system_name": system,
        "systems_path": None,
        "backend": backend,
        "backend_version": version,
        "tp_size": 1,
        "pp_size": 1,
        **dict.fromkeys((*unset, "activation_dtype", "kv_cache_dtype", "transfer_policy")),
        "enable_shared_layer": True,
        "strict_provenance": False,
        "database_mode": "SILICON",
        "tolerate_dirless_version": False,
        "extra": {},
    }
    spec = {"schema_version": _SPEC_VERSION, "engine": engine, "context_ops": [], "generation_ops": []}
    packed = aiconfigurator_core.engine_spec_bincode_from_json(json.dumps(spec))
    return aiconfigurator_core.AicEngine.from_spec(bytes(packed), None)


@cache
def token_spec(operation: MeasuredOperation) -> str:
    """Return an operation as the tables spell it."""
    if isinstance(operation, Matmul):
        return _spec(
            "Gemm",
            n=operation.rows,
            k=operation.columns,
            quant_mode=_quantised(_MATMUL_WEIGHTS, operation.weights),
            scale_num_tokens=1,
            low_precision_input=False,
            seq_split=1,
            below_grid_sol=False,
        )
    if isinstance(operation, AllReduce):
        return _spec("CustomAllReduce", hidden_size=operation.width, tp_size=operation.gpus, quant="half", seq_split=1)
    return _expert_spec(operation)


def _expert_spec(experts: Experts) -> str:
    return _spec(
        "Moe",
        hidden_size=experts.hidden_size,
        inter_size=experts.inner_size,
        topk=experts.chosen,
        num_experts=experts.experts,
        moe_tp_size=experts.tp,
        moe_ep_size=experts.ep,
        attention_dp_size=1,
        quant_mode=_quantised(_EXPERT_WEIGHTS, experts.weights),
        workload_distribution="balanced" if experts.experts <= _EVENLY_CHOSEN else "power_law_1.2",
        is_gated=experts.has_gate,
        moe_backend=None,
        enable_eplb=False,
        is_context=True,
    )


@cache
def context_spec(attention: AttentionOperation) -> str:
    """Return the attention of prompts as the tables spell it."""
    if isinstance(attention, SparseLatentAttention):
        return _sparse_spec("DsaContext", attention)
    if isinstance(attention, DeltaNet):
        return _delta_net_spec(attention, "context", ("causal_conv1d_fn", "chunk_gated_delta_rule"))
    if isinstance(attention, LatentAttention):
        return _latent_spec("MlaModuleContext", attention)
    of_prompts = {"fmha_quant_mode": "bfloat16", "use_qk_norm": attention.has_norm, "cp_size": 1}
    return _full_spec("ContextAttention", attention, **of_prompts)


@cache
def decode_spec(attention: AttentionOperation) -> str:
    """Return the attention of requests that decode as the tables spell it."""
    if isinstance(attention, SparseLatentAttention):
        return _sparse_spec("DsaGeneration", attention)
    if isinstance(attention, DeltaNet):
        kernels = ("causal_conv1d_update", "fused_sigmoid_gating_delta_rule_update")
        return _delta_net_spec(attention, "generation", kernels)
    if isinstance(attention, LatentAttention):
        return _latent_spec("MlaModuleGeneration", attention)
    return _full_spec("GenerationAttention", attention)


def _full_spec(kind: str, attention: HeadAttention, **more: object) -> str:
    """Return attention with keys and values for each head; the order of the members is that of the tables."""
    return _spec(
        kind,
        n=attention.heads,
        n_kv=attention.kv_heads,
        head_size=attention.head_size,
        window_size=attention.window_tokens,
        kv_cache_dtype=attention.kv_dtype,
        **more,
        lane_order=_LANES,
    )


def _latent_spec(kind: str, attention: LatentAttention) -> str:
    return _spec(
        kind,
        num_heads=attention.heads,
        kv_cache_dtype=attention.kv_dtype,
        fmha_quant_mode="bfloat16",
        gemm_quant_mode=_LATENT_WEIGHTS.get(attention.weights, "bfloat16"),
        native_num_heads=attention.all_heads,
    )


def _sparse_spec(kind: str, attention: SparseLatentAttention) -> str:
    return _spec(
        kind,
        num_heads=attention.heads,
        kv_cache_dtype=attention.kv_dtype,
        fmha_quant_mode="bfloat16",
        gemm_quant_mode="fp8_block",
        architecture=attention.architecture,
        index_topk=_TOKENS_CHOSEN,
    )


def _delta_net_spec(net: DeltaNet, phase: str, kernels: tuple[str, ...]) -> str:
    sizes = {
        "d_model": net.hidden_size, "d_conv": net.conv_kernel, "num_k_heads": net.key_heads,
        "head_k_dim": net.key_head_size, "num_v_heads": net.value_heads, "head_v_dim": net.value_head_size,
    }  # fmt: skip
    specs = [_fields("Gdn", kernel_source=kernel, phase=phase, **sizes) for kernel in kernels]
    return json.dumps(specs)


def _quantised(names: Mapping[str, str], weights: str) -> str:
    if weights not in names:
        raise EngineError(f"no kernels with weights in {weights} were measured, only in {', '.join(names)}")
    return names[weights]


def _spec(kind: str, **fields: object) -> str:
    return json.dumps([_fields(kind, **fields)])


def _fields(kind: str, **fields: object) -> dict[str, object]:
    return {kind: {"name": kind, "scale_factor": 1.0, **fields}}
