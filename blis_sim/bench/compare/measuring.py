"""The configurations of a comparison, and the simulation of one configuration with one set of requests."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from blis_sim.bench.compare.options import CompareOptions
from blis_sim.engine.cluster.build import build_simulation, notes_on_cluster
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import with_policies
from blis_sim.engine.cluster.settings import SeededTieBreaker
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.engine_defaults import adaptive_blocks
from blis_sim.options import OptionError, options_from
from blis_sim.options.text import parse_command_line
from replay.analysis.deadlines import DeadlineFigures, deadline_figures, with_deadlines
from replay.closed_loop import simulate_workload
from replay.simulation.simulate import Simulated
from traces.workload import Workload, read_spec
from traces.workload.generate import generate
from traces.workload.sections import Scenario
from traces.workload.spec import WorkloadSpec

_MODEL = "qwen/qwen3-14b"
"""The model of sides that name none."""
_CURRENT = ("--snapshot-refresh-interval", "0", "--cache-signal-delay", "0")
_ADAPTIVE = ("--engine", "adaptive", "--routing-policy", "weighted", "--routing-scorers", "cache-utilisation:1")
_FIFO = ("--engine", "adaptive-fifo")


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration with its name."""

    name: str
    flags: str
    cluster: ClusterOptions
    deployment: Deployment

    @property
    def notes(self) -> list[str]:
        """Notes on the configuration, shown before a run."""
        return [*self.deployment.notes, *notes_on_cluster(self.cluster, self.deployment)]


def configurations_of(options: CompareOptions) -> list[Configuration]:
    """Return the configurations of the options. Raises BlisError for an invalid configuration."""
    if options.baseline:
        shared = shlex.split(options.sides[0]) if options.sides else []
        workers = ["--num-instances", str(options.workers)]
        if options.kv_slots is not None:
            workers += ["--total-kv-blocks", str(adaptive_blocks(options.kv_slots))]
        if options.batch_size is not None:
            workers += ["--max-num-seqs", str(options.batch_size)]
        given = {"adaptive": [*_ADAPTIVE, *_CURRENT, *workers, *shared], "fifo": [*_FIFO, *workers, *shared]}
    else:
        given = {chr(ord("A") + number): shlex.split(side) for number, side in enumerate(options.sides)}
    names = [name.strip() for name in options.names.split(",")] if options.names else list(given)
    if len(names) != len(given) or len(set(names)) != len(names):
        raise OptionError(f"--names must be {len(given)} different names, got {options.names!r}")
    return [_configuration(name, arguments) for name, arguments in zip(names, given.values(), strict=True)]


def _configuration(name: str, arguments: list[str]) -> Configuration:
    found = parse_command_line(ClusterOptions, arguments)
    if found.requests_help:
        raise OptionError("flags of a configuration are those of `blis run`; see `blis run --help`")
    cluster = with_policies(options_from(ClusterOptions, **{"model": _MODEL, **found.values}))
    return Configuration(name, shlex.join(arguments), cluster, resolve(cluster.deployment))


WINDOW_S = 10.0
"""The published adaptive scheduler counts tokens of so many seconds."""
DRAIN_S = 2.0
"""The run stops so long after the last arrival may have come."""

