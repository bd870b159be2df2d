"""Random engines and workloads. Instants lie on a coarse grid, or ties would never occur."""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from blis_sim.engine.config import EngineConfig, PipelineStages
from blis_sim.engine.core import Engine
from blis_sim.engine.offloading import CpuTierConfig
from blis_sim.engine.request import BlockIdentities, PrefixGroupBlocks, Request, UniqueBlocks
from blis_sim.engine.scheduler.policies import PRIORITIES
from blis_sim.engine.speculation import DRAFTERS, Speculation
from blis_sim.engine.units import Micros
from replay.arrivals import ConversationBlocks
from tests.fakes import TestLatency, config

GRID_US = 500

CPU_TIERS = (CpuTierConfig(9, base_latency_us=GRID_US), CpuTierConfig(20, "threshold", offload_threshold=0.5))
"""One that holds copies, one that takes blocks under pressure."""


@dataclass(frozen=True, slots=True)
class Workload:
    """An engine's configuration, its arrivals, and its hang-ups."""

    settings: dict[str, Any]
    latency: TestLatency
    arrivals: list[tuple[Micros, Request]]
    hang_ups: list[tuple[Micros, str]]
    speculation: Speculation | None = None

    def config(self, **more: Any) -> EngineConfig:
        return replace(config(**(self.settings | more)), speculation=self.speculation)

    def engine(self) -> Engine:
        return Engine(self.config(), self.latency)


PIPELINES = (PipelineStages((0.5, 0.5)), PipelineStages((0.25, 0.25, 0.4, 0.1), 50, 3))


@st.composite
def workloads(
    draw: st.DrawFn,
    with_hang_ups: bool = True,
    schedulings: tuple[str, ...] = ("blis", "vllm"),
    with_speculation: bool = True,
    with_cpu_tier: bool = False,
    with_pipeline: bool = False,
) -> Workload:
    """Small and nasty: few blocks, small budgets, shared prefixes and replies, deadlines, all policies and switches."""
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    num_blocks = draw(st.integers(4, 40))
    capacity = (num_blocks - 1) * block_size
    settings = _settings(draw, num_blocks, block_size, draw(st.sampled_from(schedulings)))
    if with_cpu_tier and settings["engine"] == "blis":
        settings["cpu_tier"] = draw(st.sampled_from([None, *CPU_TIERS]))
    if with_pipeline and settings["engine"] == "vllm":
        settings["pipeline"] = draw(st.sampled_from([None, *PIPELINES]))
    latency = TestLatency(
        step_us=draw(st.sampled_from([1, GRID_US, 2 * GRID_US])),
        prefill_token_us=draw(st.sampled_from([0, 100])),
        decode_us=draw(st.sampled_from([0, 100])),
        figure_us=draw(st.sampled_from([0, 0, 1])),
        queueing_us=draw(st.sampled_from([0, GRID_US, 700])),
        output_token_time=draw(st.sampled_from([0, 40])),
        post_decode_time=draw(st.sampled_from([0, 300])),
    )
    count = draw(st.integers(1, 12))
    arrivals = sorted(
        (
            (
                draw(st.integers(0, 20)) * GRID_US,
                _request(draw, f"r{index}", capacity, block_size, ["own", "prefix", "talk"]),
            )
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
    if with_speculation and settings["engine"] == "vllm":
        speculation = draw(st.one_of(st.none(), speculations(int(settings["max_num_batched_tokens"]))))
    if speculation is not None and settings.get("pipeline"):
        # With less a request that lacks one token is never admitted, which deployments refuse.
        least = 1 + speculation.num_tokens + speculation.rows_per_request
        settings["max_num_batched_tokens"] = max(settings["max_num_batched_tokens"], least)
    return Workload(settings, latency, arrivals, sorted(hang_ups), speculation)


@st.composite
def usual_workloads(draw: st.DrawFn, scheduling: str = "vllm") -> Workload:
    """A typical load of a scheduler, only denser: prompts that are not shared and that fit, long answers.

    Now and then a client hangs up, a deadline passes, blocks or budget run short, or a prompt is one that others share.
    """
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    num_blocks = draw(st.sampled_from([20, 60, 60, 400]))
    capacity = (num_blocks - 1) * block_size
    settings = {
        "total_kv_blocks": num_blocks,
        "block_size_tokens": block_size,
        "max_num_seqs": draw(st.sampled_from([2, 4, 30])),
        "max_num_batched_tokens": draw(st.sampled_from([16, 40, 100])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 0, 10])),
        "max_model_len": min(draw(st.sampled_from([0, 0, 30])), capacity),
        "scheduler": draw(st.sampled_from(["fcfs", "fcfs", "sjf"])),
        "preemption_policy": draw(st.sampled_from(["fcfs", "fcfs", "priority"])),
        "engine": scheduling,
        "async_scheduling": draw(st.sampled_from([True, True, True, False])),
        "enable_prefix_caching": draw(st.sampled_from([True, True, False])),
        "reserve_full_prompt": draw(st.sampled_from([True, True, False])),
        "watermark_fraction": draw(st.sampled_from([0.0, 0.0, 0.1])),
    }
    latency = TestLatency(
        step_us=draw(st.sampled_from([30, GRID_US, 2 * GRID_US])),
        prefill_token_us=draw(st.sampled_from([0, 10])),
        figure_us=draw(st.sampled_from([0, 1])),
        queueing_us=draw(st.sampled_from([0, 700])),
    )
    count = draw(st.integers(1, 16))
    kinds = draw(st.sampled_from([["own"], ["own"], ["own", "own", "own", "prefix"], ["own", "talk"]]))
    arrivals = []
    for index in range(count):
        at = draw(st.integers(0, 80)) * GRID_US
        request = _request(draw, f"r{index}", min(capacity, 80), block_size, kinds)
        deadline_us = draw(st.sampled_from([0, 0, 0, at + 7_777, at + 10 * GRID_US]))
        arrivals.append((at, request._replace(deadline_us=deadline_us)))
    hang_ups = draw(
        st.lists(
            st.tuples(st.integers(0, 1000).map(lambda tick: tick * 100), st.integers(0, count - 1).map("r{}".format)),
            max_size=4,
        )
    )
    return Workload(settings, latency, sorted(arrivals, key=lambda arrival: arrival[0]), sorted(hang_ups))


