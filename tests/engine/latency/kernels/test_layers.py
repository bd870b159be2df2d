"""Layers of many kinds become operations that tables have, or are refused by name."""

from typing import Any, cast

import numpy as np
import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.kernel_profiles import RepairedTables
from blis_sim.engine.latency.kernel_tables import Tables
from blis_sim.engine.latency.kernels import Times
from blis_sim.engine.latency.model_operations import KernelPlacement, operations_of
from blis_sim.engine.latency.operations import (
    AllReduce,
    DeltaNet,
    Experts,
    HeadAttention,
    Matmul,
    SparseLatentAttention,
    StepOperations,
)


def operations(model: str, tp: int) -> StepOperations:
    return operations_of(load_model(model), KernelPlacement(tp=tp))


def test_sparse_latent_attention_keeps_the_heads_of_a_gpu() -> None:
    found = operations("deepseek-v3.2", 8)
    ((attention, layers),) = found.attention
    assert isinstance(attention, SparseLatentAttention)
    assert (attention.architecture, attention.heads, layers) == ("DeepseekV32ForCausalLM", 16, 61)


def test_gated_delta_nets_stand_beside_attention() -> None:
    found = operations("qwen3.5-35b-a3b", 2)
    layers = {type(attention): count for attention, count in found.attention}
    assert layers == {DeltaNet: 30, HeadAttention: 10}


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("glm-5.2", "sparse attention without an indexer of its own"),
        ("minimax-m3", "sparse attention with its own heads"),
        ("nvidia-nemotron-3-nano-30b-a3b-bf16", "Mamba-2"),
    ],
)
def test_layers_without_tables_are_refused_by_their_kind(model: str, kind: str) -> None:
    with pytest.raises(EngineError, match=f"^{model} has layers of {kind}, which the kernels model cannot time$"):
        operations(model, 1)


def numbers(*values: float) -> tuple[Times, ...]:
    return tuple(np.array([value]) for value in values)


class OneTime:
    """Tables that hold 100 us for everything."""

    def token_us(self, operation: Any, tokens: Times) -> Times:
        return np.full(len(tokens), 100.0)

    def context_us(self, attention: Any, requests: Times, new: Times, before: Times) -> Times:
        return np.full(len(requests), 100.0)

    def decode_us(self, attention: Any, requests: Times, context: Times) -> Times:
        return np.full(len(requests), 100.0)


def test_modules_of_sparse_attention_are_timed_beside_their_projections() -> None:
    repaired = RepairedTables(load_gpu("H200"), cast(Tables, OneTime()))
    attention = SparseLatentAttention(
        architecture="DeepseekV32ForCausalLM", heads=16, kv_dtype="bfloat16", projections=(Matmul(64, 64, "bfloat16"),)
    )
    assert repaired.decode_us(attention, *numbers(4, 1000)) == pytest.approx(10)  # a tenth at least is attention itself
    assert "sparse attention is that of SGLang" in repaired.notes
    assert repaired.context_us(attention, *numbers(2, 100, 50)) == pytest.approx(10)


def test_a_gated_delta_net_takes_as_long_whatever_was_before() -> None:
    tables = Tables("H100")
    net = DeltaNet(
        hidden_size=2048, key_heads=16, key_head_size=128, value_heads=32, value_head_size=128, conv_kernel=4
    )
    assert tables.context_us(net, *numbers(2, 100, 5000)) == tables.context_us(net, *numbers(2, 100, 0))
    assert tables.decode_us(net, *numbers(8, 3000)) == tables.decode_us(net, *numbers(8, 1))


def test_times_that_nothing_was_measured_of_are_refused() -> None:
    tables = Tables("H100")
    with pytest.raises(EngineError, match=r"^the tables of H100 have no times of Matmul\(rows=1, "):
        tables.token_us(Matmul(1, 4096, "bfloat16"), *numbers(8))
    with pytest.raises(EngineError, match=r"^the tables of H100 have no times of Experts\(hidden_size=2048, "):
        tables.token_us(Experts(2048, 769, 128, 8, 1, 1, "bfloat16"), *numbers(8))
    with pytest.raises(EngineError, match=r"^the tables of H100 have no times of HeadAttention\(heads=9, kv_heads=3, "):
        tables.decode_us(HeadAttention(9, 3, 128, 0, "bfloat16"), *numbers(8, 100))
    with pytest.raises(EngineError, match=r"^the tables of H100 have no times of AllReduce\(width=4096, gpus=3\)$"):
        tables.token_us(AllReduce(4096, 3), *numbers(8))
    with pytest.raises(EngineError, match=r"^no kernels with weights in nf4 were measured, only in bfloat16, fp8, "):
        tables.token_us(Matmul(64, 64, "nf4"), *numbers(8))
    with pytest.raises(EngineError, match=r"^the tables of A100-SXM have no times of Matmul\(.*'fp8'\)$"):
        Tables("A100-SXM").token_us(Matmul(4096, 4096, "fp8"), *numbers(8))
    with pytest.raises(EngineError, match=r"^no kernels were measured on T4, only on A100-SXM, B200"):
        Tables("T4")
