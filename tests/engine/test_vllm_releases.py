"""Defaults of vLLM's releases, as their source states them."""

import pytest

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.engine_defaults import VLLM_RELEASES
from blis_sim.engine.events import Finished
from blis_sim.engine.request import PrefixGroupBlocks, Request


def config(gpu: str = "H100", **settings: object) -> EngineConfig:
    return resolve(DeploymentOptions(model="qwen/qwen3-14b", hardware=gpu, tp=1, **settings)).config  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("release", "is_async", "reserves"),
    [("0.11", False, False), ("0.15", True, False), ("0.19", True, True), ("0.23", True, True), ("0.33", True, True)],
)
def test_a_release_decides_how_steps_are_composed_and_prompts_admitted(
    release: str, is_async: bool, reserves: bool
) -> None:
    found = config(vllm_version=release)
    assert (found.async_scheduling, found.reserve_full_prompt) == (is_async, reserves)


def test_flags_decide_against_the_release() -> None:
    assert config(vllm_version="0.11", async_scheduling=True).async_scheduling
    assert not config(vllm_version="0.33", async_scheduling=False).async_scheduling
    assert config(vllm_version="0.15", scheduler_reserve_full_isl=True).reserve_full_prompt
    assert not config(vllm_version="0.33", scheduler_reserve_full_isl=False).reserve_full_prompt


def test_later_releases_take_more_of_the_gpu_memory() -> None:
    blocks = [config(vllm_version=release).total_kv_blocks for release in VLLM_RELEASES]
    assert blocks[0] == blocks[1] == blocks[2] < blocks[3] == blocks[4]
    given = {config(vllm_version=release, gpu_memory_utilization=0.9).total_kv_blocks for release in VLLM_RELEASES}
    assert given == {blocks[0]}


def test_only_the_latest_release_has_larger_steps_on_the_largest_gpus() -> None:
    limits = [config("B200", vllm_version=release).max_num_batched_tokens for release in VLLM_RELEASES]
    assert limits == [8192, 8192, 8192, 8192, 16384]
    assert {config("H100", vllm_version=release).max_num_batched_tokens for release in VLLM_RELEASES} == {8192}


@pytest.mark.parametrize(("release", "cached_tokens"), [("0.11", 112), ("0.23", 112), ("0.33", 0)])
def test_a_short_prompt_is_found_in_a_long_one_where_all_blocks_of_windows_stay_cached(
    release: str, cached_tokens: int
) -> None:
    options = DeploymentOptions(model="gpt-oss-20b", hardware="H100", tp=1, vllm_version=release)
    found = resolve(options)
    engine = Engine(found.config, found.latency)
    for name, at, tokens in (("long", 0, 2000), ("short", 10_000_000, 128)):
        engine.submit(Request(name, tokens, 4, PrefixGroupBlocks(name, "all", tokens // 16), 4), at)
    events = engine.advance(20_000_000)
    hits = {each.sequence.request.id: each.sequence.num_cached_tokens for each in events if isinstance(each, Finished)}
    assert hits == {"long": 0, "short": cached_tokens}
