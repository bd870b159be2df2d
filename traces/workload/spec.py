"""The model of a workload spec, version 2, and its YAML: read strictly, checked between keys, and written."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from blis_sim.options.file_fields import Amount, AtLeastOne, Bounds, Count, Positive
from blis_sim.options.option import LEAST_RATE, MOST_RATE, MOST_REQUESTS, MOST_TOKENS
from blis_sim.options.yaml_text import dump_yaml
from traces.slo import SloTargets
from traces.text_file import TraceError, parse_yaml, read_keys, read_text

# Sections of a workload spec that name the generator of another program.


SCENARIO_NAMES = ("steady", "burst", "mixed-priority", "mixed_priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario at a rate in requests per second, for some seconds. None takes its own rate."""

    name: Annotated[str, Bounds(choices=SCENARIO_NAMES)]
    rate: Annotated[float, Bounds(at_least=LEAST_RATE, at_most=MOST_RATE)] | None = None
    duration_s: Annotated[float, Bounds(above=0, at_most=1_000_000)] = 20.0

    @property
    def rate_per_s(self) -> float:
        """The rate outside of a burst."""
        return self.rate or (5.0 if self.name == "burst" else 30.0)


_Tokens: TypeAlias = Annotated[int, Bounds(at_least=1, at_most=MOST_TOKENS)]

INTERVALS: Mapping[str, tuple[str, ...]] = {
    "poisson": ("qps",),
    "gamma": ("qps", "cv"),
    "static": (),
    "trace": ("trace_file", "start_time", "end_time", "time_scale_factor"),
}
"""Settings of each kind of interval."""
VIDUR_QPS: Mapping[str, float] = {"poisson": 0.5, "gamma": 0.2}
"""Requests per second of intervals that name no rate."""
LENGTHS: Mapping[str, tuple[str, ...]] = {
    "fixed": ("prefill_tokens", "decode_tokens"),
    "uniform": ("min_tokens", "max_tokens", "prefill_to_decode_ratio"),
    "zipf": ("min_tokens", "max_tokens", "prefill_to_decode_ratio", "theta"),
    "trace": ("trace_file", "prefill_scale_factor", "decode_scale_factor", "max_tokens"),
}
"""Settings of each kind of length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VidurInterval:
    """How the gaps between requests come about. None takes the default of the kind."""

    type: Annotated[str, Bounds(choices=tuple(INTERVALS))]
    qps: Annotated[float, Bounds(at_least=LEAST_RATE, at_most=MOST_RATE)] | None = None
    cv: Annotated[float, Bounds(at_least=1e-6, at_most=1e6)] | None = None
    trace_file: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    time_scale_factor: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VidurLength:
    """How many tokens prompts and outputs have. None takes the default of the kind."""

    type: Annotated[str, Bounds(choices=tuple(LENGTHS))]
    prefill_tokens: _Tokens | None = None
    decode_tokens: _Tokens | None = None
    min_tokens: _Tokens | None = None
    max_tokens: _Tokens | None = None
    prefill_to_decode_ratio: Positive | None = None
    theta: Annotated[float, Bounds(above=0, at_most=10)] | None = None
    trace_file: str | None = None
    prefill_scale_factor: Positive | None = None
    decode_scale_factor: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vidur:
    """Requests as Vidur's `synthetic` request generator makes them from the seed of the spec."""

    interval: VidurInterval
    length: VidurLength


def problem_of_vidur(section: Vidur) -> str | None:
    """The key that is wrong, what is expected and what was found; None if nothing is."""
    for name, part, known in (("interval", section.interval, INTERVALS), ("length", section.length, LENGTHS)):
        takes = known[part.type]
        for key in part.__dataclass_fields__:
            if key != "type" and key not in takes and getattr(part, key) is not None:
                expected = ", ".join(takes) or "no other key"
                return f"{name}.{key}: expected {expected} with {part.type}, got {key}"
        if part.type == "trace" and not part.trace_file:
            return f"{name}.trace_file: expected the path of a CSV file with trace, but the key is missing"
    if section.length.theta == 1:
        return "length.theta: expected a number other than 1, got 1"
    least, most = section.length.min_tokens or 1024, section.length.max_tokens or 4096
    if section.length.type in ("uniform", "zipf") and least > most:
        return f"length.min_tokens: expected at most max_tokens ({most}), got {least}"
    return None


