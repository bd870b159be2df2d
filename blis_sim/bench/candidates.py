"""The deployments that a plan tries: GPU type and price, shape of instances, bounds by arithmetic, and simulations
judged by targets.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from blis_sim.bench import BenchError
from blis_sim.bench.points import Job, Outcome, compute
from blis_sim.bench.simulation_commands import Simulation, digest_of, with_whole_paths
from blis_sim.bench.workers import JobPool
from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.cluster.options import POOLS
from blis_sim.engine.deployment import Deployment, latency_choice, resolve
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.confidence import RatioSpread, Sureness, is_waiting
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.memory.planner import MemoryLayout
from blis_sim.options import BlisError
from blis_sim.options.file_fields import Positive
from blis_sim.options.option import load_json
from blis_sim.options.provenance import blis_version
from replay.analysis.sampling import SampledRange
from replay.analysis.steady import ResourceUse
from traces.append_file import AppendFile, complete_lines, open_with_header
from traces.text_file import naming_write_errors, read_keys, read_yaml

# Dollars per GPU and hour: the table that ships, and the one of a user.

SHIPPED = Path(__file__).parent / "prices.yaml"
HOURS_PER_MONTH = 730
NO_DATE = "no date"


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars of one GPU for an hour, and where and when the figure comes from."""

    per_hour: Positive
    source: str = ""
    as_of: str = ""

    @property
    def origin(self) -> str:
        """Return source and date."""
        return f"{self.source}, {self.as_of}"


@dataclass(frozen=True, slots=True)
class PriceFile:
    """The keys of a file of prices: by GPU dollars per hour or a `Price`. `as_of` is the date of those without one."""

    gpus: Mapping[str, Any]
    as_of: str = NO_DATE


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by name of the GPU, as the catalogue spells it."""

    by_gpu: Mapping[str, Price]

    def of(self, gpu: str) -> Price:
        """Return the price of a GPU. Raises BenchError when the list has none."""
        if gpu not in self.by_gpu:
            known = ", ".join(sorted(self.by_gpu))
            raise BenchError(f"no price is known for {gpu}, only for {known}; --prices FILE states others")
        return self.by_gpu[gpu]


def read_prices(path: str | None) -> Prices:
    """Return the prices that ship, with those of a user's file in their place where it has some. Raises BlisError."""
    shipped = _read_prices(SHIPPED)
    if path is None:
        return shipped
    own = _read_prices(Path(path))
    return Prices({**shipped.by_gpu, **own.by_gpu})


def _read_prices(path: Path) -> Prices:
    found: PriceFile = read_keys(path, PriceFile, read_yaml(path))
    return Prices({_name(name): _price(path, name, each, found.as_of) for name, each in found.gpus.items()})


def _name(name: str) -> str:
    """Return the name as the catalogue spells it; a GPU of a --hardware-config keeps the name it has there."""
    try:
        return load_gpu(name).name
    except EngineError:
        return name


def _price(path: Path, name: str, value: Any, as_of: str) -> Price:
    keys = value if isinstance(value, dict) else {"per_hour": value}
    price: Price = read_keys(path, Price, keys, f"gpus.{name}")
    return replace(price, source=price.source or path.name, as_of=price.as_of or as_of)


# Simulations of a plan: computed in rounds, kept in a file for later plans, and judged by latency targets.

SERVED = "served"
"""The figure that is missed when requests were left unserved."""


