"""vLLM's --speculative-config: its effect on the engine, and configurations that are refused in one line."""

import json
from typing import Any

import pytest

from blis_sim.engine.speculation import DRAFTERS, PUBLISHED, Speculation, SpeculationFlags, parse_speculation
from blis_sim.options import OptionError


def said(**flags: Any) -> SpeculationFlags:
    return SpeculationFlags(**flags)


def parsed(rates: tuple[float, ...] = (), **fields: Any) -> Speculation:
    found = parse_speculation(said(config=json.dumps(fields), acceptance_rates=rates))
    assert found is not None
    return found


def ngram(rates: tuple[float, ...] = (), **fields: Any) -> Speculation:
    return parsed(rates, **{"method": "ngram", "num_speculative_tokens": 3, **fields})


def test_method_and_number_are_enough() -> None:
    assert ngram() == Speculation(method="ngram", num_tokens=3, acceptance_rates=(0.7, 0.7, 0.7))


@pytest.mark.parametrize(
    ("method", "tokens_a_step"),
    [
        ("eagle", (2.10, 2.29, 2.39, 2.43, 2.45)),
        ("eagle3", (2.18, 2.47)),
        ("mtp", (2.43,)),
        ("draft_model", (2.39, 2.86)),
    ],
)
def test_without_rates_drafts_are_accepted_as_published(method: str, tokens_a_step: tuple[float, ...]) -> None:
    for num_tokens, expected in enumerate(tokens_a_step, start=2):
        found = parsed(method=method, model="a/head", num_speculative_tokens=num_tokens)
        assert 1 + found.expected_accepted_tokens == pytest.approx(expected, abs=0.011)
        assert found.acceptance_source
    assert not parsed((0.5,), method=method, model="a/head", num_speculative_tokens=2).acceptance_source


def test_every_method_has_rates_and_their_source() -> None:
    assert PUBLISHED.keys() == DRAFTERS.keys()
    for published in PUBLISHED.values():
        assert published.source
        assert all(0 < rate < 1 for rate in published.rates_of(20))


def test_other_flags_complete_the_speculative_config() -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 1}'
    flags = said(config=config, acceptance_rates=(0.5,), seed=4, draft_time_us=80)
    assert parse_speculation(flags) == Speculation(
        method="ngram", num_tokens=1, acceptance_rates=(0.5,), seed=4, draft_time_us=80
    )


def test_without_any_flag_nothing_is_drafted() -> None:
    assert parse_speculation(said()) is None


def test_three_fields_have_flags_of_their_own() -> None:
    flags = said(method="eagle", model="a/head", num_tokens=2, config='{"parallel_drafting": true}')
    assert parse_speculation(flags) == Speculation(
        method="eagle", num_tokens=2, acceptance_rates=(0.73, 0.51), parallel_drafting=True, model="a/head"
    )
    with pytest.raises(OptionError, match=r"^--spec-tokens and num_speculative_tokens in --speculative-config cannot "):
        parse_speculation(said(config='{"num_speculative_tokens": 2}', num_tokens=2))


@pytest.mark.parametrize(
    ("fields", "method"),
    [
        ({"method": "[ngram]"}, "ngram"),
        ({"model": "[ngram]"}, "ngram"),
        ({"method": "deepseek_mtp"}, "mtp"),
        ({"method": "eagle3", "model": "some/head"}, "eagle3"),
        ({"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B"}, "eagle"),
        ({"model": "AngelSlim/Qwen3-8B_eagle3"}, "eagle3"),
        ({"model": "Qwen/Qwen3-0.6B"}, "draft_model"),
    ],
)
def test_the_method_is_found_as_vllm_finds_it(fields: dict[str, Any], method: str) -> None:
    assert parsed(**fields, num_speculative_tokens=2).method == method


def test_names_may_have_dashes_and_nulls_mean_nothing() -> None:
    assert parsed(**{"method": "ngram", "num-speculative-tokens": 2, "model": None}).num_tokens == 2  # type: ignore[arg-type]


def test_fields_about_sharing_and_drafting_reach_the_engine() -> None:
    found = parsed(
        method="eagle", model="head", num_speculative_tokens=2, parallel_drafting=True,
        disable_lookahead_block_hashes=True, disable_eagle_block_drop=True,
    )  # fmt: skip
    assert (found.parallel_drafting, found.hashes_next_token, found.keeps_last_hit_block) == (True, False, True)


def test_fields_for_the_way_of_drafting_change_nothing() -> None:
    assert ngram(prompt_lookup_max=4, prompt_lookup_min=2, enforce_eager=True) == ngram()


def test_one_rate_is_that_of_every_place_and_several_are_one_each() -> None:
    assert ngram((0.5,)).acceptance_rates == (0.5, 0.5, 0.5)
    assert ngram((0.9, 0.5, 0.1)).acceptance_rates == (0.9, 0.5, 0.1)