# The model of a workload spec, version 2: the clients, their requests, and their send times.
#
# Each field is a key of the file, and its type defines the allowed values. Instants and durations are microseconds,
# rates requests per second. What must hold between several keys is checked in `checks.py`.

SLO_CLASSES = ("critical", "standard", "sheddable", "batch", "background")
PROCESSES = ("poisson", "gamma", "weibull", "constant")
CV_BOUNDS: Mapping[str, tuple[float, float]] = {"gamma": (1e-6, 10.0), "weibull": (0.01, 10.4)}
"""The least and the most coefficient of variation of gaps, for each process that has one."""
DISTRIBUTIONS = ("gaussian", "exponential", "lognormal", "pareto_lognormal", "constant", "empirical")

Pause: TypeAlias = Annotated[int, Bounds(at_least=0, at_most=10**14)]
"""Microseconds, up to three years: those of all rounds of a conversation add up to what a 64-bit integer holds."""
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
    """A stretch of time, the end excluded, in which a client is active, perhaps with habits of its own.

    From `trace_rate` its rate changes evenly to `end_rate`, if that is given.
    """

    start_us: Count = 0
    end_us: int
    trace_rate: Rate | None = None
    end_rate: Rate | None = None
    arrival: Arrival | None = None
    input_distribution: Distribution | None = None
    output_distribution: Distribution | None = None

    @property
    def mean_rate(self) -> float | None:
        """Return the mean of its own rate; None without one."""
        if self.trace_rate is None or self.end_rate is None:
            return self.trace_rate
        return (self.trace_rate + self.end_rate) / 2

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
    goodput_slo_targets: Mapping[str, SloTargets] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=(), metadata={"from_file": False})
    """Notes for the user on keys that the reader changed or ignored."""

    @property
    def files(self) -> list[Path]:
        """Return the files that are read when requests are generated."""
        parts = () if self.vidur is None else (self.vidur.interval, self.vidur.length)
        return [Path(part.trace_file) for part in parts if part.trace_file]


# Checks between keys of a workload spec, and bounds of the parameters of length distributions.

Params: TypeAlias = Mapping[str, float]

REQUIRED_PARAMS = {
    "gaussian": ("mean", "std_dev", "min", "max"),
    "exponential": ("mean",),
    "lognormal": ("mu", "sigma"),
    "pareto_lognormal": ("alpha", "xm", "mu", "sigma", "mix_weight"),
    "constant": ("value",),
}
OPTIONAL_PARAMS = {"exponential": ("min", "max"), "lognormal": ("min", "max")}
_NOT_NEGATIVE = ("std_dev", "sigma")
_EXPONENTS = ("mu", "sigma")
_MAX_EXPONENT = 100
_MAX_DIGITS = 20
_POSITIVE = ("alpha", "xm")


def problem_of(distribution: Distribution) -> str | None:
    """Return the error in the parameters of a distribution: what is expected, what was found; None if they are
    valid."""
    if distribution.type == "empirical":
        return _problem_of_weights(distribution.params)
    required = REQUIRED_PARAMS[distribution.type]
    known = required + OPTIONAL_PARAMS.get(distribution.type, ())
    params = distribution.params
    for name in params:
        if name not in known:
            return f"expected {', '.join(known)} with {distribution.type}, got {name}"
    for name in required:
        if name not in params:
            return f"expected {name} with {distribution.type}, but the key is missing"
    return _problem_of_values(distribution.type, params)


def _problem_of_values(kind: str, params: Params) -> str | None:
    for name, value in params.items():
        most = _MAX_EXPONENT if name in _EXPONENTS else MOST_TOKENS
        if value > most:
            return f"expected {name} to be at most {most:g}, got {value:g}"
        if name in _POSITIVE and value <= 0:
            return f"expected {name} to be above 0, got {value:g}"
        if value < 0 and (name in _NOT_NEGATIVE or (kind, name) == ("exponential", "mean")):
            return f"expected {name} to be at least 0, got {value:g}"
    if not 0 <= params.get("mix_weight", 0) <= 1:
        return f"expected mix_weight between 0 and 1, got {params['mix_weight']:g}"
    low, high = params.get("min", 0), params.get("max", 0)
    if kind != "gaussian" and high and low > high:
        return f"expected min to be at most max ({high:g}), got {low:g}"
    return None


