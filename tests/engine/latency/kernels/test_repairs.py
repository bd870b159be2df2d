"""Kernel times that stand in for those that the tables lack, made of tables that are simple formulas."""

from typing import Any, cast

import pytest

from blis_sim.engine.latency.catalogue.gpus import load_gpu
from blis_sim.engine.latency.kernels.operations import MXFP4_BY_MARLIN, Experts, Routing
from blis_sim.engine.latency.kernels.repairs import RepairedTables
from blis_sim.engine.latency.kernels.tables import Tables


class Formula:
    """Tables with 100 us of start, and 1 us per token and thousand experts' width on a GPU."""

    def __init__(self) -> None:
        self.asked: list[Experts] = []

    def token_us(self, operation: Any, num_tokens: int, backend: str = "vllm") -> float:
        assert isinstance(operation, Experts)
        self.asked.append(operation)
        return 100.0 + num_tokens * operation.inner_size / operation.tp / 1000


def experts(tp: int, weights: str = MXFP4_BY_MARLIN) -> Experts:
    return Experts(hidden_size=2880, inner_size=2880, experts=128, chosen=4, tp=tp, ep=1, weights=weights)


def test_experts_by_marlin_take_what_others_take_with_as_many_tokens_for_each() -> None:
    formula = Formula()
    repaired = RepairedTables(load_gpu("H100"), cast(Tables, formula))
    (time_us,) = repaired.token_us(experts(4), (64,))
    (asked,) = formula.asked
    assert (asked.experts, asked.chosen, asked.inner_size, asked.tp) == (896, 16, 3072, 4)
    share = 128 * 3072 / (896 * 3584)  # the widths of a GPU are equal after padding
    measured_us = 100 + 112 * 768 / 1000  # 64 tokens of 4 among 128 experts are 112 of 16 among 896
    assert time_us == pytest.approx(22 + share * (measured_us - 60))
    assert any("Marlin" in note for note in repaired.notes)


def test_experts_by_marlin_are_chosen_by_a_kernel_of_their_own() -> None:
    repaired = RepairedTables(load_gpu("H100"), cast(Tables, Formula()))
    assert repaired.token_us(Routing(128, MXFP4_BY_MARLIN), (1,))[0] > 0
    assert repaired.token_us(Routing(128, "mxfp4"), (1,))[0] == 0