_FULL = 0.98
_MOSTLY = 0.5
"""Share of the time to the first token from which requests wait rather than compute."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of a simulation by the targets.

    `loads` has, for each target, the figure as a share of its limit; above 1 the target is missed. `worst` names the
    figure with the largest share. It is `SERVED` when requests were rejected, timed out, never completed, or come
    faster than they are served. `use` is that of resources, where it is known. `is_open` says that longer runs may find
    that requests come faster than they are served. `mean_ms` is the mean of the latency of the worst figure, 0 where it
    is unknown.
    """

    loads: Mapping[str, float]
    worst: str
    use: ResourceUse | None = None
    is_open: bool = False
    mean_ms: float = 0.0

    @property
    def load(self) -> float:
        """The share of the worst figure; infinite when requests were left unserved."""
        return inf if self.worst == SERVED else self.loads[self.worst]

    @property
    def is_met(self) -> bool:
        """Whether every target is met."""
        return self.load <= 1

    @property
    def resource(self) -> str:
        """The resource that the worst figure depends on: the first that is used up, else the time of the steps."""
        use = self.use
        if use is None:
            return ""
        if use.peak_kv_fraction >= _FULL:
            return "KV memory"
        if use.peak_sequences_fraction >= _FULL:
            return "sequences"
        is_queueing = self.worst.startswith("ttft") and use.queueing_fraction >= _MOSTLY
        return "queue" if is_queueing else "compute"

    @property
    def headroom(self) -> float:
        """The share of the limit that the worst figure leaves free, negative where the limit is exceeded."""
        return 1 - self.load


_METRICS = {"ttft": "ttft", "itl": "itl", "e2e": "throughput"}
"""The stated errors of each latency."""


def _ratios(sureness: Sureness, outcome: Outcome) -> Mapping[str, RatioSpread]:
    """Return what measured times are over predicted ones, by whether the requests of a simulation wait."""
    ttft_ms, e2e_ms = (outcome.figures.get(f"{name}_mean_ms") or 0.0 for name in ("ttft", "e2e"))
    return sureness.ratios_where(is_waiting(ttft_ms, e2e_ms))


@dataclass(frozen=True, slots=True)
class Targets:
    """Limits in milliseconds by the figure of a row, such as `ttft_p99_ms`. At least one."""

    limits_ms: Mapping[str, float]
    confidence: float | None = None
    """The least probability that a server meets each of them; None takes predicted times as they are."""

    def for_server(self, sureness: Sureness, outcome: Outcome) -> "Targets":
        """Return the limits that predicted times must meet, for real ones to meet these with the confidence."""
        if self.confidence is None or not sureness.ratios:
            return self
        ratios = _ratios(sureness, outcome)
        factors = {name: ratios[_METRICS[name.split("_")[0]]].factor_at(self.confidence) for name in self.limits_ms}
        return Targets({name: limit_ms / max(1.0, factors[name]) for name, limit_ms in self.limits_ms.items()})

    def probability(self, outcome: Outcome, sureness: Sureness) -> float | None:
        """Return how probable it is that a server meets the limit that it is least sure to meet; None where that is
        unknown."""
        figures = [(name, limit_ms, outcome.figures.get(name)) for name, limit_ms in self.limits_ms.items()]
        if not sureness.ratios or not all(figure for _, _, figure in figures):
            return None
        ratios = _ratios(sureness, outcome)
        return min(
            ratios[_METRICS[name.split("_")[0]]].probability(limit_ms / figure)
            for name, limit_ms, figure in figures
            if figure
        )

    def judge(self, outcome: Outcome) -> Judgement:
        """Compare the figures of a simulation with the limits."""
        figures = outcome.figures
        if outcome.error or not figures.get("completed_requests"):
            return Judgement({}, SERVED)
        loads = {name: (figures[name] or 0.0) / limit_ms for name, limit_ms in self.limits_ms.items()}
        if figures.get("overload_queue_growth_per_min") is not None:
            return Judgement(loads, SERVED, outcome.use)
        is_complete = figures["completed_requests"] == figures["injected_requests"]
        if not is_complete or figures["rejected_requests"] or figures["timed_out_requests"]:
            return Judgement(loads, SERVED, outcome.use)
        worst = max(loads, key=loads.__getitem__)
        mean_ms = figures.get(f"{worst.split('_')[0]}_mean_ms") or 0.0
        return Judgement(loads, worst, outcome.use, outcome.is_open, mean_ms)

    def tightened(self, factor: float) -> "Targets":
        """Return the targets with each limit divided by `factor`."""
        return Targets({name: limit_ms / factor for name, limit_ms in self.limits_ms.items()}, self.confidence)


_HEADER = json.dumps({"file": "simulations of blis plan"})


Asked = TypeVar("Asked")


