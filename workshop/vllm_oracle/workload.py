"""Random workloads, small and nasty, that both schedulers can be run on; and the record of each on a run."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.request import Medium
from blis_sim.engine.units import Micros

TICK_US = 50
"""Arrivals and steps lie on this grid, so that they often coincide; hang-ups and deadlines lie beside it."""
GROUP_TOKENS = 100_000
"""Token ids each shared prefix has for itself."""
OWN_TOKENS = 10_000_000
"""Token ids each request has for itself."""
MANY_LINES = 5_000
"""Most lines of a story; a run that does not end is cut off there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request with its real prompt and answer."""

    number: int
    at: Micros
    prompt: tuple[int, ...]
    output_tokens: int
    """Below the budget, the last one is a stop token."""
    max_tokens: int
    """0: none declared."""
    budget: int
    """`max_tokens`, or without it what vLLM's input processing makes of that: all that the context leaves."""
    priority: int
    deadline_us: Micros
    reads_prefix_cache: bool
    media: tuple[Medium, ...] = ()
    reports_found_blocks: bool = False
    adapter: str = ""
    salt: str = ""

    @property
    def id(self) -> str:
        return f"r{self.number:02}"

    @property
    def stop_token(self) -> int:
        return self.own_token(OWN_TOKENS - 1)

    def own_token(self, index: int) -> int:
        """A token id that no other request has, unless its prompt repeats this one's answer."""
        return (self.number + 1) * OWN_TOKENS + index

    def output_token(self, index: int) -> int:
        stops = index == self.output_tokens - 1 < self.budget - 1
        return self.stop_token if stops else self.own_token(index)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt and the answer, should it not be cut off."""
        return (*self.prompt, *map(self.output_token, range(self.output_tokens)))


@dataclass(frozen=True, slots=True)
class GridLatency(LatencyModel):
    """Step times that differ for steps of different size, all on the grid."""

    step_us: Micros
    token_us: Micros
    request_us: Micros

    def time_of(self, num_tokens: int, num_requests: int) -> Micros:
        return self.step_us + self.token_us * num_tokens + self.request_us * num_requests

    def step_time(self, shape: BatchShape) -> Micros:
        return self.time_of(shape.num_tokens, shape.num_requests)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        return np.full(steps, self.step_time(shape), np.int64)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Data-parallel ranks behind one front end."""

    number: int
    share_experts: bool
    """Whether their forward passes begin together."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Settings, arrivals in order, and hang-ups."""

    config: EngineConfig
    latency: GridLatency
    arrivals: list[Arrival]
    hang_ups: list[tuple[Micros, str]]
    ranks: Ranks | None = None

    @property
    def by_priority(self) -> bool:
        return self.config.preemption_policy == "priority"


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """One composition that granted or preempted something."""

    at: Micros
    tokens: tuple[tuple[str, int], ...]
    """Request and tokens, in batch order."""
    new_blocks: tuple[tuple[str, tuple[int, ...]], ...]
    preempted: tuple[str, ...]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    free_blocks: int
    queried_tokens: int
    hit_tokens: int
    loaded_tokens: int = 0
    """Tokens that CPU memory gives, of loads that begin."""
    num_offloaded_blocks: int = 0
    """Blocks in CPU memory, those on their way included."""
    num_behind: tuple[int, ...] = ()
    """Blocks that have been read from devices behind CPU memory so far, those that each device holds, and counts of
    look-ups in all tiers."""


@dataclass(frozen=True, slots=True)
class ProcessedOutputs:
    """The outputs of one step: tokens by request, and why it ended, or None."""

    at: Micros
    outputs: tuple[tuple[str, int, str | None], ...]
    running: tuple[str, ...]
    free_blocks: int
    drafts: tuple[int, ...]
    """Drafts verified, their tokens, those accepted, and these by position; empty when there were none."""


