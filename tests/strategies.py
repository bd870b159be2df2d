"""Random engines and workloads. Instants lie on a coarse grid, or ties would never occur."""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.core import Engine
from engine.request import PrefixGroupBlocks, Request, UniqueBlocks
from engine.speculation import DRAFTERS, Speculation
from engine.units import Micros
from tests.fakes import TestLatency, config

GRID_US = 500


@dataclass(frozen=True, slots=True)
class Workload:
    """How to build an engine, what arrives, and who hangs up when."""

    settings: dict[str, Any]
    latency: TestLatency
    arrivals: list[tuple[Micros, Request]]
    hang_ups: list[tuple[Micros, str]]
    speculation: Speculation | None = None

    def config(self, **more: Any) -> EngineConfig:
        return replace(config(**self.settings, **more), speculation=self.speculation)

    def engine(self) -> Engine:
        return Engine(self.config(), self.latency)


@st.composite
def workloads(
    draw: st.DrawFn,
    with_hang_ups: bool = True,
    schedulings: tuple[str, ...] = ("blis", "vllm"),
    with_speculation: bool = True,
) -> Workload:
    """Small and nasty: few blocks, small budgets, shared prefixes, deadlines, all policies."""
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    num_blocks = draw(st.integers(4, 40))
    max_model_len = draw(st.sampled_from([0, 0, 8, 30]))
    settings: dict[str, Any] = {
        "total_kv_blocks": num_blocks,
        "block_size_tokens": block_size,
        "max_num_seqs": draw(st.integers(1, 6)),
        "max_num_batched_tokens": draw(st.integers(1, 40)),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 3, 10])),
        "max_model_len": min(max_model_len, (num_blocks - 1) * block_size),
        "scheduler": draw(st.sampled_from(["fcfs", "fcfs", "priority-fcfs", "sjf", "reverse-priority"])),
        "preemption_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "scheduling": draw(st.sampled_from(schedulings)),
        "async_scheduling": draw(st.booleans()),
    }
    latency = TestLatency(
        step_us=draw(st.sampled_from([1, GRID_US, 2 * GRID_US])),
        prefill_token_us=draw(st.sampled_from([0, 100])),
        decode_us=draw(st.sampled_from([0, 100])),
        queueing_us=draw(st.sampled_from([0, GRID_US, 700])),
        output_token_time=draw(st.sampled_from([0, 40])),
        post_decode_time=draw(st.sampled_from([0, 300])),
    )
    capacity = (num_blocks - 1) * block_size
    count = draw(st.integers(1, 12))
    arrivals = sorted(
        (
            (draw(st.integers(0, 20)) * GRID_US, _request(draw, f"r{index}", capacity, block_size))
            for index in range(count)
        ),
        key=lambda arrival: arrival[0],
    )
    hang_ups: list[tuple[Micros, str]] = []
    if with_hang_ups:
        hang_ups = draw(
            st.lists(
                st.tuples(
                    st.integers(0, 60).map(lambda tick: tick * GRID_US),
                    st.integers(0, count).map(lambda index: f"r{index}"),
                ),
                max_size=4,
            )
        )
    speculation = None
    if with_speculation and settings["scheduling"] == "vllm":
        speculation = draw(st.one_of(st.none(), speculations(int(settings["max_num_batched_tokens"]))))
    return Workload(settings, latency, arrivals, sorted(hang_ups), speculation)


@st.composite
def speculations(draw: st.DrawFn, max_num_batched_tokens: int = 100) -> Speculation | None:
    """Any way of drafting; None where the budget is too small for one."""
    method = draw(st.sampled_from(list(DRAFTERS)))
    num_tokens = draw(st.integers(1, 4))
    if num_tokens >= max_num_batched_tokens:
        return None
    return Speculation(
        method=method,
        num_tokens=num_tokens,
        acceptance_rates=tuple(draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in range(num_tokens)),
        seed=draw(st.integers(0, 3)),
        draft_time_us=draw(st.sampled_from([0, 100])),
        parallel_drafting=DRAFTERS[method].writes_kv and draw(st.booleans()),
        hashes_next_token=draw(st.booleans()),
    )


def _request(draw: st.DrawFn, request_id: str, capacity: int, block_size: int) -> Request:
    input_tokens = draw(st.integers(0, max(1, capacity // 2)))
    # A request whose prompt and output outgrow the whole cache preempts itself forever, as in BLIS.
    output_tokens = draw(st.integers(0, max(0, min(25, capacity - input_tokens - 1))))
    group = draw(st.sampled_from(["", "", "g", "h"]))
    blocks: UniqueBlocks | PrefixGroupBlocks = UniqueBlocks(request_id)
    if group:
        blocks = PrefixGroupBlocks(request_id, group, draw(st.integers(0, input_tokens // block_size)))
    return Request(
        id=request_id,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_output_tokens=draw(st.sampled_from([output_tokens, output_tokens, 0])),
        blocks=blocks,
        deadline_us=draw(st.sampled_from([0, 0, 0, 5_000, 12_000])),
        slo_class=draw(st.sampled_from(["", "critical", "standard", "batch", "background"])),
    )
