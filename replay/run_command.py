"""`blis run`: a synthetic workload straight through the simulated engine, and its settings."""

import dataclasses
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.units import LONGEST_DELAY_US
from blis_sim.options import OptionError, check_options, option, options_of, section
from blis_sim.options.limits import LEAST_RATE, MOST_RATE, MOST_REQUESTS, MOST_TOKENS
from replay.report_options import ReportOptions, ignore_note
from traces.collector import gc_disabled
from traces.workload import DISTRIBUTION, PRESETS, Lengths, Preset
from traces.workload.checks import problem_of_cv
from traces.workload.sections import SCENARIO_NAMES
from traces.workload.spec import PROCESSES, Arrival

if TYPE_CHECKING:
    from blis_sim.engine.deployment import Deployment
    from blis_sim.options.progress import NoteCallback, Progress
    from blis_sim.options.provenance import Provenance
    from replay.output.findings import Outcome
    from traces.workload import Workload, WorkloadSpec

__all__ = ["RunOptions", "run", "simulate_run", "spec_of"]

DEFAULT_RATE = 1.0
DEFAULT_NUM_REQUESTS = 100
DEFAULT_TIMEOUT_S = 300
DEFAULT_SEED = 42

_LENGTH_FLAGS = tuple(
    f"{side}_tokens{part}" for side in ("prompt", "output") for part in ("", "_stdev", "_min", "_max")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The settings of `blis run`: the workload, the engine and the output files."""

    cluster: ClusterOptions = section(ClusterOptions)
    report: ReportOptions = section(ReportOptions)
    workload_spec: str | None = option(
        None, "Workload spec (YAML) to generate requests from.", metavar="FILE", heading="Workload"
    )
    workload: str | None = option(
        None,
        "Kind of workload without a spec: a preset, or the lengths of --prompt-tokens and --output-tokens "
        f"(default: {DISTRIBUTION}). steady, burst and mixed-priority are scenarios of 20 seconds with priorities and "
        "deadlines.",
        choices=(DISTRIBUTION, *PRESETS, *SCENARIO_NAMES),
    )
    rate: float | None = option(
        None,
        f"Requests per second of a workload without a spec (default: {DEFAULT_RATE:g}).",
        above=0,
        at_least=LEAST_RATE,
        at_most=MOST_RATE,
    )
    arrival: str = option("constant", "Gaps between requests at --rate.", choices=PROCESSES)
    arrival_cv: float | None = option(
        None, "Coefficient of variation of gamma or weibull gaps (default: 1).", above=0, metavar="CV"
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
        f"then run to their end (default: the spec's, without one {DEFAULT_NUM_REQUESTS}).",
        at_least=0,
        at_most=MOST_REQUESTS,
    )
    prefix_tokens: int = option(
        0, "Tokens of a prefix that all prompts share, beside --prompt-tokens.", at_least=0, at_most=MOST_TOKENS
    )
    prompt_tokens: int = option(512, "Mean prompt length.", at_most=MOST_TOKENS)
    prompt_tokens_stdev: int = option(256, "Standard deviation of prompt lengths.", at_most=MOST_TOKENS)
    prompt_tokens_min: int = option(2, "Shortest prompt.", at_least=1)
    prompt_tokens_max: int = option(7000, "Longest prompt.", at_least=1, at_most=MOST_TOKENS)
    output_tokens: int = option(512, "Mean output length.", at_most=MOST_TOKENS)
    output_tokens_stdev: int = option(256, "Standard deviation of output lengths.", at_most=MOST_TOKENS)
    output_tokens_min: int = option(2, "Shortest output.", at_least=1)
    output_tokens_max: int = option(7000, "Longest output.", at_least=1, at_most=MOST_TOKENS)
    timeout: int | None = option(
        None,
        "Seconds after which a request is given up, negative for never (default: what the spec says of its clients, "
        f"without a spec {DEFAULT_TIMEOUT_S}).",
        at_most=LONGEST_DELAY_US // 1_000_000,
        metavar="SECONDS",
    )
    seed: int | None = option(None, f"Seed of arrivals and lengths (default: the spec's, without one {DEFAULT_SEED}).")
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
        self._check_arrival()
        if self.workload_spec is None and self.num_requests == 0 and self.horizon is None:
            raise OptionError("--num-requests 0 needs --horizon, or the workload never ends")
        _ = self.lengths  # making it checks it
        if self.cluster.gateway.max_concurrency and not self.cluster.gateway.counts_requests_in_flight:
            raise OptionError(
                "--max-concurrency needs --flow-control with --saturation-detector concurrency; closed-loop users "
                "are --concurrency"
            )

    @property
    def lengths(self) -> Preset:
        """The lengths of prompts and outputs without a spec. Raises OptionError."""
        preset = PRESETS.get(self.workload or DISTRIBUTION)
        if preset is not None:
            return preset
        return Preset(prompt=self._lengths("prompt"), output=self._lengths("output"))

    @property
    def timeout_us(self) -> int | None:
        """The timeout of requests; 0 is no timeout, None leaves the timeout to the spec."""
        if self.timeout is None:
            return DEFAULT_TIMEOUT_S * 1_000_000 if self.workload_spec is None else None
        return max(0, self.timeout) * 1_000_000

    @property
    def flags_without_effect(self) -> list[str]:
        """Flags that have no effect because the workload spec has their setting."""
        if self.workload_spec is not None:
            unused = ("workload", "rate", "arrival", "arrival_cv", "prefix_tokens", *_LENGTH_FLAGS)
        else:
            unused = _LENGTH_FLAGS if self.workload in PRESETS else ()
            unused += ("arrival", "arrival_cv") if self.concurrency else ()
        settings = {setting.name: setting for setting in options_of(RunOptions)}
        return [settings[name].label for name in unused if getattr(self, name) != settings[name].default]

    def _lengths(self, side: str) -> Lengths:
        mean, stdev, least, most = (getattr(self, f"{side}_tokens{part}") for part in ("", "_stdev", "_min", "_max"))
        flag = f"--{side}-tokens"
        if least > most:
            raise OptionError(f"{flag}-min must be at most {flag}-max ({most}), got {least}")
        if not least <= mean <= most:
            raise OptionError(f"{flag} must be between {flag}-min ({least}) and {flag}-max ({most}), got {mean}")
        if stdev and not least <= stdev <= most:
            raise OptionError(
                f"{flag}-stdev must be 0, or between {flag}-min ({least}) and {flag}-max ({most}), got {stdev}"
            )
        return Lengths(mean=mean, stdev=stdev, least=least, most=most)

    def _check_users(self) -> None:
        if not self.concurrency:
            if self.think_time_ms:
                raise OptionError("--think-time-ms needs --concurrency")
            return
        for flag, value in (("--rate", self.rate), ("--workload-spec", self.workload_spec)):
            if value is not None:
                raise OptionError(f"--concurrency and {flag} exclude each other, give one of them")
        if not self.num_requests and self.horizon is None:
            raise OptionError("--concurrency needs --num-requests or --horizon, or the workload never ends")

    def _check_arrival(self) -> None:
        if self.arrival_cv is None:
            return
        if self.arrival not in ("gamma", "weibull"):
            raise OptionError(f"--arrival-cv needs --arrival gamma or weibull, got {self.arrival}")
        problem = problem_of_cv(Arrival(process=self.arrival, cv=self.arrival_cv))
        if problem is not None:
            raise OptionError(f"--arrival-cv must be {problem}, got {self.arrival_cv:g}")


def run(options: RunOptions) -> int:
    """Generate, simulate, write requested files, print the summary on stdout; all other output goes to stderr."""
    from blis_sim.options.progress import progress_bar
    from replay.output.report import report

    on_note = _print_note if options.report.shows_notes else ignore_note
    with gc_disabled():
        report(options.report, simulate_run(options, on_note, progress_bar))
    return 0


@gc_disabled()
def simulate_run(options: RunOptions, on_note: "NoteCallback", progress: "Progress") -> "Outcome":
    """Generate the requests and simulate them. `on_note` is called with each note, `progress` shows the progress.

    Raises BlisError.
    """
    from blis_sim.engine.cluster.build import build_simulation, notes_after_run, notes_on_cluster
    from blis_sim.engine.cluster.policies import with_policies
    from blis_sim.engine.cluster.settings import SeededTieBreaker
    from blis_sim.engine.deployment import notes_after, resolve
    from replay.analysis.deadlines import notes_on_targets, with_deadlines
    from replay.closed_loop import simulate_workload
    from replay.metrics_dir.observing import observing
    from replay.output.findings import Outcome
    from replay.output.report import analysis_config_of, recording_tokens
    from replay.provenance import title_of
    from traces import TraceHeader

    options = dataclasses.replace(options, cluster=with_policies(options.cluster))
    spec = spec_of(options)
    options.report.check_files(options, *spec.files)
    workload = _workload(options, spec, on_note)
    analysis_config = analysis_config_of(options.report, workload.goodput_slo_targets)
    cluster = with_deadlines(options.cluster, analysis_config.targets)
    deployment = resolve(cluster.deployment)
    for note in (*analysis_config.saturation.notes, *deployment.notes, *notes_on_cluster(options.cluster, deployment)):
        on_note(note)
    total = workload.max_requests if workload.sessions else len(workload.requests) + len(workload.rows)
    with recording_tokens(options.report) as on_tokens, progress("simulating", total) as advance:
        ties, decisions = SeededTieBreaker(spec.seed), options.report.decision_log
        simulation = build_simulation(
            cluster,
            deployment,
            ties=ties,
            decisions=decisions,
            reports_batches=options.report.needs_events,
        )
        with observing(options, deployment, simulation, "run") as observed:
            simulated = simulate_workload(observed, workload, options.horizon, advance, on_tokens)
        simulated = simulated._replace(simulation=simulation)
    num_unsent = 0 if workload.horizon_us or options.horizon else len(workload.rows) - len(simulated.requests)
    if workload.rows and num_unsent:
        on_note(f"{num_unsent} requests were not sent: a request that they wait for was not answered")
    after = (*notes_after(deployment), *notes_after_run(simulation))
    for note in (*after, *notes_on_targets(analysis_config.targets, simulated.requests)):
        on_note(note)
    header = TraceHeader(mode="generated", workload_seed=spec.seed, goodput_slo_targets=analysis_config.targets)
    origin = partial(_origin, options, deployment, spec)
    title = title_of(options, deployment)
    return Outcome(analysis_config=analysis_config, simulated=simulated, header=header, title=title, describe=origin)


def _origin(options: RunOptions, deployment: "Deployment", spec: "WorkloadSpec") -> "Provenance":
    from replay.provenance import provenance_of

    return provenance_of("blis run", options, deployment, spec.seed, spec.files)


def spec_of(options: RunOptions) -> "WorkloadSpec":
    """Return the workload of the options: the spec file, or a workload of the flags. Raises TraceError."""
    from traces.workload import read_spec

    if options.workload_spec is None:
        return _synthetic_spec(options)
    spec = read_spec(options.workload_spec)
    return dataclasses.replace(
        spec,
        seed=spec.seed if options.seed is None else options.seed,
        num_requests=spec.num_requests if options.num_requests is None else options.num_requests,
        horizon=spec.horizon if options.horizon is None else options.horizon,
    )


def _synthetic_spec(options: RunOptions) -> "WorkloadSpec":
    from traces.workload import Arrival, WorkloadSpec, rate_spec, users_spec
    from traces.workload.sections import SCENARIO_NAMES, Scenario

    seed = DEFAULT_SEED if options.seed is None else options.seed
    if options.workload in SCENARIO_NAMES:
        scenario = Scenario(name=options.workload, **({} if options.rate is None else {"rate": options.rate}))
        num_requests = options.num_requests or 0
        horizon_us = options.horizon or 0
        return WorkloadSpec(version="2", seed=seed, scenario=scenario, num_requests=num_requests, horizon=horizon_us)
    if options.concurrency:
        spec = users_spec(
            options.lengths,
            num_users=options.concurrency,
            think_time_us=options.think_time_ms * 1000,
            num_requests=options.num_requests or 0,
            seed=seed,
            prefix_tokens=options.prefix_tokens,
        )
    else:
        spec = rate_spec(
            options.lengths,
            rate=DEFAULT_RATE if options.rate is None else options.rate,
            num_requests=DEFAULT_NUM_REQUESTS if options.num_requests is None else options.num_requests,
            seed=seed,
            arrival=Arrival(process=options.arrival, cv=options.arrival_cv),
            prefix_tokens=options.prefix_tokens,
        )
    return dataclasses.replace(spec, horizon=options.horizon or 0)


def _workload(options: RunOptions, spec: "WorkloadSpec", on_note: "NoteCallback") -> "Workload":
    """The requests to simulate, with notes about omissions and unused settings. Raises BlisError when none is left."""
    from replay.synthetic_arrivals import first_requests, requests_for_model
    from traces.workload.generate import generate

    for flag in options.flags_without_effect:
        on_note(f"{flag} has no effect, --workload-spec, --workload or --concurrency say it already")
    generated = generate(spec, options.timeout_us)
    for note in generated.notes:
        on_note(f"{options.workload_spec}: {note}")
    if generated.is_empty:
        raise OptionError("the workload has no requests: nothing arrives before its end")
    model = options.cluster.deployment.model
    workload, num_left_out = requests_for_model(model, generated)
    if num_left_out:
        on_note(f"left out {num_left_out} requests or conversations for another model than {model}")
    if workload.is_empty:
        raise OptionError(f"no request of the workload is for {model}: all were left out")
    if any(request.adapter for request in first_requests(workload)):
        on_note("adapters are noted in the trace, they do not change any time")
    return workload


def _print_note(line: str) -> None:
    with suppress(OSError):  # a full disk behind standard error takes no result away
        sys.stderr.write(f"blis run: {line}\n")
