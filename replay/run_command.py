"""`blis run`: a synthetic workload straight through the simulated engine, and its settings."""

import dataclasses
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.offload_file import OffloadFileOptions
from blis_sim.engine.units import LONGEST_DELAY_US
from blis_sim.options import ExclusionError, OptionError, check_options, option, section
from blis_sim.options.option import MOST_REQUESTS
from blis_sim.options.printing import print_note
from blis_sim.options.without_effect import BlisOptions
from replay.engine_options import AdapterOptions
from replay.report_options import ReportOptions, ignore_note
from traces.collector import gc_disabled
from traces.workload.presets import DEFAULT_SEED, SyntheticOptions
from traces.workload.spec import SCENARIO_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from blis_sim.engine.cluster.cluster import Cluster
    from blis_sim.engine.core import Engine
    from blis_sim.engine.data_parallel import RankGroup
    from blis_sim.engine.deployment import Deployment
    from blis_sim.options.progress import NoteCallback, Progress
    from blis_sim.options.provenance import Provenance
    from replay.analysis.steady import Steadiness
    from replay.output.findings import FinishedRun
    from replay.simulation.record import OnTokens
    from replay.simulation.simulate import Simulated
    from traces.workload.request import Workload
    from traces.workload.spec import WorkloadSpec

_print_note = partial(print_note, "blis run")

__all__ = ["RunOptions", "run", "simulate_run", "spec_of"]

BLIS_NUM_REQUESTS = 100
DEFAULT_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(SyntheticOptions):
    """The settings of `blis run`: the workload, the engine and the output files."""

    cluster: ClusterOptions = section(ClusterOptions)
    offload: OffloadFileOptions = section(OffloadFileOptions)
    adapters: AdapterOptions = section(AdapterOptions)
    blis: BlisOptions = section(BlisOptions)
    report: ReportOptions = section(ReportOptions)
    workload_spec: str | None = option(
        None, "Workload spec (YAML) to generate requests from.", metavar="FILE", heading="Requests"
    )
    concurrency: int = option(
        0,
        "Send by this many users instead of at a rate; each waits for the reply before it sends again.",
        at_least=0,
        at_most=MOST_REQUESTS,
    )
    think_time_ms: int = option(
        0, "Pause of a user between a reply and the next request.", at_least=0, at_most=LONGEST_DELAY_US // 1000
    )
    num_requests: int | None = option(
        None,
        "How many requests to generate, 0 for no limit but the horizon. Closed-loop conversations that have begun by "
        "then run to their end. The default is the spec's; without a spec as many as a steady state needs, or up to "
        f"--horizon. With --engine blis it is {BLIS_NUM_REQUESTS}.",
        at_least=0,
        at_most=MOST_REQUESTS,
    )
    timeout: int | None = option(
        None,
        "Seconds after which a request is given up, negative for never (default: what the spec says of its clients, "
        f"without a spec {DEFAULT_TIMEOUT_S}).",
        at_most=LONGEST_DELAY_US // 1_000_000,
        metavar="SECONDS",
    )
    seed: int | None = option(
        None, f"Seed of arrivals and lengths (default: the spec's, else 0; {DEFAULT_SEED} without a spec)."
    )
    horizon: int | None = option(
        None,
        "Stop the simulated clock here, in microseconds; nothing arrives later (default: run until drained).",
        above=0,
        metavar="US",
    )

    def __post_init__(self) -> None:
        check_options(self)
        self.report.check_files(self)
        if self.timeout == 0:
            raise OptionError("--timeout must be above 0 seconds, or negative for never, got 0")
        self._check_users()
        if self.workload_spec is None and self.num_requests == 0 and self.horizon is None and not self.stages:
            raise OptionError("--num-requests 0 needs --horizon, or the workload never ends")
        self.check_load()
        if self.cluster.gateway.max_concurrency and not self.cluster.gateway.counts_requests_in_flight:
            raise OptionError(
                "--max-concurrency needs --flow-control with --saturation-detector concurrency; closed-loop users "
                "are --concurrency"
            )

    @property
    def draws_as_blis(self) -> bool:
        """Whether the load is drawn as BLIS draws it, with means that its bounds shift."""
        return self.cluster.deployment.engine == "blis"

    @property
    def timeout_us(self) -> int | None:
        """The timeout of requests; 0 is no timeout, None leaves the timeout to the spec."""
        if self.timeout is None:
            return DEFAULT_TIMEOUT_S * 1_000_000 if self.workload_spec is None else None
        return max(0, self.timeout) * 1_000_000

    @property
    def flags_without_effect(self) -> list[str]:
        """Flags that have no effect because the workload spec, the preset or the users have their setting."""
        return self.unused_flags(self.workload_spec is not None, bool(self.concurrency))

    def _check_users(self) -> None:
        if not self.concurrency:
            if self.think_time_ms:
                raise OptionError("--think-time-ms needs --concurrency")
            return
        for flag, value in (
            ("--rate", self.rate),
            ("--stages", self.stages or None),
            ("--workload-spec", self.workload_spec),
        ):
            if value is not None:
                raise ExclusionError("--concurrency", flag)
        if not self.num_requests and self.horizon is None:
            raise OptionError("--concurrency needs --num-requests or --horizon, or the workload never ends")


