"""`blis replay`: a recorded trace through the simulated engine."""

import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from blis_sim.options import OptionError
from replay.replay_options import ReplayOptions
from traces.collector import no_cycle_search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from blis_sim.engine.cluster.cluster import Cluster
    from blis_sim.engine.cluster.settings import TieBreaker
    from blis_sim.engine.core import Engine
    from blis_sim.engine.deployment import Deployment
    from blis_sim.engine.latency.model import LatencyModel
    from blis_sim.engine.ranks import RankGroup
    from blis_sim.engine.simulation import Simulation
    from blis_sim.options.progress import Progress, Say
    from blis_sim.options.provenance import Provenance
    from replay.arrivals import Arrivals, Origin
    from replay.output.findings import Outcome
    from replay.simulation.record import OnTokens
    from replay.simulation.simulate import Simulated
    from traces import SloTargets, Trace, TraceHeader


def rewritten(arguments: list[str]) -> list[str]:
    """Return a command line with the settings of the recorded server added; given flags win."""
    from replay.replay_options import with_server_settings

    return with_server_settings("blis replay", ReplayOptions, arguments)


def place_of_fault(arguments: list[str], message: str) -> str | None:
    """The file and key of the setting of the recorded server that an error message is about, or None."""
    from replay.replay_options import place_of_fault

    return place_of_fault(ReplayOptions, arguments, message)


def run(options: ReplayOptions) -> int:
    """Replay, write requested files, print the summary on stdout; all other output goes to stderr."""
    from blis_sim.engine.cluster.settings import SeededTieBreaker

    return replay(options, SeededTieBreaker(options.seed))


def replay(options: ReplayOptions, ties: "TieBreaker") -> int:
    """Run the command with `ties` as the router's tie-breaker."""
    from blis_sim.options.progress import progress_bar
    from replay.output.report import report

    with no_cycle_search():
        report(options.report, simulate_replay(options, ties, _say, progress_bar))
    return 0


@no_cycle_search()
def simulate_replay(options: ReplayOptions, ties: "TieBreaker", say: "Say", progress: "Progress") -> "Outcome":
    """Simulate a recording. `say` is called with each note. Raises BlisError."""
    from blis_sim.engine.cluster.build import notes_on_cluster
    from blis_sim.engine.cluster.policies import with_policies
    from blis_sim.engine.deployment import resolve
    from replay.analysis.deadlines import with_deadlines
    from replay.arrivals import arrivals_of
    from replay.output.findings import Outcome, Sending
    from replay.output.report import questions_of, recording_tokens
    from replay.provenance import title_of
    from traces import read_trace

    options = replace(options, cluster=with_policies(options.cluster))
    header_path, model = options.header_path, options.cluster.deployment.model
    trace = read_trace(header_path, options.trace_data, distinct=True)
    if trace.header.kv_offload and trace.header.mode != "real":
        say(f"{header_path}: its kv_offload is not simulated; --kv-cpu-blocks simulates one tier of CPU memory")
    questions = questions_of(options.report, trace.header.goodput_slo_targets)
    options = replace(options, cluster=with_deadlines(options.cluster, questions.targets))
    deployment = resolve(options.cluster.deployment)
    for note in (*questions.saturation.notes, *deployment.notes, *notes_on_cluster(options.cluster, deployment)):
        say(note)
    arrivals = arrivals_of(trace, model, deployment.config, options.include_failed, options.reissue)
    _say_what_is_left_out(trace, arrivals, model, say)
    _say_what_sending_is_missing(options, [arrival.row for arrival in arrivals.arrivals], say)
    with (
        recording_tokens(options.report) as on_tokens,
        progress("replaying", len(arrivals.arrivals) * options.phase_average) as advance,
    ):
        runs = [
            _replayed(
                _simulation(options, deployment, phase, ties),
                options,
                deployment,
                arrivals,
                is_real=trace.header.mode == "real",
                on_finished=advance,
                on_tokens=on_tokens,
            )
            for phase in range(options.phase_average)
        ]
    if options.intervals:
        for line in _intervals(options, deployment, arrivals, ties, runs[0]):
            say(line)
    num_unsent = 0 if options.horizon else len(arrivals.arrivals) - len(runs[0].requests)
    _say_after_run(deployment, runs[0], questions.targets, num_unsent, say)
    sending = Sending(is_decided_here=options.decides_sending, keeps_schedule=options.reissue)
    origin = partial(_origin, options, deployment, trace.data_path)
    header, title = _header_of(trace, questions.targets), title_of(options, deployment)
    outcome = Outcome(
        questions=questions, simulated=runs[0], header=header, title=title, describe=origin, sending=sending
    )
    return outcome if len(runs) == 1 else _averaged(outcome, runs)


def _header_of(trace: "Trace", targets: "Mapping[str, SloTargets]") -> "TraceHeader":
    """Return the header of a trace of the replay."""
    from traces import TraceHeader

    offload, observed = trace.header.kv_offload, trace.header.observed_kv_metrics
    return TraceHeader(mode="replayed", goodput_slo_targets=targets, kv_offload=offload, observed_kv_metrics=observed)


def _say_after_run(
    deployment: "Deployment", run: "Simulated", targets: "Mapping[str, SloTargets]", num_unsent: int, say: "Say"
) -> None:
    """Note unsent requests, and print the notes on the step times, the cluster and the targets of a finished run."""
    from blis_sim.engine.cluster.build import notes_after_run
    from blis_sim.engine.deployment import notes_after
    from replay.analysis.deadlines import notes_on_targets

    if num_unsent:
        say(f"{num_unsent} requests were not sent: a request that they wait for was not answered")
    after = (*notes_after(deployment), *notes_after_run(run.simulation))
    for note in (*after, *notes_on_targets(targets, run.requests)):
        say(note)


