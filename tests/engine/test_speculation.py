"""Settings of speculative decoding: what each way of drafting reserves, and which drafts are accepted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.errors import EngineError
from blis_sim.engine.speculation import DRAFTERS, AcceptanceSampler, Speculation


def speculation(method: str = "ngram", num_tokens: int = 3, rate: float = 0.7, **settings: Any) -> Speculation:
    return Speculation(method=method, num_tokens=num_tokens, acceptance_rates=(rate,) * num_tokens, **settings)


@pytest.mark.parametrize(
    ("method", "slots"), [("ngram", 0), ("ngram_gpu", 0), ("eagle", 3), ("eagle3", 3), ("mtp", 3), ("draft_model", 3)]
)
def test_a_drafter_with_kv_of_its_own_gets_slots_for_it(method: str, slots: int) -> None:
    assert speculation(method).num_lookahead_tokens == slots


@pytest.mark.parametrize(
    ("method", "parallel", "rows"),
    [("ngram", False, 0), ("eagle", False, 0), ("eagle", True, 2), ("draft_model", False, 1), ("draft_model", True, 3)],
)
def test_some_drafters_take_rows_of_the_batch(method: str, parallel: bool, rows: int) -> None:
    assert speculation(method, parallel_drafting=parallel).rows_per_request == rows


@pytest.mark.parametrize("method", list(DRAFTERS))
def test_only_a_head_on_the_model_reads_the_next_token(method: str) -> None:
    reads = method in ("eagle", "eagle3", "mtp")
    assert speculation(method).num_hash_lookahead_tokens == reads
    assert not speculation(method).drops_last_hit_block
    plainly_named = speculation(method, hashes_next_token=False)
    assert (plainly_named.num_hash_lookahead_tokens, plainly_named.drops_last_hit_block) == (0, reads)


def test_medusa_drafts_without_slots_or_rows_of_its_own() -> None:
    medusa = speculation("medusa")
    assert (medusa.num_lookahead_tokens, medusa.rows_per_request, medusa.skips_unused_drafts) == (0, 0, False)


def test_sharing_may_be_left_as_it_is_without_drafts() -> None:
    trusting = speculation("eagle", keeps_last_hit_block=True)
    assert (trusting.num_hash_lookahead_tokens, trusting.drops_last_hit_block) == (0, False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"method": "oracle"},
            "method must be one of ngram, ngram_gpu, eagle, eagle3, mtp, "
            "draft_model, suffix, dflash, dspark, medusa, got 'oracle'",
        ),
        ({"num_tokens": 0}, "num_tokens must be from 1 to 1024, got 0"),
        ({"acceptance_rates": (0.5,)}, "there must be 2 acceptance rates, got 1"),
        ({"acceptance_rates": (0.5, 1.5)}, "an acceptance rate must be at least 0 and at most 1, got 1.5"),
        ({"parallel_drafting": True}, "parallel_drafting needs a drafter with a KV cache, and ngram has none"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"method": "ngram", "num_tokens": 2, "acceptance_rates": (0.5, 0.5), **settings}
    with pytest.raises(EngineError) as refusal:
        Speculation(**given)
    assert str(refusal.value) == message


def test_an_engine_refuses_speculation_that_cannot_work() -> None:
    with pytest.raises(EngineError, match=r"^speculation needs engine vllm, got blis$"):
        EngineConfig(100, engine="blis", speculation=speculation())
    with pytest.raises(
        EngineError, match=r"^max_num_batched_tokens must be above the 3 tokens that eagle drafts ahead"
    ):
        EngineConfig(100, max_num_batched_tokens=3, engine="vllm", speculation=speculation("eagle"))
    EngineConfig(100, max_num_batched_tokens=3, engine="vllm", speculation=speculation())


def test_a_block_at_the_end_of_known_tokens_is_identified_only_when_nothing_after_it_matters() -> None:
    plain = EngineConfig(100, block_size_tokens=4, engine="vllm")
    ahead = EngineConfig(100, block_size_tokens=4, engine="vllm", speculation=speculation("eagle"))
    assert [plain.num_identified_blocks(tokens) for tokens in (0, 7, 8, 9)] == [0, 1, 2, 2]
    assert [ahead.num_identified_blocks(tokens) for tokens in (0, 7, 8, 9)] == [0, 1, 1, 2]


def accepted(rates: tuple[float, ...], seed: int = 0, count: int = 4000) -> list[int]:
    acceptance = AcceptanceSampler(
        Speculation(method="ngram", num_tokens=len(rates), acceptance_rates=rates, seed=seed)
    )
    return [acceptance.num_accepted(number % 10, number // 10 * len(rates), len(rates)) for number in range(count)]


def test_each_place_is_accepted_as_often_as_its_rate() -> None:
    counts = accepted((0.8, 0.5, 0.2))
    reached = len(counts)
    for place, rate in enumerate((0.8, 0.5, 0.2)):
        held = sum(count > place for count in counts)
        assert held / reached == pytest.approx(rate, abs=0.03)
        reached = held


def test_rates_of_one_and_zero_leave_nothing_to_chance() -> None:
    assert set(accepted((1.0, 1.0, 0.0))) == {2}
    assert set(accepted((0.0, 1.0))) == {0}
    assert set(accepted((1.0, 1.0))) == {2}


def test_the_seed_alone_decides() -> None:
    assert accepted((0.5, 0.5)) == accepted((0.5, 0.5))
    assert accepted((0.5, 0.5)) != accepted((0.5, 0.5), seed=1)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 6))
def test_fewer_drafts_at_the_same_place_fare_the_same(request_number: int, num_tokens: int, num_drafts: int) -> None:
    acceptance = AcceptanceSampler(speculation(num_tokens=6, rate=0.6))
    whole = acceptance.num_accepted(request_number, num_tokens, 6)
    assert acceptance.num_accepted(request_number, num_tokens, num_drafts) == min(whole, num_drafts)
