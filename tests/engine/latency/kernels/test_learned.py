"""The host overheads that ship: outside of steps those of `fitted`, with tokenizers as they were measured."""

from dataclasses import fields, replace

import pytest

from blis_sim.engine.latency.catalogue import read_mapping
from blis_sim.engine.latency.catalogue_reader import KERNELS_HOST, LEARNED_COEFFICIENTS, load_model
from blis_sim.engine.latency.coefficients_file import read_coefficients
from blis_sim.engine.latency.kernel_profiles import most_certain_prompt_tokens, shipped_learned
from blis_sim.engine.latency.kernels import KernelScales


def test_a_prompt_as_long_as_most_that_were_learned_from_is_queued_as_late_as_was_learned() -> None:
    host, _ = shipped_learned(load_model("llama-3.1-8b"))
    learned = read_coefficients(LEARNED_COEFFICIENTS)
    tokens = most_certain_prompt_tokens(read_mapping(LEARNED_COEFFICIENTS))
    assert 900 < tokens < 1_050  # prompts of recordings below saturation have 934 to 1,043
    queued_us = learned.request.arrival_us + learned.request.arrival_token_us * tokens
    assert host.arrival_us + host.arrival_token_us * tokens == pytest.approx(queued_us)


def test_a_longer_prompt_is_queued_as_much_later_as_a_tokenizer_takes() -> None:
    host, _ = shipped_learned(load_model("llama-3.1-8b"))
    assert host.arrival_us >= 0
    assert 3.8 <= host.arrival_token_us <= 5.7


def test_overheads_of_steps_are_those_learned_beside_kernels() -> None:
    host, scales = shipped_learned(load_model("qwen3-14b"))
    learned = read_mapping(KERNELS_HOST)
    assert learned["latency_model"] == "kernels"
    for name, value in learned["host"].items():
        assert getattr(host, name) == value
    assert set(vars_of(scales).values()) == {1.0}
    assert host.request_us < read_coefficients(LEARNED_COEFFICIENTS).step.request_us  # which holds kernels, too


def test_overheads_of_steps_carry_over_by_layers_and_vocabulary() -> None:
    learned, _ = shipped_learned(load_model("qwen3-14b"))
    carried, _ = shipped_learned(load_model("llama-2-70b"))
    assert carried.step_us == pytest.approx(2 * learned.step_us)  # 80 layers instead of 40
    assert carried.request_us == pytest.approx(learned.request_us * 32_000 / 151_936)
    assert replace(carried, step_us=0.0, request_us=0.0) == replace(learned, step_us=0.0, request_us=0.0)


def vars_of(scales: KernelScales) -> dict[str, float]:
    return {each.name: getattr(scales, each.name) for each in fields(scales)}