def _problem_of_weights(params: Params) -> str | None:
    for name in params:
        if not name.isdecimal() or not name.isascii() or len(name) > _MAX_DIGITS or name != str(int(name)):
            return f"expected whole numbers of tokens as keys, got {name!r}"
        if int(name) > MOST_TOKENS:
            return f"expected at most {MOST_TOKENS} tokens, got {name}"
    if any(weight < 0 for weight in params.values()):
        return "expected weights of at least 0, got one below"
    if not any(weight > 0 for weight in params.values()):
        return "expected tokens with weights, at least one of them above 0, got none"
    return None


MAX_USERS = 100_000
MODALITIES = ("image", "audio", "video")


def checked(spec: WorkloadSpec, source: str) -> WorkloadSpec:
    """Return the spec with notes on settings without effect; `source` names it in errors. Raises TraceError."""
    try:
        _check_sources(spec)
        if 0 < spec.aggregate_rate < LEAST_RATE:
            raise _ProblemError(f"aggregate_rate: expected 0 or at least {LEAST_RATE:g}, got {spec.aggregate_rate:g}")
        for where, traffic in _all_traffic(spec):
            _check_traffic(where, traffic)
        for place, client in enumerate(spec.clients):
            _check_client(f"clients[{place}]", client, absolute=spec.aggregate_rate == 0)
        for place, cohort in enumerate(spec.cohorts):
            _check_cohort(f"cohorts[{place}]", cohort, absolute=spec.aggregate_rate == 0)
        _check_together(spec)
    except _ProblemError as problem:
        raise TraceError(f"{source} key {problem}") from None
    return replace(spec, notes=spec.notes + tuple(dict.fromkeys(_notes(spec))))


class _ProblemError(Exception):
    """A broken rule: the key, what is allowed there, what was found."""


def _all_traffic(spec: WorkloadSpec) -> Iterator[tuple[str, Traffic]]:
    for place, client in enumerate(spec.clients):
        yield f"clients[{place}]", client
    for place, cohort in enumerate(spec.cohorts):
        yield f"cohorts[{place}]", cohort


def _check_sources(spec: WorkloadSpec) -> None:
    if spec.vidur is not None:
        _check_alone(spec, "vidur")
        problem = problem_of_vidur(spec.vidur)
        if problem is not None:
            raise _ProblemError(f"vidur.{problem}")
        return
    if spec.scenario is not None:
        _check_alone(spec, "scenario")
        return
    if spec.inference_perf is None:
        if not spec.clients and not spec.cohorts:
            raise _ProblemError(
                "clients: expected at least one client or cohort, inference_perf, vidur or scenario, got none"
            )
        return
    if spec.clients or spec.cohorts:
        other = "clients" if spec.clients else "cohorts"
        raise _ProblemError(f"inference_perf: expected no {other} beside it, got both")
    section = spec.inference_perf
    if bool(section.stages) == bool(section.concurrent_stages):
        got = "both" if section.stages else "none"
        raise _ProblemError(
            f"inference_perf.stages: expected at least one stage, of stages or of concurrent_stages, got {got}"
        )
    shared = section.shared_prefix
    num_users = shared.num_unique_system_prompts * shared.num_users_per_system_prompt
    if num_users > MAX_USERS:
        raise _ProblemError(f"inference_perf.shared_prefix: expected at most {MAX_USERS} users, got {num_users}")
    _check_distributions("inference_perf.shared_prefix", shared)


def _check_alone(spec: WorkloadSpec, section: str) -> None:
    for name in ("clients", "cohorts", "inference_perf", "vidur", "scenario"):
        if name != section and getattr(spec, name):
            raise _ProblemError(f"{section}: expected no {name} beside it, got both")


def _check_traffic(where: str, traffic: Traffic) -> None:
    if traffic.slo_class and traffic.slo_class not in SLO_CLASSES:
        raise _ProblemError(f"{where}.slo_class: expected {', '.join(SLO_CLASSES)} or none, got {traffic.slo_class!r}")
    _check_distributions(where, traffic)
    if traffic.multimodal is not None:
        _check_multimodal(f"{where}.multimodal", traffic.multimodal)
    if traffic.reasoning is not None:
        _check_distributions(f"{where}.reasoning", traffic.reasoning)
    if traffic.agent is not None:
        _check_agent(f"{where}.agent", traffic, traffic.agent)


