"""The estimator of the distribution aiconfigurator-core 0.12.0, asked for one operation at a time."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.kernel_tables import MXFP4_WITH_MXFP8, MeasuredOperation
from blis_sim.engine.latency.operations import (
    TOKENS_CHOSEN,
    AllReduce,
    AttentionOperation,
    DeltaNet,
    Experts,
    HeadAttention,
    LatentAttention,
    Matmul,
    SparseLatentAttention,
)
from workshop.kernel_tables import (
    BACKENDS,
    EVENLY_CHOSEN,
    KERNELS_OF_HEADS,
    OLDER_BACKENDS,
    SGLANG,
    SYSTEMS,
    TRTLLM,
    VLLM,
)

ADDED_TO_PROMPTS_US = 13.21
"""Rotation and storing of keys, which the estimator adds to the attention of prompts as it was measured."""
_SPEC_VERSION, _CONFIG_VERSION = 15, 1
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


class Estimator:
    """The estimator for one GPU. Times are microseconds of one execution, as those of `Tables`."""

    def __init__(self, gpu: str) -> None:
        self._system = SYSTEMS[gpu]

    def token_us(self, operation: MeasuredOperation, num_tokens: int) -> float:
        """Return the time of an operation on `num_tokens` tokens. Raises EngineError when it was not measured."""
        backend = VLLM
        if isinstance(operation, Matmul) and operation.weights == "block fp8":
            backend = TRTLLM
        if isinstance(operation, Experts) and operation.weights == MXFP4_WITH_MXFP8:
            backend = SGLANG
        return self._looked_up_us(operation, backend, token_spec(operation), (num_tokens, 1, 0), is_context=True)

    def context_us(self, attention: AttentionOperation, requests: int, new: int, before: int) -> float:
        """Time of the attention of `requests` prompts with `new` tokens each, after `before` tokens."""
        before = 0 if isinstance(attention, DeltaNet) else before
        sizes = requests, new, before
        time_us = self._looked_up_us(attention, VLLM, context_spec(attention), sizes, is_context=True)
        return time_us - ADDED_TO_PROMPTS_US if isinstance(attention, HeadAttention) else time_us

    def decode_us(self, attention: AttentionOperation, requests: int, context: int) -> float:
        """Time of the attention of `requests` that decode, each with `context` tokens, the new one included."""
        backend = TRTLLM if isinstance(attention, LatentAttention) else VLLM
        backend = SGLANG if isinstance(attention, SparseLatentAttention) else backend
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
        time_us = 0.0
        for part in json.loads(spec):
            try:
                found = engine.evaluate_ops_json(json.dumps([part]), is_context, *sizes, 1.0, None)
            except (ValueError, RuntimeError, KeyError):
                found = None
            if found is None or any(each[3] == _COMPUTED for each in found):
                raise EngineError(f"the tables of {self._system} ({backend}) have no times of {operation} at {sizes}")
            time_us += 1e3 * sum(each[1] for each in found)
        return time_us


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
        workload_distribution="balanced" if experts.experts <= EVENLY_CHOSEN else "power_law_1.2",
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
        lane_order=KERNELS_OF_HEADS,
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
        index_topk=TOKENS_CHOSEN,
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