class Wanted(NamedTuple):
    """A simulation by its settings, and whether longer runs judge one that is too short to tell an overload."""

    settings: Mapping[str, Any]
    by_longer: bool = True


@dataclass(slots=True)
class Simulations:
    """The outcomes of simulations so far, by key, and the pool that computes further simulations."""

    command: str
    pool: JobPool
    known: dict[str, Outcome] = field(default_factory=dict)
    log: AppendFile | None = None
    num_computed: int = 0
    limits_ms: Mapping[str, float] = field(default_factory=dict)
    """Limits of latencies beyond which it does not matter whether a load is too much."""

    def _key(self, wanted: Wanted) -> str:
        """Return the name of an outcome: of the run alone where longer runs are not wanted or not needed."""
        own = f"{blis_version()}/{digest_of(self.command, {**wanted.settings, **self.limits_ms})}"
        alone = f"{own}/alone"
        is_settled = alone in self.known and not self.known[alone].is_open
        return alone if is_settled or not wanted.by_longer else own

    def outcome(self, wanted: Wanted) -> Outcome:
        """Return the outcome of a simulation, which is computed unless it is known. Raises BenchError."""
        ((_, outcome),) = self.outcomes([wanted], lambda each: each)
        return outcome

    def outcomes(self, asked: Sequence[Asked], wanted_by: Callable[[Asked], Wanted]) -> Iterator[tuple[int, Outcome]]:
        """Yield the place of each simulation and its outcome as soon as it is known, and compute others in parallel.

        Those that are appended while outcomes are taken are computed, too. Raises BenchError.
        """
        jobs: list[Job] = []
        places: dict[str, list[int]] = {}
        results = self.pool.each(compute, jobs)
        num_taken = 0
        while num_taken < len(asked) or places:
            while num_taken < len(asked):
                place, each = num_taken, wanted_by(asked[num_taken])
                num_taken += 1
                key = self._key(each)
                if key in self.known:
                    yield place, self.known[key]
                    continue
                if key not in places:
                    jobs.append(self._job(key, each))
                places.setdefault(key, []).append(place)
            if places:
                job, outcome = next(results)
                self._keep(job, outcome)
                for place in places.pop(job.key):
                    yield place, outcome

    def _job(self, key: str, wanted: Wanted) -> Job:
        is_elsewhere = self.pool.is_elsewhere  # the machines there have other folders
        settings = with_whole_paths(wanted.settings) if is_elsewhere else wanted.settings
        return Job(key, self.command, settings, self.limits_ms, wanted.by_longer)

    def _keep(self, job: Job, outcome: Outcome) -> None:
        self.known[job.key] = outcome
        self.num_computed += 1
        if outcome.is_unexpected:
            raise BenchError(f"a simulation failed: {outcome.error}; its settings: {_text(job.settings)}")
        if self.log is not None:
            self.log.write(_line(job.key, outcome))


@contextmanager
def simulations(command: str, pool: AbstractContextManager[JobPool], path: str | None) -> Iterator[Simulations]:
    """Open the pool and the file of outcomes; a path of None keeps no outcomes. Raises BlisError."""
    with ExitStack() as stack:
        known, log = {}, None
        if path is not None:
            known = _read_outcomes(Path(path))
            stack.enter_context(naming_write_errors(Path(path)))
            kept = [_line(key, outcome) for key, outcome in known.items()]
            log = open_with_header(Path(path), _HEADER, kept, is_exclusive=True)
            stack.callback(log.close)
        yield Simulations(command, stack.enter_context(pool), known, log)


def _line(key: str, outcome: Outcome) -> str:
    row = {
        "key": key,
        "figures": dict(outcome.figures),
        "error": outcome.error,
        "use": None if outcome.use is None else asdict(outcome.use),
        "open": outcome.is_open,
        "ranges": {name: asdict(each) for name, each in outcome.ranges.items()},
        "notes": list(outcome.notes),
    }
    return json.dumps(row) + "\n"