@st.composite
def talks(draw: st.DrawFn) -> Workload:
    """Long replies that later requests find: steps are short, so that many of them lie between arrivals."""
    usual = draw(usual_workloads())
    size, capacity = usual.settings["block_size_tokens"], (usual.settings["total_kv_blocks"] - 1)
    capacity *= size
    arrivals = []
    for at, request in usual.arrivals:
        output_tokens = draw(st.integers(0, max(0, min(60, capacity - request.input_tokens - 1))))
        named = _blocks(draw, request.id, size, request.input_tokens, output_tokens, "talk")
        budget = draw(st.sampled_from([output_tokens, 0]))
        changed = request._replace(output_tokens=output_tokens, max_output_tokens=budget, blocks=named, deadline_us=0)
        arrivals.append((at, changed))
    latency = replace(usual.latency, step_us=draw(st.sampled_from([30, 90])), prefill_token_us=0)
    return replace(usual, arrivals=arrivals, latency=latency)


@st.composite
def speculations(draw: st.DrawFn, max_num_batched_tokens: int = 100) -> Speculation | None:
    """Any way of drafting; None where the budget is too small for one."""
    method = draw(st.sampled_from(list(DRAFTERS)))
    num_tokens = draw(st.integers(1, 4))
    if num_tokens + DRAFTERS[method].num_more_slots >= max_num_batched_tokens:
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


def _settings(draw: st.DrawFn, num_blocks: int, block_size: int, scheduling: str) -> dict[str, Any]:
    capacity = (num_blocks - 1) * block_size
    settings: dict[str, Any] = {
        "total_kv_blocks": num_blocks,
        "block_size_tokens": block_size,
        "max_num_seqs": draw(st.integers(1, 6)),
        "max_num_batched_tokens": draw(st.integers(1, 40)),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 3, 10])),
        "max_model_len": min(draw(st.sampled_from([0, 0, 8, 30])), capacity),
        "scheduler": draw(st.sampled_from(["fcfs", "fcfs", "priority-fcfs", "sjf", "reverse-priority"])),
        "priority_policy": draw(st.sampled_from(["slo-class", "slo-class", *PRIORITIES])),
        "preemption_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "engine": scheduling,
        "async_scheduling": draw(st.booleans()),
    }
    if scheduling == "vllm":
        return settings | _vllm_switches(draw, settings, capacity)
    return settings


def _vllm_switches(draw: st.DrawFn, settings: dict[str, Any], capacity: int) -> dict[str, Any]:
    switches: dict[str, Any] = {
        "enable_chunked_prefill": draw(st.sampled_from([True, True, False])),
        "enable_prefix_caching": draw(st.sampled_from([True, True, True, False])),
        "reserve_full_prompt": draw(st.booleans()),
        "watermark_fraction": draw(st.sampled_from([0.0, 0.0, 0.05, 0.4])),
        "prefill_schedule_interval": draw(st.sampled_from([1, 1, 1, 2, 3, 7])),
    }
    if not switches["enable_chunked_prefill"]:
        # A prompt that never fits the budget, of which drafts may take a part, would wait for ever.
        limit_tokens = (settings["max_model_len"] or capacity) + 10
        switches["max_num_batched_tokens"] = max(settings["max_num_batched_tokens"], limit_tokens)
    return switches


def _request(draw: st.DrawFn, request_id: str, capacity: int, block_size: int, kinds: list[str]) -> Request:
    input_tokens = draw(st.integers(0, max(1, capacity // 2)))
    # A request whose prompt and output outgrow the whole cache preempts itself forever, as in BLIS.
    output_tokens = draw(st.integers(0, max(0, min(25, capacity - input_tokens - 1))))
    return Request(
        id=request_id,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_output_tokens=draw(st.sampled_from([output_tokens, output_tokens, 0])),
        blocks=_blocks(draw, request_id, block_size, input_tokens, output_tokens, draw(st.sampled_from(kinds))),
        deadline_us=draw(st.sampled_from([0, 0, 0, 5_000, 12_000])),
        slo_class=draw(st.sampled_from(["", "critical", "standard", "batch", "background"])),
        priority=draw(st.sampled_from([None, None, None, -1, 4])),
        reads_prefix_cache=draw(st.sampled_from([True, True, True, True, False])),
    )


def _blocks(
    draw: st.DrawFn, request_id: str, block_size: int, input_tokens: int, output_tokens: int, kind: str
) -> BlockIdentities:
    group = draw(st.sampled_from(["g", "h"]))
    if kind == "own":
        return UniqueBlocks(request_id)
    if kind == "prefix":
        return PrefixGroupBlocks(request_id, group, draw(st.integers(0, input_tokens // block_size)))
    num_shareable = (input_tokens + max(0, output_tokens - 1)) // block_size
    return ConversationBlocks(request_id, num_shareable, owners=(f"talk {group}",), ends=(num_shareable,))