def run(options: RunOptions) -> int:
    """Generate, simulate, write requested files, print the summary on stdout; all other output goes to stderr.

    Exit codes: 0 done, 1 a target for a percentile is missed or the verdict is one of --fail-on.
    """
    from blis_sim.options.progress import progress_bar
    from replay.output.report import report

    on_note = _print_note if options.report.shows_notes else ignore_note
    with gc_disabled():
        return report(options.report, simulate_run(options, on_note, progress_bar))


@gc_disabled()
def simulate_run(options: RunOptions, on_note: "NoteCallback", progress: "Progress") -> "FinishedRun":
    """Generate the requests and simulate them. `on_note` is called with each note, `progress` shows the progress.

    Raises BlisError.
    """
    from blis_sim.engine.cluster.build import notes_on_cluster, with_one_latency_model
    from blis_sim.engine.cluster.policies import with_policies
    from blis_sim.engine.deployment import resolve
    from blis_sim.engine.offload_file import read_offload, with_chain
    from blis_sim.options.progress import KeptNotes
    from replay.analysis.breakdown import notes_on_targets, with_deadlines
    from replay.engine_options import with_adapters
    from replay.output.findings import FinishedRun, notes_on_run
    from replay.output.report import analysis_config_of
    from replay.provenance import title_of
    from traces import TraceHeader

    in_one_model = with_one_latency_model(with_policies(options.cluster))
    cluster, chain, offload_notes = read_offload(options.offload, in_one_model)
    options = dataclasses.replace(options, cluster=cluster)
    spec = spec_of(options)
    options.report.check_files(options, *spec.files)
    analysis_config = analysis_config_of(options.report, spec.goodput_slo_targets)
    cluster = with_deadlines(options.cluster, analysis_config.targets)
    for flag in options.flags_without_effect:
        on_note(f"{flag} has no effect, --workload-spec, --workload or --concurrency say it already")
    deployment = with_adapters(options.adapters, resolve(cluster.deployment), cluster.deployment.counts_blocks)
    deployment = with_chain(chain, deployment, spec.seed)
    for note in (*offload_notes, *options.blis.flags_without_effect, *options.adapters.flags_without_effect):
        on_note(note)
    for note in (*analysis_config.saturation.notes, *deployment.notes, *notes_on_cluster(options.cluster, deployment)):
        on_note(note)
    on_run_note = KeptNotes(on_note)
    simulated, judge, workload = _simulated_spec(options, cluster, deployment, spec, on_run_note, progress)
    num_requests = 0 if workload.horizon_us or options.horizon else len(workload.rows)
    after = notes_on_run(simulated, deployment, options.cluster.kills, num_requests)
    for note in (*after, *notes_on_targets(analysis_config.targets, simulated.requests)):
        on_run_note(note)
    header = TraceHeader(
        mode="generated",
        workload_seed=spec.seed,
        goodput_slo_targets=analysis_config.targets,
        kv_offload=None if chain is None else chain.content,
    )
    return FinishedRun(
        analysis_config=analysis_config,
        simulated=simulated,
        header=header,
        title=title_of(options, deployment),
        describe=partial(_provenance, options, deployment, spec),
        judge=judge,
        notes=tuple(on_run_note.notes),
    )


def _simulated_spec(
    options: RunOptions,
    cluster: ClusterOptions,
    deployment: "Deployment",
    spec: "WorkloadSpec",
    on_note: "NoteCallback",
    progress: "Progress",
) -> "tuple[Simulated, Callable[[], Steadiness] | None, Workload]":
    """Simulate a spec, with as many requests as a steady state needs where it names no number.

    Returns the run, the judgement of its steady state by longer runs where its load has any, and its requests.
    """
    from replay.analysis.steady import steadiness
    from replay.closed_loop import GrowingRun, chosen_lengths, is_endless, judged_by_longer

    def alone(sized: "WorkloadSpec") -> "Simulated":
        return _run_workload(options, cluster, deployment, sized.seed, _drawn_workload(options, sized, ignore_note))

    def begin(sized: "WorkloadSpec") -> GrowingRun:
        simulation = _built(options, cluster, deployment, sized.seed)
        return GrowingRun(simulation, _drawn_workload(options, sized, ignore_note))

    extends = is_endless(spec) and not options.draws_as_blis
    found = None
    if extends and not spec.num_requests:
        for length in chosen_lengths():
            spec = dataclasses.replace(spec, num_requests=length)
            found = alone(spec)
            if steadiness(found.requests).is_known:
                break
    workload = _drawn_workload(options, spec, on_note)
    if found is None or options.report.records_a_run:
        total = workload.max_requests if workload.sessions else len(workload.requests) + len(workload.rows)
        with progress("simulating", total) as advance:
            found = _recorded_run(options, cluster, deployment, spec.seed, workload, advance)
    record = found.requests

    @cache
    def judge() -> "Steadiness":
        return judged_by_longer(steadiness(record), spec, alone, None if options.horizon else begin)

    return found, judge if extends else None, workload