def _read_outcomes(path: Path) -> dict[str, Outcome]:
    """Return the outcomes that a file has; a last line that was cut short is none. Raises BenchError."""
    if not path.is_file():
        return {}
    found: dict[str, Outcome] = {}
    header, *lines = complete_lines(path) or [f"{_HEADER}\n"]
    if header.rstrip() != _HEADER:
        raise BenchError(f"{path} row 1: expected {_HEADER}, got {header[:60]!r}: give another --output")
    for number, line in enumerate(lines, start=2):
        try:
            row = json.loads(line)
            use = ResourceUse(**row["use"]) if row.get("use") else None
            ranges = {name: SampledRange(**each) for name, each in row.get("ranges", {}).items()}
            notes = tuple(map(str, row.get("notes", ())))
            found[row["key"]] = Outcome(
                row["figures"], row["error"], use=use, is_open=row.get("open", False), ranges=ranges, notes=notes
            )
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(
                f"{path} row {number}: expected a simulation of blis plan, got {line[:60]!r}: give another --output"
            ) from error
    return found


def _text(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


# Bounds by arithmetic: the load that an instance cannot exceed within its targets, from the times of single steps.

_US = 1e6


@dataclass(frozen=True, slots=True)
class MeanLoad:
    """The mean load: requests per second and their lengths.

    `prompt_tokens` are those that no cache has, `span_s` is how long requests arrive.
    """

    rate_per_s: float
    prompt_tokens: float
    output_tokens: float
    whole_prompt_tokens: float = 0.0
    span_s: float = inf


@dataclass(frozen=True, slots=True)
class InstanceSeconds:
    """The time of an instance that one request takes when all steps are filled as well as targets and memory allow.

    `together_s` is that of an instance whose steps hold prompts and answers, with a tenth of slack; 0 is unknown.
    `refusal` is why no load at all meets the targets, empty where some load does.
    """

    prefill_s: float
    decode_s: float
    together_s: float = 0.0
    refusal: str = ""


def seconds_per_request(deployment: Deployment, load: MeanLoad, targets: Targets) -> InstanceSeconds:
    """Return the least time of an instance for one request of mean lengths."""
    prompt, output = max(1, round(load.prompt_tokens)), max(1, round(load.output_tokens))
    context = prompt + output // 2
    config = deployment.config
    decode_time = deployment.latency.decode_timer()
    itl_us = 1e3 * _limit(targets, "itl")
    lone_itl_us = decode_time(1, context)
    if lone_itl_us > itl_us:
        return InstanceSeconds(inf, inf, refusal=f"one request alone has {lone_itl_us / 1e3:.0f} ms between tokens")
    lone_ttft_us = _prompt_us(deployment, prompt, config.max_num_batched_tokens, 1)
    if lone_ttft_us > 1e3 * _limit(targets, "ttft"):
        return InstanceSeconds(inf, inf, refusal=f"one prompt alone takes {lone_ttft_us / 1e3:.0f} ms")
    prompts = max(1, config.max_num_batched_tokens // prompt)
    prefill_us = _prompt_us(deployment, prompt, config.max_num_batched_tokens, prompts) / prompts
    most = _most_sequences(deployment, context)
    filled = _last(1, most, lambda sequences: decode_time(sequences, sequences * context) <= itl_us)
    decode_us = output * decode_time(filled, filled * context) / filled
    drafts = config.speculation.num_tokens if config.speculation else 0
    decode_us /= 1 + drafts
    together_s = _together_s(deployment, load, targets, max(prefill_us, decode_us)) if not drafts else 0.0
    return InstanceSeconds(prefill_us / _US, decode_us / _US, together_s)


def _limit(targets: Targets, name: str) -> float:
    """Return the least limit of a latency in milliseconds, infinite without one."""
    return min((limit_ms for figure, limit_ms in targets.limits_ms.items() if figure.startswith(name)), default=inf)


def _most_sequences(deployment: Deployment, context: int) -> int:
    """Return the sequences of mean length that run at once, by the limit of sequences and by the KV cache."""
    config = deployment.config
    capacity = config.total_kv_blocks * config.block_size_tokens
    return max(1, min(config.max_num_seqs, int(capacity / context)))


def _last(good: int, most: int, holds: Callable[[int], bool]) -> int:
    """Return the last number up to `most` for which a condition holds that holds for `good` and the numbers near it."""
    bad = most + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def _prompt_us(deployment: Deployment, prompt: int, most_tokens: int, requests: int) -> float:
    """Return the time of steps that compute so many equal prompts together, each split where it is too long."""
    steps = ceil(prompt / most_tokens)
    tokens = prompt / steps
    total = 0.0
    for number in range(steps):
        context = number * tokens
        shape = BatchShape(
            requests,
            int(requests * tokens),
            int(requests * tokens * tokens),
            int(requests * context),
            int(requests * tokens * context),
            int(requests * tokens * prompt),
            0,
            0,
        )
        total += deployment.latency.step_time(shape)
    return total


_SLACK = 0.9
"""Share of the load of evenly filled steps that is excluded for sure: arrivals are uneven, and so are lengths."""
_LEAST_SPAN = 3
"""Durations of a request that a load must last before the batches of an instance are those of a steady load."""
_HALVINGS = 12
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of one instance under requests of mean lengths."""

    latency: LatencyModel
    prompt: int
    output: int
    most_sequences: int
    most_tokens: int

    def time_us(self, sequences: float, prompt_tokens: float) -> float:
        """Return the time of a step with answers of so many sequences and so many tokens of prompts."""
        decoding, tokens = int(sequences), int(prompt_tokens)
        prompts = ceil(tokens / self.prompt)
        each = tokens // prompts if prompts else 0
        before = (self.prompt - each) // 2
        shape = BatchShape(
            prompts,
            tokens,
            tokens * each,
            prompts * before,
            tokens * before,
            tokens * self.prompt,
            decoding,
            decoding * (self.prompt + self.output // 2),
        )
        return self.latency.step_time(shape)

    def keeps_up(self, rate_per_us: float, longest_us: float) -> bool:
        """Whether evenly filled steps of at most `longest_us` serve a rate: longer steps share more of their costs."""
        by_tokens = self.most_tokens / (rate_per_us * (self.prompt + self.output))
        step_us = min(longest_us, self.most_sequences / (rate_per_us * self.output), by_tokens)
        tokens = rate_per_us * step_us
        return self.time_us(tokens * self.output, tokens * self.prompt) <= step_us

    def share_beyond(self, rate_per_us: float, unharmed_tokens: int) -> float:
        """Return the least share of gaps between tokens in steps with more prompt tokens than are unharmed.

        Only the last step of a row of prompts is not full, so prompts need at least the steps of their other tokens.
        """
        if unharmed_tokens >= min(self.prompt, self.most_tokens):
            return 0.0
        harmful_per_us = rate_per_us * (self.prompt - unharmed_tokens) / self.most_tokens
        gap_us = self.time_us(1, 0)
        for _ in range(_ROUNDS):
            running = min(self.most_sequences, rate_per_us * self.output * gap_us)
            share = min(1.0, harmful_per_us * gap_us)
            gap_us = (1 - share) * self.time_us(max(1, running), 0) + share * self.time_us(running, unharmed_tokens)
        return harmful_per_us * gap_us


def _together_s(deployment: Deployment, load: MeanLoad, targets: Targets, least_us: float) -> float:
    """Return the seconds of an instance for one request when prompts and answers share its steps; 0 if unknown."""
    prompt, output = max(1, round(load.prompt_tokens)), max(1, round(load.output_tokens))
    config = deployment.config
    if deployment.dp > 1:  # a step of one rank says little about steps of all ranks
        return 0.0
    tokens = config.max_num_batched_tokens
    most = _most_sequences(deployment, prompt + output // 2)
    steps = _Steps(deployment.latency, prompt, output, most, tokens)
    longest_us, checks = inf, []
    for figure, limit_ms in targets.limits_ms.items():
        if figure.startswith("itl"):
            share = 1 - int(figure.split("_")[1].removeprefix("p")) / 100
            longest_us = min(longest_us, 1e3 * limit_ms + share * steps.time_us(most, tokens))
            unharmed = _last(0, tokens, lambda c, limit_us=1e3 * limit_ms: steps.time_us(1, c) <= limit_us)  # type: ignore[misc]
            checks.append((unharmed, share))
    lasting_us = output * min(longest_us, steps.time_us(most, tokens))
    if load.span_s * _US < _LEAST_SPAN * lasting_us:
        return 0.0

    def is_possible(rate_per_us: float) -> bool:
        if any(steps.share_beyond(rate_per_us, unharmed) > share for unharmed, share in checks):
            return False
        return steps.keeps_up(rate_per_us, longest_us)

    good, bad = 0.0, 1 / least_us
    for _ in range(_HALVINGS):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if is_possible(middle) else (good, middle)
    return _SLACK / bad / _US


# The deployments that a plan tries: GPU type, shape of instances, and a lower bound of their number.

Counts: TypeAlias = tuple[int, ...]
"""Instances of each pool: of the only one, or of prefill and of decode."""
PoolKind: TypeAlias = tuple[Any, ...]
"""Whatever decides the speed of the instances of a pool."""
_FEW_TOKENS = 1024
"""Tokens of a step that limit the answers that an instance computes, which are one token each."""

_OVERLAP = 0.5
"""Least share of the time that prompts and decodes take alone in which steps with both can be done: the larger of the
two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A deployment but for its counts of instances.

    `busy_instances` are, for each pool, the instances that the load keeps busy when every step is filled as well as
    targets and memory allow. `needed_instances` are those below which steps shared by prompts and answers miss a
    target; 0 where that is unknown. Steps take `step_scale` times as long as predicted.
    """

    gpu: str
    settings: Mapping[str, Any]
    gpus_per_instance: tuple[int, ...]
    busy_instances: tuple[float, ...]
    price_per_gpu_hour: float
    label: str
    sureness: Sureness = field(compare=False)
    """The latency model of its step times, and the errors to expect."""
    needed_instances: float = 0.0
    step_scale: float = 1.0

    @property
    def is_split(self) -> bool:
        """Whether prefill and decode have separate pools."""
        return len(self.gpus_per_instance) > 1

    @property
    def shape(self) -> str:
        """The name of the shape in a report."""
        return "P/D" if self.is_split else "aggregated"

    @property
    def least_counts(self) -> Counts:
        """The fewest instances of each pool that physics allows."""
        share = 1.0 if self.is_split else _OVERLAP
        return tuple(max(1, ceil(share * each)) for each in self.busy_instances)

    @property
    def likely_counts(self) -> Counts:
        """The fewest instances of each pool that can meet the targets under evenly spread requests."""
        if self.is_split or not self.needed_instances:
            return self.least_counts
        return (max(self.least_counts[0], ceil(self.needed_instances)),)

    def kind_of(self, pool: int) -> PoolKind:
        """Return what decides the speed of the instances of a pool; candidates may share it."""
        settings = dict(self.settings)
        if self.is_split:
            settings["tp"] = settings.pop("decode_tp" if pool else "prefill_tp", None)
            settings.pop("prefill_tp" if pool else "decode_tp", None)
            if pool and (settings.get("max_num_batched_tokens") or _FEW_TOKENS) >= _FEW_TOKENS:
                settings.pop("max_num_batched_tokens", None)
        return (pool, self.step_scale, *sorted(settings.items(), key=lambda item: item[0]))

    def num_gpus(self, counts: Counts) -> int:
        """Return the GPUs of all instances."""
        return sum(gpus * count for gpus, count in zip(self.gpus_per_instance, counts, strict=True))

    def cost_per_hour(self, counts: Counts) -> float:
        """Return the dollars of all instances for an hour."""
        return self.num_gpus(counts) * self.price_per_gpu_hour

    def settings_with(self, counts: Counts) -> dict[str, Any]:
        """Return the settings of a simulation with so many instances."""
        found = {**self.settings, "num_instances": sum(counts)}
        if self.step_scale != 1:  # the same simulation on another clock, on which requests come so much faster
            found["rate"] = self.settings["rate"] * self.step_scale
        if self.is_split:
            found |= {"prefill_instances": counts[0], "decode_instances": counts[1], "pd_decider": "always"}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The values that a plan tries for each setting; None is the engine's default."""

    gpus: Sequence[str]
    tps: Sequence[int]
    pps: Sequence[int]
    dps: Sequence[int]
    quantizations: Sequence[str]
    kv_cache_dtypes: Sequence[str]
    speculative_configs: Sequence[str]
    batched_tokens: Sequence[int | None]
    shapes: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Instance:
    """One instance, with settings that a pool of any shape may use."""

    settings: Mapping[str, Any]
    deployment: Deployment
    seconds: InstanceSeconds
    label: str


@dataclass(slots=True)
class Candidates:
    """The candidates of all GPU types, and by GPU type why others were left out, each reason with the first of them."""

    found: list[Candidate] = field(default_factory=list)
    refused: dict[str, dict[str, str]] = field(default_factory=dict)


def candidates_of(
    simulation: Simulation,
    settings: Mapping[str, Any],
    choices: Choices,
    prices: Prices,
    load: MeanLoad,
    targets: Targets,
) -> Candidates:
    """Return all candidates that hold the model and whose steps are fast enough for a lone request. Raises BlisError.

    `settings` are those that all candidates share. A setting that they name is not varied.
    """
    result = Candidates()
    for gpu in choices.gpus:
        price = prices.of(gpu).per_hour
        refused = result.refused.setdefault(gpu, {})
        instances = list(_instances(simulation, settings, choices, gpu, load, targets, refused))
        rank = {tokens: place for place, tokens in enumerate(choices.batched_tokens)}
        instances.sort(key=lambda each: rank.get(each.settings.get("max_num_batched_tokens"), 0))
        if "aggregated" in choices.shapes:
            result.found += [_aggregated(each, gpu, price, load) for each in instances]
        if "pd" in choices.shapes:
            result.found += _split(instances, gpu, price, load)
    return result


def _instances(
    simulation: Simulation,
    settings: Mapping[str, Any],
    choices: Choices,
    gpu: str,
    load: MeanLoad,
    targets: Targets,
    refused: dict[str, str],
) -> Iterator[_Instance]:
    crowded: set[tuple[Any, ...]] = set()
    seen: list[tuple[list[tuple[str, Any]], MemoryLayout | None]] = []
    for tp, pp, dp in product(choices.tps, choices.pps, choices.dps):
        for own in variants(settings, choices, {"hardware": gpu, "tp": tp, "pp": pp, "dp": dp}):
            place, label = tuple(each for each in own.items() if each[0] != "max_num_batched_tokens"), _label(own)
            if place in crowded:  # its smaller steps do not fit beside the weights
                continue
            try:
                deployment = resolve(simulation.options_with({**settings, **own}).cluster.deployment)
            except BlisError as error:
                crowded.add(place)
                refused.setdefault(_reason(simulation, {**settings, **own}, error), _label(dict(place)))
                continue
            if own.get("quantization") == "fp8" and not deployment.gpu.tflops_fp8:
                refused.setdefault(f"{gpu} has no FP8 arithmetic", "fp8")
                continue
            if own.get("enable_expert_parallel") and not deployment.model.is_moe:
                continue
            planned = ([each for each in own.items() if each[0] != "quantization"], deployment.memory)
            if deployment.memory is not None and planned in seen:  # the checkpoint is in that precision already
                continue
            seen.append(planned)
            seconds = seconds_per_request(deployment, load, targets)
            if seconds.refusal:
                refused[seconds.refusal] = min(label, refused.get(seconds.refusal, label), key=len)
                continue
            yield _Instance({**settings, **own}, deployment, seconds, label)


def _reason(simulation: Simulation, settings: Mapping[str, Any], error: BlisError) -> str:
    """Return why an instance cannot be tried: that it cannot be deployed, or that its latency model cannot time it."""
    try:
        options = simulation.options_with(settings).cluster.deployment
        latency_choice(options)
    except BlisError:
        return str(error)
    return f"not covered by step times of {options.step_times}: {error}"


def variants(settings: Mapping[str, Any], choices: Choices, placed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the settings that vary between instances of one placement; settings that the user gives do not vary.

    Those that differ only in the tokens of a step follow each other from the fewest on.
    """
    experts = (False, True) if placed["tp"] > 1 and "enable_expert_parallel" not in settings else (False,)
    experts = (True,) if placed["dp"] > 1 else experts
    smallest_first = sorted(choices.batched_tokens, key=lambda tokens: (tokens is None, tokens))
    chosen = product(choices.quantizations, choices.kv_cache_dtypes, choices.speculative_configs, experts)
    for (quantization, kv_cache_dtype, speculative_config, parallel), tokens in product(chosen, smallest_first):
        own = {name: value for name, value in placed.items() if name != "dp" or value > 1}
        if quantization:
            own["quantization"] = quantization
        if kv_cache_dtype:
            own["kv_cache_dtype"] = kv_cache_dtype
        if speculative_config:
            own["speculative_config"] = speculative_config
        if tokens is not None:
            own["max_num_batched_tokens"] = tokens
        if parallel:
            own["enable_expert_parallel"] = True
        yield own


def _label(own: Mapping[str, Any]) -> str:
    parts = [f"tp {own['tp']}"]
    parts += [f"pp {own['pp']}"] if own["pp"] > 1 else []
    parts += [f"dp {own['dp']}"] if own.get("dp", 1) > 1 else []
    parts += ["ep"] if own.get("enable_expert_parallel") else []
    parts += [own["quantization"]] if own.get("quantization") else []
    parts += [f"{own['kv_cache_dtype']} KV"] if own.get("kv_cache_dtype") else []
    parts += [_drafts(own["speculative_config"])] if own.get("speculative_config") else []
    tokens = own.get("max_num_batched_tokens")
    return " ".join([*parts, *([f"{tokens} tokens/step"] if tokens else [])])


def _drafts(speculative_config: str) -> str:
    """Return method and number of drafts of a speculative configuration that was read before."""
    given = load_json(speculative_config)
    return f"{given.get('method') or given.get('model', 'drafts')} x{given.get('num_speculative_tokens', '')}"


def _aggregated(instance: _Instance, gpu: str, price: float, load: MeanLoad) -> Candidate:
    seconds = instance.seconds.prefill_s + instance.seconds.decode_s
    return Candidate(
        gpu=gpu,
        settings=instance.settings,
        gpus_per_instance=(instance.deployment.num_gpus,),
        busy_instances=(load.rate_per_s * seconds,),
        needed_instances=load.rate_per_s * instance.seconds.together_s,
        price_per_gpu_hour=price,
        label=instance.label,
        sureness=instance.deployment.sureness,
    )


def _split(instances: Sequence[_Instance], gpu: str, price: float, load: MeanLoad) -> Iterator[Candidate]:
    """Return candidates with two pools, whose instances differ in their tensor parallelism alone.

    Data-parallel ranks have a balancer of their own, which no router before pools replaces.
    """
    for prefill, decode in product(instances, instances):
        if _without_tp(prefill) != _without_tp(decode) or decode.deployment.dp > 1:
            continue
        tp_prefill, tp_decode = prefill.settings["tp"], decode.settings["tp"]
        settings = {**decode.settings, "prefill_tp": tp_prefill, "decode_tp": tp_decode}
        yield Candidate(
            gpu=gpu,
            settings=settings,
            gpus_per_instance=(prefill.deployment.num_gpus, decode.deployment.num_gpus),
            busy_instances=(load.rate_per_s * prefill.seconds.prefill_s, load.rate_per_s * decode.seconds.decode_s),
            price_per_gpu_hour=price,
            label=decode.label if tp_prefill == tp_decode else f"prefill tp {tp_prefill}, decode {decode.label}",
            sureness=max(
                (each.deployment.sureness_with(POOLS) for each in (prefill, decode)),
                key=lambda each: each.expected_error,
            ),
        )


def _without_tp(instance: _Instance) -> dict[str, Any]:
    return {name: value for name, value in instance.settings.items() if name != "tp"}


def with_other_settings(candidate: Candidate, label: str, **settings: Any) -> Candidate:
    """Return the candidate with further settings, which its label names."""
    return replace(candidate, settings={**candidate.settings, **settings}, label=f"{candidate.label} {label}")
