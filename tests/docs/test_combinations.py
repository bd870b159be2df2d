"""Features combine as the page on scheduling says, which has the message of each combination that is refused."""

from itertools import combinations
from typing import Any

import pytest

from blis_sim.engine.config import EngineConfig, PipelineStages
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.request_timing import RequestTiming
from blis_sim.engine.memory.kv_groups import CHUNKED, FULL, SLIDING, KVCacheGroupSpec
from blis_sim.engine.offloading import OffloadConfig
from blis_sim.engine.speculation import Speculation
from tests.docs.pages import PROJECT
from workshop.vllm_oracle.features import ALTERNATIVES, FEATURES, NOT_WITH_EXPERTS, drawn_workload

PAGE = (PROJECT / "docs" / "scheduling.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## What combines\n")[2].partition("\n## ")[0]
DROPPING = Speculation(method="eagle", num_tokens=4, acceptance_rates=(0.5, 0.5, 0.5, 0.5), hashes_next_token=False)
CPU_MEMORY = OffloadConfig(5, 1.0)
WINDOWS = (KVCacheGroupSpec(FULL, 16), KVCacheGroupSpec(SLIDING, 32, 32))
REFUSED: list[dict[str, Any]] = [
    {"speculation": DROPPING, "kv_groups": (KVCacheGroupSpec(CHUNKED, 16, 32), KVCacheGroupSpec(FULL, 16))},
    {"offload": CPU_MEMORY, "kv_groups": WINDOWS, "enable_prefix_caching": False},
    {"speculation": DROPPING, "max_num_batched_tokens": 4},
    {"offload": CPU_MEMORY, "timing": RequestTiming()},
    {"offload": CPU_MEMORY, "engine": "blis"},
    {"speculation": DROPPING, "engine": "blis"},
    {"pipeline": PipelineStages((0.5, 0.5)), "engine": "blis"},
]


def rows(head: str) -> list[str]:
    """Return the first cells of the table whose head begins so."""
    table = SECTION.partition(f"| {head} |")[2].partition("\n\n")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]


def test_any_two_features_of_the_page_combine() -> None:
    assert rows("feature") == [f"`{name}`" for name in FEATURES]
    for pair in combinations(FEATURES, 2):
        if any(set(pair) <= alternatives.keys() for alternatives in ALTERNATIVES):
            continue
        for seed in range(2):
            if "experts" in pair and not set(pair).isdisjoint(NOT_WITH_EXPERTS):
                with pytest.raises(EngineError, match="without pipeline stages"):
                    drawn_workload(seed, True, pair)
            else:
                drawn_workload(seed, True, pair)


def test_the_page_has_the_messages_of_what_is_refused() -> None:
    messages = []
    for settings in REFUSED:
        with pytest.raises(EngineError) as raised:
            EngineConfig(100, **settings)
        messages.append(str(raised.value))
    assert rows("message") == messages
