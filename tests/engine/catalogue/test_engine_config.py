"""The bounds of an engine's configuration."""

import pytest

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.errors import EngineError


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("total_kv_blocks", 1),
        ("block_size_tokens", 1),
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 1),
        ("long_prefill_token_threshold", 0),
        ("max_model_len", 0),
    ],
)
def test_each_limit_has_a_least_value(name: str, least: int) -> None:
    with pytest.raises(EngineError) as refusal:
        EngineConfig(**{"total_kv_blocks": 10, name: least - 1})  # type: ignore[arg-type]
    assert str(refusal.value) == f"{name} must be at least {least}, got {least - 1}"
    config = EngineConfig(**{"total_kv_blocks": 10, "engine": "blis", name: least})  # type: ignore[arg-type]
    assert getattr(config, name) == least


def test_the_longest_request_must_fit_in_the_kv_cache() -> None:
    assert EngineConfig(total_kv_blocks=11, max_model_len=160).kv_capacity_tokens == 160
    with pytest.raises(EngineError, match="max_model_len must fit in the KV cache of 160 tokens, got 161"):
        EngineConfig(total_kv_blocks=11, max_model_len=161)


def test_vllm_keeps_one_block_and_needs_another() -> None:
    assert EngineConfig(total_kv_blocks=2).kv_capacity_tokens == 16
    with pytest.raises(EngineError, match="total_kv_blocks must be at least 2 with engine vllm"):
        EngineConfig(total_kv_blocks=1)


def test_blis_has_every_block_for_requests() -> None:
    assert EngineConfig(total_kv_blocks=10, engine="blis").kv_capacity_tokens == 160