Micros = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Requests:
    """A workload with the seed of the router's tie-breaks, and the seconds for which requests are sent."""

    workload: Workload
    seed: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Samples:
    """Counters of a run at instants: seconds, and preemptions so far."""

    at_s: list[float] = field(default_factory=list)
    preemptions: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one configuration. Times are seconds from the start of the run."""

    submitted: int
    arrived_s: npt.NDArray[np.float64]
    scheduled_s: npt.NDArray[np.float64]
    """Not a number for requests that were never scheduled."""
    first_s: npt.NDArray[np.float64]
    ended_s: npt.NDArray[np.float64]
    """Not a number for requests that did not complete."""
    output_tokens: npt.NDArray[np.int64]
    instance: npt.NDArray[np.int64]
    late: npt.NDArray[np.bool_]
    """Whether each request missed its deadline."""
    has_hit: npt.NDArray[np.bool_]
    """Whether each request found a part of its prompt in the prefix cache of its instance."""
    token_s: npt.NDArray[np.float64]
    """Instants that brought tokens, ascending."""
    token_counts: npt.NDArray[np.float64]
    """Tokens of each of these instants."""
    samples: Samples
    deadlines: DeadlineFigures
    duration_s: float
    token_hit_rate: float
    """Share of all prompt tokens that were found in a prefix cache."""
    preemptions: int
    accepted_per_draft: float
    expected_per_draft: float
    speedup_estimate: float
    num_instances: int


def workload_of(options: CompareOptions, number: int) -> Requests:
    """The requests of the run of this number. Raises BlisError."""
    spec = _spec_of(options)
    seed = (spec.seed if options.seed is None else options.seed) + number
    workload = generate(replace(spec, seed=seed))
    last_s = workload.last_arrival_us / 1e6
    return Requests(workload, seed, options.duration if options.workload_spec is None else last_s)


def _spec_of(options: CompareOptions) -> WorkloadSpec:
    if options.workload_spec is not None:
        return read_spec(options.workload_spec)
    scenario = Scenario(name=options.workload, rate=options.rate, duration_s=options.duration)
    return WorkloadSpec(version="2", seed=42, scenario=scenario)


def simulate_configuration(side: Configuration, requests: Requests) -> Run:
    """Simulate the requests and take the figures."""
    cluster = with_deadlines(side.cluster, requests.workload.goodput_slo_targets)
    deployment = side.deployment if cluster is side.cluster else resolve(cluster.deployment)
    simulation = build_simulation(cluster, deployment, ties=SeededTieBreaker(requests.seed))
    times: list[tuple[int, Micros]] = []
    samples = Samples()

    def sample() -> None:
        now_s = (simulation.now or 0) / 1e6
        if not samples.at_s or now_s >= samples.at_s[-1] + 0.25:
            samples.at_s.append(now_s)
            samples.preemptions.append(sum(engine.counters.num_preemptions for engine in simulation.instances))

    simulated = simulate_workload(
        simulation, requests.workload, None, sample, lambda number, instants: times.append((number, instants))
    )
    return _run(simulated, times, samples, requests.duration_s)


def _token_hit_rate(engines: Iterable[Engine]) -> float:
    """The share of all prompt tokens that were found in a prefix cache: instances without requests do not count."""
    caches = [engine.kv for engine in engines]
    queried = sum(kv.queried_tokens for kv in caches)
    return sum(kv.hit_tokens for kv in caches) / queried if queried else 0.0


def _run(simulated: Simulated, times: list[tuple[int, Micros]], samples: Samples, duration_s: float) -> Run:
    record, engines = simulated.requests, list(simulated.simulation.instances)
    config = engines[0].config
    rows = list(record)
    output = {each.number: each.output_tokens for each in rows}
    instants = np.concatenate([at for _, at in times]) if times else np.zeros(0, np.int64)
    counts = np.concatenate([np.full(len(at), output[n] / max(1, len(at))) for n, at in times]) if times else instants
    order = np.argsort(instants, kind="stable")
    nan = float("nan")
    counted = replace(config.urgency, ends_late_requests=False)
    ended = [nan if each.e2e_us is None else (each.arrived_at + each.e2e_us) / 1e6 for each in rows]
    due = [counted.deadline_of(each.row, each.arrived_at) / 1e6 for each in rows]
    drafts = sum(engine.counters.num_drafts for engine in engines)
    accepted = sum(engine.counters.num_accepted_tokens for engine in engines)
    speculation = config.speculation
    return Run(
        submitted=len(rows),
        arrived_s=np.array([each.arrived_at / 1e6 for each in rows]),
        scheduled_s=np.array(
            [
                nan if each.scheduling_delay_us is None else (each.arrived_at + each.scheduling_delay_us) / 1e6
                for each in rows
            ]
        ),
        first_s=np.array([nan if each.ttft_us is None else (each.arrived_at + each.ttft_us) / 1e6 for each in rows]),
        ended_s=np.array(ended),
        output_tokens=np.array([each.output_tokens for each in rows], np.int64),
        instance=np.array([each.instance for each in rows], np.int64),
        late=~(np.array(ended) <= np.array(due)),
        has_hit=record.cached_tokens > 0,
        token_s=instants[order] / 1e6,
        token_counts=np.asarray(counts, np.float64)[order],
        samples=samples,
        deadlines=deadline_figures(record, config.urgency),
        duration_s=duration_s,
        token_hit_rate=_token_hit_rate(engines),
        preemptions=sum(engine.counters.num_preemptions for engine in engines),
        accepted_per_draft=accepted / drafts if drafts else 0.0,
        expected_per_draft=0.0 if speculation is None else speculation.expected_accepted_tokens,
        speedup_estimate=0.0 if speculation is None else speculation.theoretical_speedup,
        num_instances=len(engines),
    )