def _recorded_run(
    options: RunOptions,
    cluster: ClusterOptions,
    deployment: "Deployment",
    seed: int,
    workload: "Workload",
    advance: "Callable[[], None] | None",
) -> "Simulated":
    """Simulate a workload, and write what the options ask for while it goes on."""
    from replay.output.report import recording_tokens

    with recording_tokens(options.report) as on_tokens:
        return _run_workload(options, cluster, deployment, seed, workload, advance, on_tokens, is_recorded=True)


def _run_workload(
    options: RunOptions,
    cluster: ClusterOptions,
    deployment: "Deployment",
    seed: int,
    workload: "Workload",
    advance: "Callable[[], None] | None" = None,
    on_tokens: "OnTokens | None" = None,
    *,
    is_recorded: bool = False,
) -> "Simulated":
    from replay.closed_loop import simulate_workload
    from replay.metrics_dir.observing import observing

    simulation = _built(options, cluster, deployment, seed, is_recorded=is_recorded)
    if not is_recorded:
        return simulate_workload(simulation, workload, options.horizon)
    with observing(options, deployment, simulation, "run") as observed:
        simulated = simulate_workload(observed, workload, options.horizon, advance, on_tokens)
    return simulated._replace(simulation=simulation)


def _built(
    options: RunOptions, cluster: ClusterOptions, deployment: "Deployment", seed: int, *, is_recorded: bool = False
) -> "Engine | RankGroup | Cluster":
    from blis_sim.engine.cluster.build import build_simulation
    from blis_sim.engine.cluster.settings import SeededTieBreaker

    return build_simulation(
        cluster,
        deployment,
        ties=SeededTieBreaker(seed),
        decisions=options.report.decision_log if is_recorded else None,
        reports_batches=is_recorded and options.report.needs_events,
    )


def _provenance(options: RunOptions, deployment: "Deployment", spec: "WorkloadSpec") -> "Provenance":
    from replay.provenance import provenance_of

    return provenance_of("blis run", options, deployment, spec.seed, spec.files)


def spec_of(options: RunOptions) -> "WorkloadSpec":
    """Return the workload of the options: the spec file, or a workload of the flags. Raises TraceError."""
    from traces.workload.generate import read_spec_at

    if options.workload_spec is None:
        return _synthetic_spec(options)
    spec = read_spec_at(options.workload_spec, options.rate)
    return dataclasses.replace(
        spec,
        seed=spec.seed if options.seed is None else options.seed,
        num_requests=spec.num_requests if options.num_requests is None else options.num_requests,
        horizon=spec.horizon if options.horizon is None else options.horizon,
    )


def _synthetic_spec(options: RunOptions) -> "WorkloadSpec":
    from traces.workload.presets import users_spec

    seed = DEFAULT_SEED if options.seed is None else options.seed
    is_scenario = options.workload in SCENARIO_NAMES
    if options.concurrency and not is_scenario:
        spec = users_spec(
            options.lengths,
            num_users=options.concurrency,
            think_time_us=options.think_time_ms * 1000,
            num_requests=options.num_requests or 0,
            seed=seed,
            prefix_tokens=options.prefix_tokens,
        )
    else:
        is_timed = is_scenario or options.stages
        default = BLIS_NUM_REQUESTS if options.draws_as_blis and not is_timed else 0
        num_requests = default if options.num_requests is None else options.num_requests
        spec = options.synthetic_spec(num_requests=num_requests, seed=seed)
    return dataclasses.replace(spec, horizon=options.horizon or 0)


def _drawn_workload(options: RunOptions, spec: "WorkloadSpec", on_note: "NoteCallback") -> "Workload":
    """The requests to simulate, with notes about omissions and unused settings. Raises BlisError when none is left."""
    from replay.closed_loop import labels_of, requests_for_model, with_named_adapters
    from replay.engine_options import adapter_settings, check_declared
    from traces.workload.generate import generate

    generated = generate(spec, options.timeout_us)
    for note in generated.notes:
        on_note(note if options.workload_spec is None else f"{options.workload_spec}: {note}")
    if generated.is_empty:
        raise OptionError("the workload has no requests: nothing arrives before its end")
    model = options.cluster.deployment.model
    lora = adapter_settings(options.adapters)
    if lora is not None:
        generated = with_named_adapters(model, generated, lora)
    workload = requests_for_model(model, generated, on_note)
    adapters = labels_of(workload, "adapter") - {""}
    check_declared(options.adapters, adapters)
    if adapters and lora is None:
        on_note("adapters are noted in the trace, they do not change any time without --enable-lora or --lora-config")
    return workload
