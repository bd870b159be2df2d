"""Kernel times that stand in for those that the tables lack, made of tables that are simple formulas."""

from typing import Any, cast

import numpy as np
import pytest

from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.kernel_profiles import RepairedTables
from blis_sim.engine.latency.kernel_tables import ScaledTables, Tables, gpus_with_tables
from blis_sim.engine.latency.kernels import Times
from blis_sim.engine.latency.operations import MXFP4_BY_MARLIN, AllReduce, Experts, HeadAttention, Routing


class Formula:
    """Tables with 100 us of start, and 1 us per token and thousand experts' width on a GPU."""

    def __init__(self) -> None:
        self.asked: list[Experts] = []

    def token_us(self, operation: Any, tokens: Times) -> Times:
        assert isinstance(operation, Experts)
        self.asked.append(operation)
        return 100.0 + tokens * operation.inner_size / operation.tp / 1000


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

    def token_us(self, operation: Any, tokens: Times) -> Times:
        assert isinstance(operation, AllReduce)
        return operation.width * tokens


def test_all_reduces_shorter_than_any_measured_take_as_long_as_the_shortest() -> None:
    repaired = RepairedTables(load_gpu("H100"), cast(Tables, BytesAlone()))
    assert repaired.token_us(AllReduce(4, 2), (1, 16, 32, 64)).tolist() == [128.0, 128.0, 128.0, 256.0]
    assert any("256 bytes" in note for note in repaired.notes)


def test_all_reduces_of_whole_tokens_are_as_measured() -> None:
    repaired = RepairedTables(load_gpu("H100"), cast(Tables, BytesAlone()))
    assert repaired.token_us(AllReduce(4096, 2), (1, 16)).tolist() == [4096.0, 65536.0]
    assert not repaired.notes


class Spike:
    """Tables in which an exchange of two tokens takes twice as long as those of four."""

    def token_us(self, operation: Any, tokens: Times) -> Times:
        assert isinstance(operation, AllReduce)
        return np.interp(tokens, (1, 2, 4, 8), (100, 800, 400, 900))


def test_an_exchange_takes_no_longer_than_one_of_more_tokens() -> None:
    repaired = RepairedTables(load_gpu("A100-SXM"), cast(Tables, Spike()))
    assert repaired.token_us(AllReduce(4096, 8), (1, 2, 4, 8)).tolist() == [100, 400, 400, 900]
    assert any("faster with more tokens" in note for note in repaired.notes)


class SlowWhenShared:
    """Tables in which every GPU that shares experts adds to their time."""

    def token_us(self, operation: Any, tokens: Times) -> Times:
        assert isinstance(operation, Experts)
        return 900.0 + 100 * operation.ep * operation.tp + tokens


@pytest.mark.parametrize(("tp", "ep"), [(1, 2), (2, 1)])
def test_experts_never_take_longer_on_a_gpu_that_has_a_part_of_them(tp: int, ep: int) -> None:
    repaired = RepairedTables(load_gpu("H100"), cast(Tables, SlowWhenShared()))
    whole = experts(1, "")
    assert (repaired.token_us(whole._replace(tp=tp, ep=ep), (1, 64)) == repaired.token_us(whole, (1, 64))).all()
    assert any("slower on more GPUs" in note for note in repaired.notes)


class PromptsInProportion:
    """Tables in which the shortest prompt of 16 tokens takes 10 us, longer ones 1 us per 16 tokens, shorter ones and
    those after others in proportion, without the start of a kernel."""

    def context_us(self, attention: HeadAttention, requests: Times, new: Times, before: Times) -> Times:
        return requests * new / 16 + np.where((new >= 16) & (before == 0), 9.0, 0.0)


def prompt_us(requests: int, new: int, before: int) -> float:
    repaired = RepairedTables(load_gpu("H100"), cast(Tables, PromptsInProportion()))
    heads = HeadAttention(heads=40, kv_heads=8, head_size=128, window_tokens=0, kv_dtype="bfloat16")
    (found,) = repaired.context_us(heads, *(np.array([float(each)]) for each in (requests, new, before)))
    return float(found)


def test_attention_of_few_tokens_takes_at_least_that_of_the_shortest_prompt_measured() -> None:
    assert prompt_us(1, 1, 0) == prompt_us(1, 16, 560) == pytest.approx(10)
    assert prompt_us(1, 512, 560) == pytest.approx(32)


def test_gpus_on_pcie_exchange_by_one_rule_and_more_of_them_not_much_slower() -> None:
    def all_reduce_us(gpu: str, gpus: int) -> Times:
        spec = load_gpu(gpu)
        tables = RepairedTables(spec, ScaledTables(spec, gpus_with_tables()))
        return tables.token_us(AllReduce(4096, gpus), (1, 2048))

    for gpu, slower in (("L40S", 1), ("L4", 1), ("RTX-PRO-6000", 2)):
        of_two, of_four = all_reduce_us(gpu, 2), all_reduce_us(gpu, 4)
        assert of_four[1] == pytest.approx(1.5 * of_two[1], rel=0.02)
        assert of_two[1] == pytest.approx(all_reduce_us("L40S", 2)[1] / slower, rel=0.03)
