"""The scripted workloads that vLLM's own scheduler was recorded on, and a driver that records ours the same way."""

from dataclasses import dataclass, field
from typing import Any

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.context import EngineContext
from blis_sim.engine.events import Finished, StepDone
from blis_sim.engine.request import HashedBlocks, Request
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.speculation import Speculation
from tests.fakes import TestLatency

BLOCK = 16
WHOLE_CACHE = 65_536
"""Blocks of the recorded server when nothing else is said."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Settings, requests and aborts, each by the step before which it comes."""

    settings: dict[str, Any]
    arrivals: dict[int, list[tuple[Request, float]]]
    aborts: dict[int, list[str]] = field(default_factory=dict)


def tokens(count: int, other: int = 0) -> list[int]:
    return [1000 + other * 3000 + index for index in range(count)]


def request(
    name: str, prompt: list[int], max_tokens: int, priority: int = 0, at: float = 0.0, reads_prefix_cache: bool = True
) -> tuple[Request, float]:
    """A request with real tokens: its blocks are named by all tokens up to their end."""
    hashes = tuple(hash(tuple(prompt[: end * BLOCK])) for end in range(1, len(prompt) // BLOCK + 1))
    made = Request(
        id=name,
        input_tokens=len(prompt),
        output_tokens=max_tokens,
        max_output_tokens=max_tokens,
        blocks=HashedBlocks(name, hashes),
        priority=priority,
        reads_prefix_cache=reads_prefix_cache,
    )
    return made, at


def settings(**given: Any) -> dict[str, Any]:
    return {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 2048, "async_scheduling": False} | given


TIGHT = {"total_kv_blocks": 13, "max_num_batched_tokens": 256, "max_model_len": 160}
THREE = [("a", tokens(60)), ("b", tokens(60, 1)), ("c", tokens(40, 2))]

SCENARIOS: dict[str, Scenario] = {
    "chunked_prefill": Scenario(
        settings(),
        {0: [request("a", tokens(150), 4), request("b", tokens(20, 1), 3)], 2: [request("c", tokens(40, 2), 2)]},
    ),
    "long_prefill_threshold": Scenario(
        settings(long_prefill_token_threshold=16),
        {0: [request("a", tokens(100), 2), request("b", tokens(50, 1), 2)]},
    ),
    "prefix_cache": Scenario(
        settings(max_num_batched_tokens=256),
        {
            0: [request("a", tokens(64), 3)],
            6: [request("b", tokens(64), 3)],
            12: [request("c", tokens(64)[:40] + tokens(30, 2), 3)],
            18: [request("d", tokens(65), 2)],
        },
    ),
    "prefix_same_step": Scenario(
        settings(max_num_batched_tokens=256), {0: [request("a", tokens(64), 3), request("b", tokens(64), 3)]}
    ),
    "preempt_fcfs": Scenario(settings(**TIGHT), {0: [request(name, prompt, 30) for name, prompt in THREE]}),
    "preempt_priority": Scenario(
        settings(**TIGHT, scheduler="priority-fcfs", preemption_policy="priority"),
        {
            0: [
                request("lo", tokens(60), 30, 5, 1.0),
                request("hi", tokens(60, 1), 30, 0, 2.0),
                request("mid", tokens(40, 2), 30, 1, 3.0),
            ]
        },
    ),
    "max_num_seqs": Scenario(
        settings(max_num_seqs=2, max_num_batched_tokens=256),
        {0: [request(name, tokens(10, index), 3) for index, name in enumerate("abcd")]},
    ),
    "no_chunked": Scenario(
        settings(enable_chunked_prefill=False, max_model_len=128, max_num_batched_tokens=128),
        {0: [request("a", tokens(100), 3), request("b", tokens(60, 1), 3)]},
    ),
    "watermark": Scenario(
        settings(**TIGHT, watermark_fraction=0.3), {0: [request(name, prompt, 10) for name, prompt in THREE]}
    ),
    "reserve_full_off": Scenario(
        settings(total_kv_blocks=8, max_num_batched_tokens=32, max_model_len=100, reserve_full_prompt=False),
        {0: [request("a", tokens(60), 8), request("b", tokens(60, 1), 8)]},
    ),
    "reserve_full_on": Scenario(
        settings(total_kv_blocks=8, max_num_batched_tokens=32, max_model_len=100),
        {0: [request("a", tokens(60), 8), request("b", tokens(60, 1), 8)]},
    ),
    "async": Scenario(
        settings(async_scheduling=True), {0: [request("a", tokens(100), 4)], 3: [request("b", tokens(20, 1), 3)]}
    ),
    "async_preempt": Scenario(
        settings(**TIGHT, async_scheduling=True), {0: [request(name, prompt, 30) for name, prompt in THREE]}
    ),
    "prefill_interval": Scenario(
        settings(prefill_schedule_interval=3),
        {
            0: [request("a", tokens(20), 12)],
            1: [request("b", tokens(100, 1), 3)],
            2: [request("c", tokens(20, 2), 3)],
        },
    ),
    "max_model_len_stop": Scenario(settings(max_model_len=40), {0: [request("a", tokens(36), 100)]}),
    "abort": Scenario(
        settings(), {0: [request("a", tokens(30), 20), request("b", tokens(30, 1), 20)]}, aborts={3: ["a"]}
    ),
    "spec_ngram": Scenario(
        settings(speculation=Speculation(method="ngram", num_tokens=3, acceptance_rates=(0.0,) * 3)),
        {0: [request("a", tokens(30), 10)], 2: [request("b", tokens(20, 1), 6)]},
    ),
    "fcfs_headofline": Scenario(
        settings(total_kv_blocks=9, max_num_batched_tokens=256, max_model_len=120),
        {
            0: [
                request("a", tokens(60), 6),
                request("big", tokens(100, 1), 3),
                request("small", tokens(10, 2), 3),
            ]
        },
    ),
    "prompt_logprobs_skip_cache": Scenario(
        settings(max_num_batched_tokens=256),
        {0: [request("a", tokens(64), 2)], 4: [request("b", tokens(64), 2, reads_prefix_cache=False)]},
    ),
}


def record(scenario: Scenario, max_steps: int = 200) -> list[dict[str, Any]]:
    """Drive our scheduling as the recorder drove vLLM's: one composition a line, outputs one or two calls later."""
    config = EngineConfig(
        **{"total_kv_blocks": WHOLE_CACHE, "block_size_tokens": BLOCK} | scenario.settings, engine="vllm"
    )
    instance = EngineContext(config, TestLatency())
    scheduler = _scheduler(instance)
    depth = 2 if config.async_scheduling else 1
    pending = dict(scenario.arrivals)
    in_flight: list[bool] = []
    lines: list[dict[str, Any]] = []
    live: dict[str, Sequence] = {}
    number = 0
    while number < max_steps:
        for made, at in pending.pop(number, []):
            live[made.id] = instance.live[made.id] = sequence = Sequence(made, int(at * 1_000_000))
            sequence.priority = made.priority or 0
            sequence.max_output_tokens = made.max_output_tokens
            scheduler.enqueue(sequence, number)
        for name in scenario.aborts.get(number, []):
            scheduler.remove(live[name], Outcome.ABORTED, number)
        if not instance.live and not pending and not any(in_flight):
            break
        lines.append(_one_call(instance, scheduler, in_flight, depth, number))
        number += 1
    return lines


def _scheduler(instance: EngineContext) -> VllmScheduler:
    """Share of the drafts that the recorder's executor accepts: half."""
    return VllmScheduler(instance, has_cohort=False, num_accepted=lambda _, num_drafts: num_drafts // 2)


def _one_call(
    instance: EngineContext, scheduler: VllmScheduler, in_flight: list[bool], depth: int, number: int
) -> dict[str, Any]:
    queries, hits = scheduler.kv.queried_tokens, scheduler.kv.hit_tokens
    instance.events = []
    owned = {id(s): len(s.block_ids) for s in [*scheduler.explicit, *scheduler.waiting]}
    is_scheduled = bool(instance.live) and scheduler.schedule(number)
    line: dict[str, Any] = {"n": {}, "blocks": {}, "out": {}}
    if is_scheduled:
        instance.steps.append(number, number + 1)
        scheduled = scheduler.in_flight[-1][2]
        line["n"] = {tokens.sequence.request.id: tokens.num_tokens for tokens in scheduled}
        for tokens in scheduled:
            sequence = tokens.sequence
            start = 0 if sequence in scheduler.admitted else owned[id(sequence)]
            line["blocks"][sequence.request.id] = [block + 1 for block in sequence.block_ids[start:]]
    line["preempted"] = sorted(sequence.request.id for sequence in scheduler.preempted) if is_scheduled else []
    in_flight.append(is_scheduled)
    # An empty batch takes its place in the queue of batches, and a call of its own to be processed.
    if (len(in_flight) == depth or not is_scheduled) and in_flight.pop(0):
        instance.events += scheduler.update(number)
    for event in instance.events:
        if isinstance(event, StepDone):
            line["out"] |= {
                s.request.id: [s.tokens_at(event.index) - s.tokens_at(event.index - 1), None] for s in event.emitted
            }
        if isinstance(event, Finished) and event.outcome is not Outcome.ABORTED:
            line["out"][event.sequence.request.id][1] = "length"
    line["running"] = [sequence.request.id for sequence in scheduler.explicit]
    line["waiting"] = [sequence.request.id for sequence in scheduler.waiting]
    line["free"] = scheduler.kv.num_blocks - scheduler.kv.num_used_blocks
    line["queries"] = scheduler.kv.queried_tokens - queries
    line["hits"] = scheduler.kv.hit_tokens - hits
    return line