def test_synthetic_rates_are_those_of_all_up_to_a_place() -> None:
    found = ngram(rejection_sample_method="synthetic", synthetic_acceptance_rates=[0.8, 0.4, 0.0])
    assert found.acceptance_rates == (0.8, 0.5, 0.0)
    found = ngram(rejection_sample_method="synthetic", synthetic_acceptance_rates=[0.5, 0, 0])
    assert found.acceptance_rates == (0.5, 0.0, 0.0)


def test_a_synthetic_length_is_the_mean_number_of_tokens_a_step_brings() -> None:
    found = ngram(rejection_sample_method="synthetic", synthetic_acceptance_length=2.25)
    assert found.acceptance_rates == (1.0, 0.25, 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[1]", "must be a JSON object, got [1]"),
        ('{"method": "ngram"}', "num_speculative_tokens must be given"),
        (
            "{}",
            "method must be one of ngram, ngram_gpu, eagle, eagle3, mtp, draft_model, suffix, dflash, dspark, medusa, "
            "got ''",
        ),
    ],
)
def test_an_incomplete_configuration_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError) as refusal:
        parse_speculation(said(config=text))
    assert str(refusal.value) == f"--speculative-config: {message}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be a whole number from 1 to 1024, got 0"),
        ({"num_speculative_tokens": 2000}, "num_speculative_tokens must be a whole number from 1 to 1024, got 2000"),
        ({"num_speculative_tokens": 2.5}, "num_speculative_tokens must be a whole number from 1 to 1024, got 2.5"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens must be a whole number from 1 to 1024, got true"),
        (
            {"method": "custom_class"},
            "method must be one of ngram, ngram_gpu, eagle, eagle3, mtp, "
            "draft_model, suffix, dflash, dspark, medusa, got 'custom_class'",
        ),
        ({"method": 3}, "method must be a string, got 3"),
        ({"method": "eagle"}, "method eagle needs a model"),
        ({"parallel_drafting": "yes"}, 'parallel_drafting must be true or false, got "yes"'),
        ({"parallel_drafting": True}, "parallel_drafting is for drafters with a KV cache, and ngram has none"),
        (
            {"rejection_sample_method": "lucky"},
            "rejection_sample_method must be one of standard, synthetic, block, fly, got 'lucky'",
        ),
        (
            {"synthetic_acceptance_length": 2},
            "synthetic_acceptance_rates and _length need rejection_sample_method synthetic",
        ),
    ],
)
def test_fields_out_of_bounds_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as refusal:
        ngram(**fields)
    assert str(refusal.value) == f"--speculative-config: {message}"


@pytest.mark.parametrize("name", ["num_speculative_tokens_per_batch_size", "tensor_parallel_size", "beam_width"])
def test_fields_unknown_or_not_simulated_are_refused(name: str) -> None:
    with pytest.raises(OptionError) as refusal:
        parsed(**{"method": "ngram", "num_speculative_tokens": 1, name: 1})  # type: ignore[arg-type]
    assert str(refusal.value).startswith(f"--speculative-config: {name} is unknown or not simulated, allowed are ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "synthetic needs either synthetic_acceptance_rates or synthetic_acceptance_length"),
        (
            {"synthetic_acceptance_rates": [1, 1, 1], "synthetic_acceptance_length": 2},
            "synthetic needs either synthetic_acceptance_rates or synthetic_acceptance_length",
        ),
        ({"synthetic_acceptance_rates": [0.5]}, "synthetic_acceptance_rates must have 3 values, got 1"),
        ({"synthetic_acceptance_rates": ["a"]}, 'synthetic_acceptance_rates must be a list of numbers, got ["a"]'),
        (
            {"synthetic_acceptance_rates": [1.5, 1, 1]},
            "synthetic_acceptance_rates must each be at least 0 and at most 1, got [1.5, 1, 1]",
        ),
        (
            {"synthetic_acceptance_rates": [0.5, 0.6, 0]},
            "synthetic_acceptance_rates must not increase, got [0.5, 0.6, 0]",
        ),
        (
            {"synthetic_acceptance_length": 4.5},
            "synthetic_acceptance_length must be at least 1 and at most 4, got 4.5",
        ),
    ],
)
def test_a_synthetic_acceptance_must_be_one(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as refusal:
        ngram(rejection_sample_method="synthetic", **fields)
    assert str(refusal.value) == f"--speculative-config: {message}"


def test_rates_are_given_once_and_for_each_place() -> None:
    with pytest.raises(OptionError, match=r"^--speculative-acceptance-rate must have one value or 3, one per drafted"):
        ngram((0.5, 0.5))
    with pytest.raises(OptionError, match=r"^--speculative-acceptance-rate and the synthetic acceptance of "):
        ngram((0.5,), rejection_sample_method="synthetic", synthetic_acceptance_length=2)