def _averaged(first: "Outcome", runs: "list[Simulated]") -> "Outcome":
    """Return the mean of several replays, with all else as in the first."""
    from replay.output.ensemble import averaged, mean_metrics
    from replay.output.metrics import aggregate
    from replay.simulation.simulate import Simulated

    mean = Simulated(runs[0].simulation, averaged([run.requests for run in runs]))
    return first._replace(simulated=mean, metrics=mean_metrics(list(map(aggregate, runs))), runs=tuple(runs))


def _intervals(
    options: ReplayOptions, deployment: "Deployment", arrivals: "Arrivals", ties: "TieBreaker", run: "Simulated"
) -> "Iterator[str]":
    """Replay with other coefficients, speeds and phases. Returns a line with the interval of each figure."""
    from blis_sim.engine.cluster.build import build_simulation
    from replay.output.ensemble import drawn_latencies, figures_of, interval_lines, intervals_of
    from replay.simulation.uncertainty import drawing

    draw = drawing(deployment.latency, options.cluster.deployment.coefficients)
    figures = []
    for latency in drawn_latencies(draw, options.intervals, options.seed):
        simulation = build_simulation(options.cluster, deployment, ties=ties, adjusted=partial(_instead, latency))
        other = _simulate(simulation, options, arrivals, is_real=False, on_finished=None, on_tokens=None)
        figures.append(figures_of(other.requests))
    return interval_lines(figures_of(run.requests), intervals_of(figures))


def _instead(drawn: "LatencyModel", _: "LatencyModel") -> "LatencyModel":
    return drawn


def _origin(options: ReplayOptions, deployment: "Deployment", data_path: Path) -> "Provenance":
    from replay.provenance import provenance_of

    return provenance_of("blis replay", options, deployment, options.seed, [options.header_path, data_path])


def _replayed(
    simulation: "Engine | RankGroup | Cluster",
    options: ReplayOptions,
    deployment: "Deployment",
    arrivals: "Arrivals",
    *,
    is_real: bool,
    on_finished: "Callable[[], None] | None",
    on_tokens: "OnTokens | None",
) -> "Simulated":
    """Run one replay, and write its folder of metrics if the options ask for one."""
    from replay.metrics_dir.observing import observing

    with observing(options, deployment, simulation, "replay") as observed:
        simulated = _simulate(
            observed, options, arrivals, is_real=is_real, on_finished=on_finished, on_tokens=on_tokens
        )
    return simulated._replace(simulation=simulation)


def _simulation(
    options: ReplayOptions, deployment: "Deployment", phase: int, ties: "TieBreaker"
) -> "Engine | RankGroup | Cluster":
    """Return the simulation of one replay; each of several replays has its own phase of steps."""
    from blis_sim.engine.cluster.build import build_simulation

    def adjusted(latency: "LatencyModel") -> "LatencyModel":
        if options.phase_average == 1:
            return latency
        from blis_sim.engine.latency.wrapped import PhaseShifted

        return PhaseShifted(latency, phase)

    decisions = options.report.decision_log
    return build_simulation(
        options.cluster,
        deployment,
        ties=ties,
        adjusted=adjusted,
        decisions=decisions,
        reports_batches=options.report.is_observed,
    )


def _simulate(
    simulation: "Simulation",
    options: ReplayOptions,
    arrivals: "Arrivals",
    *,
    is_real: bool,
    on_finished: "Callable[[], None] | None",
    on_tokens: "OnTokens | None",
) -> "Simulated":
    """Run the replay in the mode of the options."""
    if options.reissue:
        from replay.simulation.simulate import simulate_reissued

        cap = options.max_in_flight
        return simulate_reissued(simulation, arrivals.arrivals, cap, options.horizon, on_finished, on_tokens)
    if options.session_mode == "closed-loop":
        from replay.closed_loop import RecordedRounds, run_closed_loop

        think_time_us = None if options.think_time_ms is None else options.think_time_ms * 1000
        rounds = RecordedRounds(arrivals, is_real=is_real, think_time_us=think_time_us)
        return run_closed_loop(simulation, rounds, options.horizon, on_finished, on_tokens)
    from replay.simulation.simulate import simulate

    return simulate(simulation, arrivals.arrivals, options.horizon, on_finished, on_tokens)


def _say(line: str) -> None:
    with suppress(OSError):  # a full disk behind standard error takes no result away
        sys.stderr.write(f"blis replay: {line}\n")


def _say_what_sending_is_missing(options: ReplayOptions, rows: "list[Origin]", say: "Say") -> None:
    """Note the concurrency cap that a recording shows, unless flags give a cap or other rules of sending."""
    from traces import TraceRow
    from traces.client_cap import client_cap_of

    if options.session_mode != "fixed" or (options.reissue and options.max_in_flight):
        return
    cap = client_cap_of([row for row in rows if isinstance(row, TraceRow)])
    if cap is not None:
        say(f"warning: {cap}; --reissue --max-concurrency {cap.max_concurrency} sends as it did")


def _say_what_is_left_out(trace: "Trace", arrivals: "Arrivals", model: str, say: "Say") -> None:
    """Note the rows that are not replayed, and refuse a trace without other rows."""
    if not trace.rows:
        raise OptionError(f"{trace.data_path} has no rows, so there is nothing to replay")
    if arrivals.num_failed_left_out:
        say(f"left out {arrivals.num_failed_left_out} rows that failed (--include-failed replays them)")
    if arrivals.num_other_models_left_out:
        say(f"left out {arrivals.num_other_models_left_out} rows recorded for another model than {model}")
    if not arrivals.arrivals:
        raise OptionError(f"no row of {trace.data_path} can be replayed: all were left out")
