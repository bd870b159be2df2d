"""The model of a workload spec, version 2: the clients, their requests, and their send times.

Each field is a key of the file, and its type defines the allowed values. Instants and durations are microseconds, rates
requests per second. What must hold between several keys is checked in `checks.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

from blis_sim.options.limits import LEAST_RATE, MOST_RATE, MOST_REQUESTS, MOST_TOKENS
from traces.workload.sections import Bounds, Scenario, Vidur

SLO_CLASSES = ("critical", "standard", "sheddable", "batch", "background")
PROCESSES = ("poisson", "gamma", "weibull", "constant")
CV_BOUNDS: Mapping[str, tuple[float, float]] = {"gamma": (1e-6, 10.0), "weibull": (0.01, 10.4)}
"""The least and the most coefficient of variation of gaps, for each process that has one."""
DISTRIBUTIONS = ("gaussian", "exponential", "lognormal", "pareto_lognormal", "constant", "empirical")

Count: TypeAlias = Annotated[int, Bounds(at_least=0)]
AtLeastOne: TypeAlias = Annotated[int, Bounds(at_least=1)]
Pause: TypeAlias = Annotated[int, Bounds(at_least=0, at_most=10**14)]
"""Microseconds, up to three years: those of all rounds of a conversation add up to what a 64-bit integer holds."""
Amount: TypeAlias = Annotated[float, Bounds(at_least=0)]
Positive: TypeAlias = Annotated[float, Bounds(above=0)]
Rate: TypeAlias = Annotated[float, Bounds(at_least=LEAST_RATE, at_most=MOST_RATE)]
"""Requests per second."""
Tokens: TypeAlias = Annotated[int, Bounds(at_least=0, at_most=MOST_TOKENS)]
Crowd: TypeAlias = Annotated[int, Bounds(at_least=0, at_most=100_000)]

ACCUMULATE = "accumulate"
DEFAULT_PREFIX_TOKENS = 50
SESSION_TIMEOUT_US = 300_000_000
"""When a request of a session is given up, unless the spec has a timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How token counts are drawn. `params` depend on the type; those of an empirical one are tokens with weights."""

    type: Annotated[str, Bounds(choices=DISTRIBUTIONS)]
    params: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """How gaps between requests are drawn. `shape` and `scale` (microseconds) together take the place of the rate."""

    process: Annotated[str, Bounds(choices=PROCESSES)] = ""
    cv: Positive | None = None
    shape: Positive | None = None
    scale: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of time, the end excluded, in which a client is active, perhaps with habits of its own."""

    start_us: Count = 0
    end_us: int
    trace_rate: Rate | None = None
    arrival: Arrival | None = None
    input_distribution: Distribution | None = None
    output_distribution: Distribution | None = None

    @property
    def overrides_client(self) -> bool:
        """Return whether this window has settings besides its time."""
        own = (self.trace_rate, self.arrival, self.input_distribution, self.output_distribution)
        return any(each is not None for each in own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """When a client is active."""

    windows: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Where a client sits. Part of the format; it changes nothing that is generated."""

    rtt_ms: Amount = 0.0
    bandwidth_mbps: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTurn:
    """Conversations. With growth `accumulate` each prompt holds all earlier prompts and replies of its session."""

    max_rounds: Annotated[int, Bounds(at_least=1, at_most=10_000)]
    think_time_us: Pause = 0
    context_growth: str = ""
    single_session: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """Replies that think first. The ratio is drawn as a whole percentage of the reply."""

    reason_ratio_distribution: Distribution | None = None
    multi_turn: MultiTurn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Agents, one in each session: turns with tools between them, and helpers that a turn starts side by side.

    Each prompt holds all that was said in its turns before it. The turn after helpers waits for all of them and has
    their last replies in its prompt. With `fork` helpers go on from the turn that starts them; with `spawn` they begin
    anew, behind `helper_prefix_length` tokens that helpers share.
    """

    turns_distribution: Distribution
    helpers_distribution: Distribution | None = None
    helper_turns_distribution: Distribution | None = None
    helper_context: Annotated[str, Bounds(choices=("fork", "spawn"))] = "fork"
    helper_prefix_length: Tokens = 0
    task_distribution: Distribution | None = None
    tool_time_ms_distribution: Distribution | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Multimodal:
    """Prompts of several kinds of input: text, and per kind a number of items with so many tokens each."""

    text_distribution: Distribution | None = None
    image_distribution: Distribution | None = None
    image_count_distribution: Distribution | None = None
    audio_distribution: Distribution | None = None
    audio_count_distribution: Distribution | None = None
    video_distribution: Distribution | None = None
    video_count_distribution: Distribution | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Common fields of clients and cohorts."""

    id: str = ""
    tenant_id: str = ""
    slo_class: str = ""
    model: str = ""
    adapter: str = ""
    rate_fraction: float = 0.0
    arrival: Arrival = field(default_factory=Arrival)
    input_distribution: Distribution
    output_distribution: Distribution
    prefix_group: str = ""
    prefix_length: Tokens = 0
    streaming: bool | None = None
    network: Network | None = None
    multimodal: Multimodal | None = None
    reasoning: Reasoning | None = None
    agent: Agent | None = None
    timeout: Count | None = None
    slo_target_us: Count = 0
    slo_e2e_us: Count = 0
    priority: Count | None = None
    closed_loop: bool | None = None

    @property
    def multi_turn(self) -> MultiTurn | None:
        return None if self.reasoning is None else self.reasoning.multi_turn

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the shared prefix, which only a group can have."""
        return (self.prefix_length or DEFAULT_PREFIX_TOKENS) if self.prefix_group else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Client(Traffic):
    """One source of requests: at a rate, or by `concurrency` users, each of which waits for its reply."""

    concurrency: Crowd = 0
    think_time_us: Pause = 0
    lifecycle: Lifecycle | None = None

    @property
    def windows(self) -> tuple[Window, ...] | None:
        """When it is active; None is always."""
        return None if self.lifecycle is None else self.lifecycle.windows

    @property
    def timeout_us(self) -> int:
        """How long a request may take, 0 is forever."""
        if self.timeout is not None:
            return self.timeout
        waits = self.multi_turn is not None or self.agent is not None or self.concurrency
        return SESSION_TIMEOUT_US if waits else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    """One day in which each hour is active for a share that falls from the peak to the trough and back."""

    peak_hour: Annotated[int, Bounds(at_least=0, at_most=23)]
    peak_to_trough_ratio: Annotated[float, Bounds(at_least=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """Activity for a while only, perhaps at a rate of its own for the whole cohort."""

    start_time_us: Count = 0
    duration_us: Annotated[int, Bounds(above=0)]
    trace_rate: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Full activity until it starts, then less and less."""

    start_time_us: Count = 0
    ramp_duration_us: Annotated[int, Bounds(above=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort(Traffic):
    """Many clients alike, which share the cohort's rate."""

    population: Annotated[int, Bounds(at_least=1, at_most=100_000)]
    prefix_sharing: Annotated[str, Bounds(choices=("", "shared", "per_member"))] = "shared"
    diurnal: Diurnal | None = None
    spike: Spike | None = None
    drain: Drain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A rate for a while. `duration` is in seconds."""

    rate: Rate
    duration: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrentStage:
    """So many requests, of which a number are under way at a time; a stage begins when the one before is answered."""

    num_requests: AtLeastOne
    concurrency_level: AtLeastOne


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Users in groups that share a system prompt. Distributions stand in the place of fixed lengths.

    A user of a multi-turn chat begins a new conversation after `turns_per_conversation` requests, 0 is never. Its first
    question has `dynamic_system_prompt_len` tokens besides.
    """

    num_unique_system_prompts: AtLeastOne
    num_users_per_system_prompt: AtLeastOne
    system_prompt_len: Tokens
    question_len: Tokens
    output_len: Tokens
    question_distribution: Distribution | None = None
    output_distribution: Distribution | None = None
    enable_multi_turn_chat: bool = False
    context_growth: Annotated[str, Bounds(choices=("", ACCUMULATE))] = ""
    turns_per_conversation: Count = 0
    dynamic_system_prompt_len: Tokens = 0
    tool_time_us: Pause = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InferencePerf:
    """A workload as the load generator inference-perf describes it: stages with rates, or with concurrency.

    Without a `process` a single stage is BLIS's own: the last request of each user comes at its end.
    """

    stages: tuple[Stage, ...] = ()
    concurrent_stages: tuple[ConcurrentStage, ...] = ()
    process: Annotated[str, Bounds(choices=("", "poisson", "constant"))] = ""
    streaming: bool | None = None
    shared_prefix: SharedPrefix


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputTargets:
    """Latencies that requests of a class should keep, 0 is no limit."""

    ttft_ms: Amount = 0.0
    itl_ms: Amount = 0.0
    e2e_ms: Amount = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """A whole workload. An `aggregate_rate` of 0 leaves the rates to the windows; `horizon` and `num_requests` of 0
    limit nothing."""

    version: Annotated[str, Bounds(choices=("", "1", "2"))] = ""
    seed: int = 0
    category: Annotated[str, Bounds(choices=("", "language", "multimodal", "reasoning"))] = ""
    clients: tuple[Client, ...] = ()
    cohorts: tuple[Cohort, ...] = ()
    aggregate_rate: Annotated[float, Bounds(at_least=0, at_most=1e6)] = 0.0
    horizon: Count = 0
    num_requests: Annotated[int, Bounds(at_least=0, at_most=MOST_REQUESTS)] = 0
    inference_perf: InferencePerf | None = None
    vidur: Vidur | None = None
    scenario: Scenario | None = None
    goodput_slo_targets: Mapping[str, GoodputTargets] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=(), metadata={"from_file": False})
    """Notes for the user on keys that the reader changed or ignored."""

    @property
    def files(self) -> list[Path]:
        """Return the files that are read when requests are generated."""
        parts = () if self.vidur is None else (self.vidur.interval, self.vidur.length)
        return [Path(part.trace_file) for part in parts if part.trace_file]
