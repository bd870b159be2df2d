"""Layers of many kinds become operations that tables have, or are refused by name."""

import json
from typing import Any

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue.entries import load_gpu
from blis_sim.engine.latency.catalogue.reader import load_model
from blis_sim.engine.latency.kernels import tables
from blis_sim.engine.latency.kernels.baking import RepairedTables
from blis_sim.engine.latency.kernels.model_operations import KernelPlacement, operations_of
from blis_sim.engine.latency.kernels.operations import (
    DeltaNet,
    HeadAttention,
    Matmul,
    SparseLatentAttention,
    StepOperations,
)
from blis_sim.engine.latency.sureness import deployment_class


def operations(model: str, tp: int) -> StepOperations:
    return operations_of(load_model(model), KernelPlacement(tp=tp))


class Engine:
    """Tables that hold one time for everything, from one source."""

    def __init__(self, source: str = "silicon") -> None:
        self.source = source
        self.asked: list[tuple[Any, ...]] = []

    def evaluate_ops_json(self, spec: str, is_context: bool, *sizes: Any) -> list[tuple[str, float, float, str]]:
        self.asked.append((spec, is_context, *sizes[:3]))
        return [("", 0.1, 0.0, self.source) for _ in json.loads(spec)]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> dict[str, Engine]:
    known = {backend: Engine() for backend in tables.BACKENDS}
    monkeypatch.setattr(tables, "_engine", lambda system, backend: known[backend])
    monkeypatch.setattr(tables, "are_installed", lambda: True)
    return known


def test_sparse_latent_attention_keeps_the_heads_of_a_gpu() -> None:
    found = operations("deepseek-v3.2", 8)
    ((attention, layers),) = found.attention
    assert isinstance(attention, SparseLatentAttention)
    assert (attention.architecture, attention.heads, layers) == ("DeepseekV32ForCausalLM", 16, 61)
    assert deployment_class(found) == "sparse latent attention, experts in FP8 by blocks"


def test_gated_delta_nets_stand_beside_attention() -> None:
    found = operations("qwen3.5-35b-a3b", 2)
    layers = {type(attention): count for attention, count in found.attention}
    assert layers == {DeltaNet: 30, HeadAttention: 10}
    assert deployment_class(found) == "gated delta nets, models in 16 bits"


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


def test_sparse_attention_decodes_as_sglangs_beside_its_projections(engines: dict[str, Engine]) -> None:
    repaired = RepairedTables(load_gpu("H200"), tables.Tables("H200"))
    attention = SparseLatentAttention(
        architecture="DeepseekV32ForCausalLM", heads=16, kv_dtype="bfloat16", projections=(Matmul(64, 64, "bfloat16"),)
    )
    assert repaired.decode_us(attention, 4, 1000) == pytest.approx(10)  # a tenth at least is attention itself
    assert [json.loads(each[0])[0].keys() for each in engines["sglang"].asked] == [{"DsaGeneration": 0}.keys()]
    assert repaired.context_us(attention, 2, 100, 50) == pytest.approx(10)
    assert "DsaContext" in engines["vllm"].asked[-2][0]
    assert engines["vllm"].asked[-2][1:] == (True, 2, 100, 50)


def test_a_gated_delta_net_takes_its_convolution_and_its_recurrence_whatever_was_before(
    engines: dict[str, Engine],
) -> None:
    repaired = RepairedTables(load_gpu("H100"), tables.Tables("H100"))
    net = DeltaNet(
        hidden_size=2048, key_heads=16, key_head_size=128, value_heads=32, value_head_size=128, conv_kernel=4
    )
    assert repaired.context_us(net, 2, 100, 5000) == pytest.approx(200)
    assert repaired.decode_us(net, 8, 3000) == pytest.approx(200)
    assert [each[1:] for each in engines["vllm"].asked] == [(True, 2, 100, 0), (False, 8, 1, 0)]


def test_times_that_nothing_was_measured_of_are_refused(engines: dict[str, Engine]) -> None:
    engines["vllm"].source = "sol"
    with pytest.raises(EngineError, match=r"^the tables of h100_sxm \(vllm\) have no times of Matmul\(rows=64, "):
        tables.Tables("H100").token_us(Matmul(64, 64, "bfloat16"), 8)