def _check_agent(where: str, traffic: Traffic, agent: Agent) -> None:
    for name in ("reasoning", "multimodal"):
        if getattr(traffic, name) is not None:
            raise _ProblemError(f"{where}: expected no {name} beside it, got both")
    _check_distributions(where, agent)


def _check_distributions(where: str, part: Any) -> None:
    """Check the parameters of all distributions that are fields of a part of the spec."""
    for name in part.__dataclass_fields__:
        distribution = getattr(part, name)
        problem = problem_of(distribution) if isinstance(distribution, Distribution) else None
        if problem is not None:
            raise _ProblemError(f"{where}.{name}.params: {problem}")


def _check_multimodal(where: str, multimodal: Multimodal) -> None:
    for kind in MODALITIES:
        tokens, count = f"{kind}_distribution", f"{kind}_count_distribution"
        has_tokens, has_count = (getattr(multimodal, name) is not None for name in (tokens, count))
        if has_tokens != has_count:
            raise _ProblemError(f"{where}: expected {tokens} and {count} together, got one of them")
    _check_distributions(where, multimodal)


def _check_rate(where: str, traffic: Traffic) -> None:
    if traffic.rate_fraction <= 0:
        raise _ProblemError(f"{where}.rate_fraction: expected a number above 0, got {traffic.rate_fraction:g}")
    _check_arrival(f"{where}.arrival", traffic.arrival)


def _check_arrival(where: str, arrival: Arrival) -> None:
    if not arrival.process:
        raise _ProblemError(f"{where}.process: expected {' or '.join(PROCESSES)}, but the key is missing")
    problem = problem_of_cv(arrival)
    if problem is not None:
        raise _ProblemError(f"{where}.cv: expected a number {problem}, got {arrival.cv:g}")


def problem_of_cv(arrival: Arrival) -> str | None:
    """Between what the coefficient of variation must be, where it is not; gaps with shape and scale need none."""
    given_in_full = arrival.shape is not None and arrival.scale is not None
    if arrival.cv is None or given_in_full or arrival.process not in CV_BOUNDS:
        return None
    least, most = CV_BOUNDS[arrival.process]
    return None if least <= arrival.cv <= most else f"between {least:g} and {most:g} with {arrival.process}"


def _check_client(where: str, client: Client, absolute: bool) -> None:
    if client.concurrency:
        _check_users(where, client)
        return
    _check_rate(where, client)
    if client.lifecycle is not None:
        _check_windows(f"{where}.lifecycle.windows", client)
    if absolute and (client.windows is None or any(window.trace_rate is None for window in client.windows)):
        raise _ProblemError(
            f"{where}.lifecycle.windows: expected windows with a trace_rate, as there is no aggregate_rate"
        )


def _check_users(where: str, client: Client) -> None:
    if client.rate_fraction:
        raise _ProblemError(f"{where}.concurrency: expected no rate_fraction beside it, got {client.rate_fraction:g}")
    if client.lifecycle is not None:
        raise _ProblemError(f"{where}.lifecycle: expected none beside concurrency, whose users are always active")


def _check_windows(where: str, client: Client) -> None:
    if not client.windows:
        raise _ProblemError(f"{where}: expected at least one window, got none")
    for place, window in enumerate(client.windows):
        inside = f"{where}[{place}]"
        if window.end_us <= window.start_us:
            raise _ProblemError(
                f"{inside}.end_us: expected more than start_us ({window.start_us}), got {window.end_us}"
            )
        if window.end_rate is not None and window.trace_rate is None:
            raise _ProblemError(f"{inside}.trace_rate: expected a rate beside end_rate, but the key is missing")
        if window.arrival is not None:
            _check_arrival(f"{inside}.arrival", window.arrival)
        _check_distributions(inside, window)


