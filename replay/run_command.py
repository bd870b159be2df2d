"""`blis run`: a synthetic workload straight through the simulated engine."""

import dataclasses
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from blis_sim.options import OptionError
from replay.run_options import DEFAULT_NUM_REQUESTS, DEFAULT_RATE, DEFAULT_SEED, RunOptions
from traces.collector import no_cycle_search

if TYPE_CHECKING:
    from blis_sim.engine.deployment import Deployment
    from blis_sim.options.provenance import Provenance
    from replay.output.outcome import Outcome
    from replay.progress import Progress, Say
    from traces.workload import Workload, WorkloadSpec

__all__ = ["RunOptions", "run", "simulate_run", "spec_of"]


def run(options: RunOptions) -> int:
    """Generate, simulate, write the files asked for, print the summary on stdout; all else goes to stderr."""
    from replay.output.report import report
    from replay.progress import progress_bar

    with no_cycle_search():
        report(options.report, simulate_run(options, _say, progress_bar))
    return 0


@no_cycle_search()
def simulate_run(options: RunOptions, say: "Say", progress: "Progress") -> "Outcome":
    """Generate the requests and simulate them; `say` gets the notes, a line each, and `progress` shows how far it is.

    Raises BlisError.
    """
    from blis_sim.engine.cluster.build import build_simulation, notes_after_run, notes_on_cluster
    from blis_sim.engine.cluster.policies import with_policies
    from blis_sim.engine.cluster.settings import SeededTieBreaker
    from blis_sim.engine.deployment import notes_after, resolve
    from replay.analysis.deadlines import notes_on_targets, with_deadlines
    from replay.closed_loop.sessions import simulate_workload
    from replay.metrics_dir.observing import observing
    from replay.output.outcome import Outcome
    from replay.output.report import questions_of, recording_tokens
    from replay.provenance import title_of
    from traces import TraceHeader

    options = dataclasses.replace(options, cluster=with_policies(options.cluster))
    spec = spec_of(options)
    options.report.check_files(options, *spec.files)
    workload = _workload(options, spec, say)
    questions = questions_of(options.report, workload.goodput_slo_targets)
    cluster = with_deadlines(options.cluster, questions.targets)
    deployment = resolve(cluster.deployment)
    for note in (*questions.saturation.notes, *deployment.notes, *notes_on_cluster(options.cluster, deployment)):
        say(note)
    total = workload.max_requests if workload.sessions else len(workload.requests) + len(workload.rows)
    with recording_tokens(options.report) as on_tokens, progress("simulating", total) as advance:
        ties, decisions = SeededTieBreaker(spec.seed), options.report.decision_log
        simulation = build_simulation(
            cluster,
            deployment,
            ties=ties,
            decisions=decisions,
            reports_batches=options.report.is_observed,
        )
        with observing(options, deployment, simulation, "run") as observed:
            simulated = simulate_workload(observed, workload, options.horizon, advance, on_tokens)
        simulated = simulated._replace(simulation=simulation)
    num_unsent = 0 if workload.horizon_us or options.horizon else len(workload.rows) - len(simulated.requests)
    if workload.rows and num_unsent:
        say(f"{num_unsent} requests were not sent: a request that they wait for was not answered")
    after = (*notes_after(deployment), *notes_after_run(simulation))
    for note in (*after, *notes_on_targets(questions.targets, simulated.requests)):
        say(note)
    header = TraceHeader(mode="generated", workload_seed=spec.seed, goodput_slo_targets=questions.targets)
    origin = partial(_origin, options, deployment, spec)
    title = title_of(options, deployment)
    return Outcome(questions=questions, simulated=simulated, header=header, title=title, describe=origin)


def _origin(options: RunOptions, deployment: "Deployment", spec: "WorkloadSpec") -> "Provenance":
    from replay.provenance import provenance_of

    return provenance_of("blis run", options, deployment, spec.seed, spec.files)


def spec_of(options: RunOptions) -> "WorkloadSpec":
    """The workload of the options: from the file, or made of flags. Raises TraceError."""
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
    from traces.workload.scenario_spec import SCENARIO_NAMES, Scenario

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


def _workload(options: RunOptions, spec: "WorkloadSpec", say: "Say") -> "Workload":
    """The requests to simulate, with notes about omissions and unused settings. Raises BlisError when none is left."""
    from replay.arrivals.synthetic import first_requests, served_by
    from traces.workload.generate import generate

    for flag in options.flags_without_effect:
        say(f"{flag} has no effect, --workload-spec, --workload or --concurrency say it already")
    generated = generate(spec, options.timeout_us)
    for note in generated.notes:
        say(f"{options.workload_spec}: {note}")
    if generated.is_empty:
        raise OptionError("the workload has no requests: nothing arrives before its end")
    model = options.cluster.deployment.model
    workload, num_left_out = served_by(model, generated)
    if num_left_out:
        say(f"left out {num_left_out} requests or conversations for another model than {model}")
    if workload.is_empty:
        raise OptionError(f"no request of the workload is for {model}: all were left out")
    if any(request.adapter for request in first_requests(workload)):
        say("adapters are noted in the trace, they do not change any time")
    return workload


def _say(line: str) -> None:
    with suppress(OSError):  # a full disk behind standard error takes no result away
        sys.stderr.write(f"blis run: {line}\n")
