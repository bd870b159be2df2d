"""Random models, GPUs and batches for the latency models."""

from hypothesis import strategies as st

from blis_sim.engine.specs import GpuSpec, ModelSpec
from tests.engine.latency.per_request import Decode, Prefill, Work

GPUS = st.builds(
    GpuSpec,
    name=st.just("g"),
    tflops=st.sampled_from([312.0, 362.05, 989.5]),
    tflops_fp8=st.sampled_from([0.0, 1979.0]),
    bandwidth_tb_s=st.sampled_from([0.864, 2.039, 3.35]),
    mfu_prefill=st.sampled_from([0.45, 0.38]),
    mfu_decode=st.sampled_from([0.3, 0.18]),
    memory_gib=st.just(80.0),
)
BETAS = st.tuples(*[st.one_of(st.just(0.0), st.floats(0.001, 100.0))] * 11)


@st.composite
def models(draw: st.DrawFn, experts: bool | None = None) -> ModelSpec:
    """Dense or with experts, every layer or interleaved, with or without shared ones; divisible by 1, 2, 4 and 8."""
    is_moe = draw(st.booleans()) if experts is None else experts
    num_experts = draw(st.sampled_from([8, 16, 64])) if is_moe else 0
    return ModelSpec(
        name="m",
        num_layers=draw(st.integers(1, 80)),
        hidden_size=draw(st.sampled_from([1024, 3584, 5120, 8192])),
        num_heads=draw(st.sampled_from([8, 32, 56])),
        num_kv_heads=draw(st.sampled_from([8, 16])),
        vocab_size=32_000,
        intermediate_size=draw(st.sampled_from([5632, 14_336])),
        num_experts=num_experts,
        num_experts_per_tok=draw(st.integers(1, 8)) if is_moe else 0,
        moe_intermediate_size=draw(st.sampled_from([0, 768])) if is_moe else 0,
        shared_expert_size=draw(st.sampled_from([0, 1408])) if is_moe else 0,
        interleave_moe_layer_step=draw(st.sampled_from([0, 1, 3])) if is_moe else 0,
        intermediate_size_mlp=draw(st.sampled_from([0, 16_384])) if is_moe else 0,
        bytes_per_weight=draw(st.sampled_from([0.5, 1.0, 2.0])),
    )


@st.composite
def prefills(draw: st.DrawFn) -> Prefill:
    context = draw(st.integers(0, 30_000))
    tokens = draw(st.integers(1, 8192))
    return Prefill(tokens, context, context + tokens + draw(st.integers(0, 30_000)))


DECODES = st.builds(Decode, st.integers(1, 130_000))
BATCHES: st.SearchStrategy[list[Work]] = st.lists(prefills() | DECODES, min_size=1, max_size=12)
DECODE_BATCHES = st.lists(DECODES, min_size=1, max_size=300)