def _check_cohort(where: str, cohort: Cohort, absolute: bool) -> None:
    _check_rate(where, cohort)
    if cohort.prefix_sharing == "per_member" and not cohort.prefix_group:
        raise _ProblemError(f"{where}.prefix_sharing: expected a prefix_group with per_member, but the key is missing")
    if not absolute:
        return
    for name in ("diurnal", "drain"):
        if getattr(cohort, name) is not None:
            raise _ProblemError(f"{where}.{name}: expected a spike with a trace_rate, as there is no aggregate_rate")
    if cohort.spike is None or cohort.spike.trace_rate is None:
        raise _ProblemError(f"{where}.spike.trace_rate: expected a number above 0, as there is no aggregate_rate")


def _check_together(spec: WorkloadSpec) -> None:
    everyone = list(_all_traffic(spec))
    with_class = [where for where, traffic in everyone if traffic.slo_class]
    without = [where for where, traffic in everyone if not traffic.slo_class]
    if with_class and without:
        raise _ProblemError(f"{without[0]}.slo_class: expected a class, as {with_class[0]} has one, got none")
    users = any(client.concurrency for client in spec.clients)
    sessions = [where for where, traffic in everyone if traffic.multi_turn is not None]
    if users and sessions:
        raise _ProblemError(f"{sessions[0]}.reasoning.multi_turn: expected no conversations beside concurrency users")
    agents = [where for where, traffic in everyone if traffic.agent is not None]
    if users and agents:
        raise _ProblemError(f"{agents[0]}.agent: expected no agents beside concurrency users")


def _notes(spec: WorkloadSpec) -> Iterator[str]:
    for where, traffic in _all_traffic(spec):
        growth = "" if traffic.multi_turn is None else traffic.multi_turn.context_growth
        if growth not in ("", ACCUMULATE):
            yield f"{where}: the context_growth {growth!r} is taken as none, known is {ACCUMULATE}"
        if traffic.prefix_length and not traffic.prefix_group:
            yield f"{where}: prefix_length has no effect without a prefix_group"
        if traffic.agent is not None:
            yield from _notes_on_agent(f"{where}.agent", traffic.agent)
        if traffic.network is not None:
            yield f"{where}: network has no effect on what is sent"
        yield from _notes_on_arrival(f"{where}.arrival", traffic.arrival)
    for name, rates in _OWN_RATES.items():
        if getattr(spec, name) is not None and spec.aggregate_rate:
            yield f"aggregate_rate has no effect beside {name}, {rates}"


_OWN_RATES = {
    "vidur": "whose interval has a qps",
    "scenario": "which has a rate",
    "inference_perf": "whose stages have rates",
}
"""Sections that take the place of clients, with their own rates."""


def _notes_on_agent(where: str, agent: Agent) -> Iterator[str]:
    if agent.helpers_distribution is None:
        for name in ("helper_turns_distribution", "helper_prefix_length"):
            if getattr(agent, name):
                yield f"{where}: {name} has no effect without a helpers_distribution"
    elif agent.helper_prefix_length and agent.helper_context == "fork":
        yield f"{where}: helper_prefix_length has no effect with helper_context fork"


def _notes_on_arrival(where: str, arrival: Arrival) -> Iterator[str]:
    given = [name for name in ("cv", "shape", "scale") if getattr(arrival, name) is not None]
    if given and arrival.process not in CV_BOUNDS:
        yield f"{where}: {', '.join(given)} has no effect with {arrival.process or 'no process'}"
    elif ("shape" in given) != ("scale" in given):
        yield f"{where}: shape and scale have an effect only together"
    elif given == ["cv", "shape", "scale"]:
        yield f"{where}: cv has no effect beside shape and scale"


# A workload spec as YAML: read strictly, and written so that it reads back as the same spec.
#
# The first thing that cannot be used is named, with the file, the key, what is allowed and what was found.

NEW_CLASS_NAMES = {"realtime": "critical", "interactive": "standard"}


def upgraded(spec: WorkloadSpec) -> WorkloadSpec:
    """The spec as version 2, with a note for each service class of its clients that has another name now.

    Specs without a version are of version 1; all but 1 stay as they are.
    """
    if spec.version not in ("", "1"):
        return spec
    clients = tuple(
        replace(each, slo_class=NEW_CLASS_NAMES.get(each.slo_class, each.slo_class)) for each in spec.clients
    )
    old = dict.fromkeys(client.slo_class for client in spec.clients if client.slo_class in NEW_CLASS_NAMES)
    notes = tuple(f"the service class {name} of version 1 is taken as {NEW_CLASS_NAMES[name]}" for name in old)
    return replace(spec, version="2", clients=clients, notes=spec.notes + notes)


