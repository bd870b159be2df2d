"""Random runs with deadlines, urgency and preemption by priority, and the laws that each of them keeps."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished, Preempted
from blis_sim.engine.request import HashedBlocks, Request, UniqueBlocks
from blis_sim.engine.scheduler.policies import SlotPreemption
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.speculation import Speculation, SpeculationGates
from blis_sim.engine.urgency import UrgencySettings
from tests.fakes import TestLatency

BLOCK = 4


@dataclass
class WatchedPlaces:
    """Places that records for each request that lost its place the one that took it, the gap, and what was computed."""

    places: SlotPreemption
    most_running: int
    min_gap: int
    displaced: list[tuple[Sequence, Sequence, int]] = field(default_factory=list)
    num_taken: int = 0
    """Places taken in one composition."""

    def find_victim(self, candidate: Sequence, running: list[Sequence]) -> int | None:
        index = self.places.find_victim(candidate, running)
        if index is not None:
            victim = running[index]
            assert victim.priority - candidate.priority >= self.min_gap
            assert all(each.priority <= victim.priority for each in running)
            self.num_taken = 0 if len(running) == self.most_running else self.num_taken + 1
            assert len(running) + self.num_taken == self.most_running, "a place was taken while another was free"
            self.displaced.append((candidate, victim, victim.num_computed_tokens))
        return index

    def forget(self, sequence: Sequence) -> None:
        self.places.forget(sequence)


@dataclass(frozen=True)
class UrgencyRun:
    """One engine and its requests, drawn from a number."""

    config: EngineConfig
    latency: TestLatency
    arrivals: list[tuple[int, Request]]


def drawn(number: int) -> UrgencyRun:
    """The run of this number."""
    random = Random(number)
    speculation = None
    if random.random() < 0.4:
        gates = SpeculationGates(
            max_utilization=random.choice([None, 0.5, 0.9]),
            min_slack_us=random.choice([None, 3000]),
            min_priority=random.choice([None, 3]),
            min_tokens_left=random.choice([None, 2]),
        )
        method = random.choice(["ngram", "eagle"])
        speculation = Speculation(
            method=method, num_tokens=2, acceptance_rates=(0.7, 0.7), gates=random.choice([None, gates])
        )
    settings: dict[str, Any] = {
        "preemption_policy": random.choice(["gap", "gap", "fcfs", "priority"]),
        "priority_policy": random.choice(["slo-urgency", "slo-urgency", "slo-class"]),
    }
    config = EngineConfig(
        total_kv_blocks=random.choice([13, 17, 40, 400]),
        block_size_tokens=BLOCK,
        max_num_seqs=random.choice([1, 2, 4, 8]),
        max_num_batched_tokens=random.choice([16, 64, 512]),
        max_model_len=40,
        scheduler=random.choice(["priority-deadline", "priority-deadline", "priority-slo-target", "fcfs"]),
        async_scheduling=random.random() < 0.6,
        speculation=speculation,
        urgency=UrgencySettings(
            window_us=random.choice([0, 2000, 10_000]),
            step=random.choice([1, 2, 5]),
            interval_us=random.choice([0, 0, 500, 1000]),
            min_preempt_gap=random.choice([1, 3, 5]),
            keeps_progress=random.random() < 0.5,
            deadlines_us=random.choice([{}, {"default": 20_000, "critical": 4000}]),
            ends_late_requests=random.random() < 0.3,
        ),
        **settings,
    )
    latency = TestLatency(step_us=random.choice([300, 1000]), prefill_token_us=random.choice([0, 20]), decode_us=3)
    at, arrivals = 0, []
    for index in range(random.choice([3, 12, 25])):
        at += random.choice([0, 0, 100, 700, 5000])
        arrivals.append((at, _request(random, f"r{index}", at)))
    return UrgencyRun(config, latency, arrivals)


def _request(random: Random, name: str, at: int) -> Request:
    num_input, num_output = random.randint(1, 20), random.randint(1, 15)
    group = random.randint(0, 2)
    hashes = tuple(hash((group, index)) for index in range(num_input // BLOCK))
    return Request(
        id=name,
        input_tokens=num_input,
        output_tokens=num_output,
        blocks=HashedBlocks(name, hashes) if random.random() < 0.5 else UniqueBlocks(name),
        max_output_tokens=num_output,
        deadline_us=at + 30_000 if random.random() < 0.1 else 0,
        slo_class=random.choice(["", "critical", "batch", "background"]),
        priority=random.choice([None, 0, 2, 4, 6, 9]),
        slo_e2e_us=random.choice([0, 3000, 20_000]),
    )


def story_with_laws(run: UrgencyRun, allows_multi_step: bool = True) -> tuple[list[tuple[Any, ...]], int]:
    """Run it, check the laws, and return how each request ended and how many lost their places."""
    engine = Engine(run.config, run.latency, reports_steps=not allows_multi_step)
    scheduler: Any = engine._scheduler
    watched = None
    urgent = scheduler._urgent
    if urgent is not None and urgent.places is not None:
        urgent.places = watched = WatchedPlaces(
            urgent.places, run.config.max_num_seqs, run.config.urgency.min_preempt_gap
        )
    events: list[Event] = list(run_virtual(engine, run.arrivals))
    engine.check_integrity()
    ended = engine.counters.ended
    assert sum(ended.values()) == len(run.arrivals), "a request starved"
    may_end = {Outcome.COMPLETED, Outcome.LENGTH_CAPPED, Outcome.DROPPED, Outcome.TIMED_OUT}
    assert all(outcome in may_end for outcome, count in ended.items() if count)
    assert run.config.urgency.ends_late_requests or not ended[Outcome.TIMED_OUT]
    assert engine.kv.num_used_blocks == 0
    num_displaced = 0
    if watched is not None:
        pairs = [(candidate.request.id, victim.request.id) for candidate, victim, _ in watched.displaced]
        assert len(set(pairs)) == len(pairs), "one request took the place of another twice"
        num_displaced = len(pairs)
        assert num_displaced <= engine.counters.num_preemptions
        if (
            run.config.urgency.keeps_progress
            and engine.counters.num_preemptions == num_displaced
            and not _took_back(engine)
        ):
            _check_progress(watched.displaced)
    story = [
        (type(event).__name__, event.at, event.sequence.request.id)
        for event in events
        if isinstance(event, Finished | Preempted)
    ]
    return story, num_displaced


def _took_back(engine: Engine) -> bool:
    """Whether what a request computed may have been taken back for another reason than a lost place."""
    return engine.config.speculation is not None or engine.config.total_kv_blocks < 400


def _check_progress(displaced: list[tuple[Sequence, Sequence, int]]) -> None:
    """With enough KV blocks, a request that loses its place again has computed no less than before."""
    computed: dict[str, int] = {}
    for _, victim, num_computed in displaced:
        assert num_computed >= computed.get(victim.request.id, 0), "progress was lost"
        computed[victim.request.id] = num_computed
