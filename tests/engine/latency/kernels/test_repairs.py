"""Kernel times that stand in for those that the tables lack, made of tables that are simple formulas."""

from typing import Any, cast

import pytest

from blis_sim.engine.latency.catalogue.entries import load_gpu
from blis_sim.engine.latency.kernels.baking import RepairedTables
from blis_sim.engine.latency.kernels.operations import MXFP4_BY_MARLIN, AllReduce, Experts, HeadAttention, Routing
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


class BytesAlone:
    """Tables in which an exchange takes 1 us per value, however few there are."""

    def token_us(self, operation: Any, num_tokens: int, backend: str = "vllm") -> float:
        assert isinstance(operation, AllReduce)
        return float(operation.width * num_tokens)


def test_all_reduces_shorter_than_any_measured_take_as_long_as_the_shortest() -> None:
    repaired = RepairedTables(load_gpu("H100"), cast(Tables, BytesAlone()))
    assert repaired.token_us(AllReduce(4, 2), (1, 16, 32, 64)).tolist() == [128.0, 128.0, 128.0, 256.0]
    assert any("256 bytes" in note for note in repaired.notes)


def test_all_reduces_of_whole_tokens_are_as_measured() -> None:
    repaired = RepairedTables(load_gpu("H100"), cast(Tables, BytesAlone()))
    assert repaired.token_us(AllReduce(4096, 2), (1, 16)).tolist() == [4096.0, 65536.0]
    assert not repaired.notes


class PromptsWithMore:
    """Tables that add 13.2 us to the attention of prompts, 26.4 more with norms, and no start to what follows others.

    A shortest prompt of 16 tokens takes 10 us, longer ones 1 us per 16 tokens, shorter ones in proportion.
    """

    def context_us(self, attention: HeadAttention, requests: int, new: int, before: int) -> float:
        added_us = 39.6 if attention.has_norm else 13.2
        return added_us + requests * new / 16 + (9.0 if new >= 16 and not before else 0.0)


def prompt_us(requests: int, new: int, before: int, *, has_norm: bool = True) -> float:
    repaired = RepairedTables(load_gpu("H100"), cast(Tables, PromptsWithMore()))
    heads = HeadAttention(
        heads=40, kv_heads=8, head_size=128, window_tokens=0, kv_dtype="bfloat16", has_norm=has_norm
    )  # fmt: skip
    found = repaired.context_us(heads, requests, new, before)
    assert any("13.2 us" in note for note in repaired.notes)
    return found


def test_attention_of_prompts_is_without_what_was_not_measured() -> None:
    for has_norm in (True, False):
        assert prompt_us(1, 1024, 0, has_norm=has_norm) == pytest.approx(64 + 9)


def test_attention_of_few_tokens_takes_at_least_that_of_the_shortest_prompt_measured() -> None:
    assert prompt_us(1, 1, 0) == prompt_us(1, 16, 560) == pytest.approx(10)
    assert prompt_us(1, 512, 560) == pytest.approx(32)