@dataclass(frozen=True, slots=True, order=True)
class AbortedRequest:
    """A request that ended at `at` because its client is gone."""

    at: Micros
    id: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A request that a front end sent to a data-parallel rank."""

    id: str
    rank: int


Reported = Choice | ScheduledStep | ProcessedOutputs | AbortedRequest


@dataclass(slots=True)
class RunRecord:
    """The record of a scheduler: its steps in order, and apart from them the requests that left before the end.

    Apart, because the order among things of one instant differs: ours sees a request that comes while a step executes
    at once, vLLM only when it has processed that step.
    """

    lines: list[ScheduledStep | ProcessedOutputs] = field(default_factory=list)
    aborted: list[AbortedRequest] = field(default_factory=list)
    content: list[tuple[Any, ...]] = field(default_factory=list)
    """The changes of what the prefix cache holds, where these are recorded."""
    changes: list[tuple[object, ...]] = field(default_factory=list)
    """Changes of each request, and all steps, of ours."""
    choices: list[Choice] = field(default_factory=list)
    """The data-parallel rank of each request, in order of arrival, where there are several."""

    @property
    def is_endless(self) -> bool:
        """Whether the run seems endless: without `reserve_full_prompt` requests can evict each other in turn."""
        return len(self.lines) >= MANY_LINES

    def reported(self) -> list[Reported]:
        if self.is_endless:
            return list(self.lines[:MANY_LINES])
        return [*self.choices, *self.lines, *sorted(self.aborted)]


def joined(records: list[RunRecord], choices: list[Choice]) -> RunRecord:
    """Return the records of data-parallel ranks as one, rank after rank; of an endless one its lines alone."""
    for record in records:
        if record.is_endless:
            return RunRecord(record.lines)
    whole = RunRecord(choices=choices)
    for record in records:
        whole.lines += record.lines
        whole.aborted += record.aborted
        whole.content += record.content
    return whole


def draw_workload(seed: int, async_scheduling: bool) -> Workload:
    """The workload of a seed; the same for both kinds of scheduling except for that setting.

    In every third no request shares anything and budgets are wide, as mostly in reality.
    """
    generator = np.random.default_rng(seed)
    config = _draw_config(generator, async_scheduling)
    is_usual = seed % 3 == 0
    if is_usual:
        config = _widened(generator, config)
    latency = GridLatency(
        step_us=int(generator.integers(1, 10)) * TICK_US,
        token_us=int(generator.choice([0, TICK_US])),
        request_us=int(generator.choice([0, TICK_US])),
    )
    num_requests = int(generator.integers(1, 21))
    prefixes = [] if is_usual else _draw_prefix_lengths(generator, config)
    arrivals: list[Arrival] = []
    at = 0
    for number in range(num_requests):
        at += TICK_US * int(generator.choice([0, 0, 0, 1, 4, 20, 100]))
        arrivals.append(
            _draw_arrival(generator, config, number, at, _draw_prompt(generator, config, arrivals, prefixes))
        )
    names = [arrival.id for arrival in arrivals]
    hang_ups = [
        (_beside_the_grid(generator, at + 200 * TICK_US), str(generator.choice(names)))
        for _ in range(int(generator.choice([0, 0, 1, 3])))
    ]
    return Workload(config, latency, arrivals, sorted(hang_ups))


def _draw_config(generator: np.random.Generator, async_scheduling: bool) -> EngineConfig:
    block_size = int(generator.choice([16, 16, 32]))
    num_blocks = int(generator.integers(8, 61 if generator.random() < 0.4 else 21))
    capacity = (num_blocks - 1) * block_size
    max_model_len = (
        min(500, capacity) if generator.random() < 0.5 else int(generator.integers(48, min(500, capacity) + 1))
    )
    chunked = bool(generator.random() < 0.8)
    budget = int(generator.choice([16, 17, 32, 48, 64, 100, 128, 256]))
    by_priority = bool(generator.random() < 0.4)
    return EngineConfig(
        total_kv_blocks=num_blocks,
        block_size_tokens=block_size,
        max_num_seqs=int(generator.integers(1, 9)),
        max_num_batched_tokens=budget if chunked else max(budget, max_model_len),
        long_prefill_token_threshold=int(generator.choice([0, 0, 1, 7, 16, 40])),
        max_model_len=max_model_len,
        scheduler="priority-fcfs" if by_priority else "fcfs",
        preemption_policy="priority" if by_priority else "fcfs",
        engine="vllm",
        async_scheduling=async_scheduling,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=bool(generator.random() < 0.8),
        reserve_full_prompt=bool(generator.random() < 0.6),
        watermark_fraction=float(generator.choice([0.0, 0.0, 0.05, 0.2])),
        prefill_schedule_interval=int(generator.choice([1, 1, 2, 3, 6])),
    )


def _widened(generator: np.random.Generator, config: EngineConfig) -> EngineConfig:
    """Nearly every prompt fits into one step, beside those that decode."""
    return replace(
        config,
        total_kv_blocks=config.total_kv_blocks * int(generator.choice([1, 2, 4])),
        max_num_batched_tokens=max(config.max_num_batched_tokens, int(generator.choice([100, 256, 512]))),
        long_prefill_token_threshold=int(generator.choice([0, 0, 0, 40])),
        prefill_schedule_interval=1,
    )


def _draw_prefix_lengths(generator: np.random.Generator, config: EngineConfig) -> list[int]:
    """Lengths that requests share: around the ends of blocks, and anywhere."""
    return [_near_a_block_end(generator, config) for _ in range(3)]


def _near_a_block_end(generator: np.random.Generator, config: EngineConfig) -> int:
    longest = config.max_model_len - 1
    if generator.random() < 0.3:
        return int(generator.integers(1, longest + 1))
    num_blocks = int(generator.integers(1, max(2, longest // config.block_size_tokens)))
    length = num_blocks * config.block_size_tokens + int(generator.integers(-1, 2))
    return min(max(1, length), longest)


def _draw_prompt(
    generator: np.random.Generator, config: EngineConfig, earlier: list[Arrival], prefixes: list[int]
) -> tuple[int, ...]:
    """A beginning that others may have, too, and a rest of its own."""
    length = _near_a_block_end(generator, config)
    kind = generator.random()
    if kind < 0.2 or not prefixes:
        beginning: tuple[int, ...] = ()
    elif kind < 0.4 and earlier:
        # The next turn of a conversation repeats the turn before, with its answer or a part of it.
        beginning = earlier[int(generator.integers(len(earlier)))].tokens
        length = min(len(beginning) + int(generator.integers(-8, 20)), config.max_model_len - 1)
    else:
        # All prefixes of a group start alike, so the shorter ones are nested in the longer ones.
        group = int(generator.choice([0, 0, 0, 1])) * GROUP_TOKENS
        shared = int(generator.choice(prefixes))
        beginning = tuple(range(group, group + shared))
        length = shared if kind > 0.8 else length  # the prefix and nothing else: identical prompts
    own = (len(earlier) + 1) * OWN_TOKENS + OWN_TOKENS // 2
    return (*beginning, *range(own, own + max(0, length - len(beginning))))[: max(1, length)]


def _draw_arrival(
    generator: np.random.Generator, config: EngineConfig, number: int, at: Micros, prompt: tuple[int, ...]
) -> Arrival:
    max_tokens = min(int(generator.integers(1, 41 if generator.random() < 0.8 else 200)), config.max_model_len)
    output_tokens = int(generator.integers(1, max_tokens + 1)) if generator.random() < 0.4 else max_tokens
    declares = bool(generator.random() < 0.9)
    deadline = _beside_the_grid(generator, 300 * TICK_US) if generator.random() < 0.1 else 0
    return Arrival(
        number=number,
        at=at,
        prompt=prompt,
        output_tokens=output_tokens,
        max_tokens=max_tokens if declares else 0,
        budget=max_tokens if declares else config.max_model_len - len(prompt),
        priority=int(generator.integers(0, 4)),
        deadline_us=at + deadline if deadline else 0,
        reads_prefix_cache=bool(generator.random() < 0.85),
    )


def _beside_the_grid(generator: np.random.Generator, latest: Micros) -> Micros:
    return int(generator.integers(1, latest)) // TICK_US * TICK_US + 1