def read_spec(path: Path | str) -> WorkloadSpec:
    """Read a workload spec. Raises TraceError."""
    path = Path(path)
    return parse_spec(read_text(path), str(path))


def parse_spec(text: str, source: str) -> WorkloadSpec:
    """Read a workload spec from its text; `source` names it in errors. Raises TraceError."""
    loaded = parse_yaml(source, text)
    if loaded is None:
        raise TraceError(f"{source}: the file is empty, expected a workload spec")
    return spec_of(loaded, source)


def spec_of(loaded: Any, source: str) -> WorkloadSpec:
    """The workload spec of keys and values; `source` names it in errors. Raises TraceError."""
    spec: WorkloadSpec = read_keys(source, WorkloadSpec, loaded, numbers_are_text=True)
    return checked(upgraded(spec), source)


INDENT = 4
WIDTH = 1 << 20
MAX_SIMPLE_CHARS = 100
"""Longer scalars may be keys of another form, or fill several lines."""


def spec_text(spec: WorkloadSpec) -> str:
    """The YAML of a spec, keys in the order of the format, what has its default left out."""
    return block_text(plain_spec(spec))


def block_text(value: Any) -> str:
    """The text that `dump_yaml` gives of keys and values, in a tenth of its time: a spec may have 10,000 clients."""
    if not isinstance(value, dict) or not value:
        return dump_yaml(value, indent=INDENT, width=WIDTH)
    try:
        return "".join(_Writer().mapping(value, ""))
    except _NotSimpleError:
        return dump_yaml(value, indent=INDENT, width=WIDTH)


class _NotSimpleError(Exception):
    """A scalar has no form that is the same wherever it stands."""


class _Writer:
    """Writes mappings, lists and scalars in blocks. Each scalar is looked at once, however often it stands there."""

    def __init__(self) -> None:
        self._cached_scalars: dict[tuple[type, Any], str] = {}

    def mapping(self, value: Mapping[str, Any], pad: str) -> Iterator[str]:
        if "" in value:
            raise _NotSimpleError
        for name, each in value.items():
            yield f"{pad}{self._scalar(name)}:"
            yield from self._value(each, pad)

    def _value(self, value: Any, pad: str) -> Iterator[str]:
        if isinstance(value, dict) and value:
            yield "\n"
            yield from self.mapping(value, pad + " " * INDENT)
        elif isinstance(value, list) and value:
            yield "\n"
            for each in value:
                yield from self._item(each, pad)
        else:
            yield f" {self._scalar(value)}\n"

    def _item(self, value: Any, pad: str) -> Iterator[str]:
        if isinstance(value, list) and value:
            raise _NotSimpleError
        if not isinstance(value, dict) or not value:
            yield f"{pad}- {self._scalar(value)}\n"
            return
        lines = "".join(self.mapping(value, pad + " " * INDENT))
        yield f"{pad}-{lines[len(pad) + 1 :]}"

    def _scalar(self, value: Any) -> str:
        if isinstance(value, dict | list):
            return "{}" if isinstance(value, dict) else "[]"
        key = (type(value), value)
        found = self._cached_scalars.get(key)
        if found is None:
            if isinstance(value, str) and (len(value) > MAX_SIMPLE_CHARS or not value.isprintable()):
                raise _NotSimpleError
            first, _, rest = dump_yaml(value, indent=INDENT, width=WIDTH).partition("\n")
            if rest not in ("", "...\n"):
                raise _NotSimpleError
            found = self._cached_scalars[key] = first
        return found


def plain_spec(value: Any) -> Any:
    """The values of a part of a spec as a file has them, what has its default left out."""
    if dataclasses.is_dataclass(value):
        fields = [field for field in dataclasses.fields(value) if field.metadata.get("from_file", True)]
        there = {field.name: getattr(value, field.name) for field in fields if not _is_default(value, field)}
        return {name: plain_spec(each) for name, each in there.items()}
    if isinstance(value, Mapping):
        return {str(name): plain_spec(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [plain_spec(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value


def _is_default(part: Any, field: dataclasses.Field[Any]) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return bool(getattr(part, field.name) == default)
