"""`blis replay`: a recorded trace through the simulated engine."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from blis_sim.options import ExclusionError, OptionError
from blis_sim.options.printing import print_note
from replay.replay_options import ReplayClusterOptions, ReplayOptions
from replay.report_options import ignore_note
from traces.collector import gc_disabled
from traces.load import FIXED, FIXED_ACCUMULATE, has_deltas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Sequence as SequenceOf

    from blis_sim.engine.cluster.cluster import Cluster
    from blis_sim.engine.cluster.settings import TieBreaker
    from blis_sim.engine.core import Engine
    from blis_sim.engine.data_parallel import RankGroup
    from blis_sim.engine.deployment import Deployment
    from blis_sim.engine.latency.model import LatencyModel
    from blis_sim.engine.offload_file import OffloadFile
    from blis_sim.engine.simulation import Simulation
    from blis_sim.engine.units import Micros
    from blis_sim.options.progress import NoteCallback, Progress
    from blis_sim.options.provenance import Provenance
    from replay.arrivals import Arrivals
    from replay.output.findings import FinishedRun
    from replay.simulation.record import OnTokens
    from replay.simulation.simulate import Simulated
    from traces import SloTargets, Trace, TraceHeader, TraceRow

_print_note = partial(print_note, "blis replay")


def rewritten(arguments: list[str]) -> list[str]:
    """Return a command line with the settings of the recorded server added; given flags win."""
    from replay.replay_options import with_server_settings

    return with_server_settings("blis replay", ReplayOptions, arguments)


def locate_invalid_setting(arguments: list[str], message: str) -> str | None:
    """The file and key of the setting of the recorded server that an error message is about, or None."""
    from replay.replay_options import locate_invalid_setting

    return locate_invalid_setting(ReplayOptions, arguments, message)


def run(options: ReplayOptions) -> int:
    """Replay, write requested files, print the summary on stdout; all other output goes to stderr."""
    from blis_sim.engine.cluster.settings import SeededTieBreaker

    return replay(options, SeededTieBreaker(options.seed))


def replay(options: ReplayOptions, ties: "TieBreaker") -> int:
    """Run the command with `ties` as the router's tie-breaker."""
    from blis_sim.options.progress import progress_bar
    from replay.output.report import report

    on_note = _print_note if options.report.shows_notes else ignore_note
    with gc_disabled():
        return report(options.report, simulate_replay(options, ties, on_note, progress_bar))


@gc_disabled()
def simulate_replay(
    options: ReplayOptions, ties: "TieBreaker", on_note: "NoteCallback", progress: "Progress"
) -> "FinishedRun":
    """Simulate a recording. `on_note` is called with each note. Raises BlisError."""
    from blis_sim.engine.cluster.build import notes_on_cluster, with_one_latency_model
    from blis_sim.engine.cluster.policies import with_policies
    from blis_sim.engine.deployment import resolve
    from blis_sim.engine.offload_file import with_chain
    from blis_sim.options.progress import KeptNotes
    from replay.analysis.breakdown import notes_on_targets, with_deadlines
    from replay.arrivals import arrivals_of, sped_up
    from replay.engine_options import check_declared, with_adapters
    from replay.output.findings import FinishedRun, SendPolicy, notes_on_run
    from replay.output.report import analysis_config_of, recording_tokens
    from replay.provenance import title_of
    from traces import TraceRow, read_trace
    from traces.graph import accumulated
    from traces.packed import PackedRows
    from traces.server_settings import in_server_time, served_name

    header_path, model = options.header_path, options.cluster.deployment.model
    trace = in_server_time(read_trace(header_path, options.trace_data, distinct=True, is_packed=True))
    if has_deltas(options.session_mode, trace.header.session_context_growth):
        trace = trace._replace(rows=accumulated(trace.rows))
    cluster, chain, offload_notes = _with_offload_file(
        options, trace, with_one_latency_model(with_policies(options.cluster))
    )
    options = replace(options, cluster=cluster)
    analysis_config = analysis_config_of(options.report, trace.header.goodput_slo_targets)
    options = replace(options, cluster=with_deadlines(options.cluster, analysis_config.targets))
    counts_blocks = options.cluster.deployment.counts_blocks
    deployment = with_adapters(options.adapters, resolve(options.cluster.deployment), counts_blocks)
    deployment = with_chain(chain, deployment, options.seed)
    check_declared(options.adapters, PackedRows.of(TraceRow, trace.rows).distinct("adapter"))
    for note in (*offload_notes, *options.blis.flags_without_effect, *options.adapters.flags_without_effect):
        on_note(note)
    for note in (*analysis_config.saturation.notes, *deployment.notes, *notes_on_cluster(options.cluster, deployment)):
        on_note(note)
    alias = served_name(header_path, model)
    arrivals = arrivals_of(trace, model, deployment.config, options.include_failed, options.reissue, alias)
    if options.session_mode == FIXED:  # a closed loop finds its pauses in recorded times
        arrivals = arrivals._replace(arrivals=sped_up(arrivals.arrivals, options.speed))
    arrivals = _in_phase(options, trace, arrivals, deployment.config.timer_us)
    interruptions = _recorded_interruptions(options, trace, arrivals)
    on_run_note = KeptNotes(on_note)
    _note_omitted_rows(trace, arrivals, model, on_run_note)
    _note_missing_client_cap(options, arrivals.arrivals.rows, on_run_note)
    with (
        recording_tokens(options.report) as on_tokens,
        progress("replaying", len(arrivals.arrivals) * options.phase_average) as advance,
    ):
        runs = [
            _replayed_once(
                _new_simulation(options, deployment, phase, ties, bool(interruptions)),
                options,
                deployment,
                arrivals,
                interruptions,
                is_real=trace.header.mode == "real",
                on_finished=advance,
                on_tokens=on_tokens,
            )
            for phase in range(options.phase_average)
        ]
    if options.intervals:
        for line in _interval_lines(options, deployment, arrivals, ties, runs[0]):
            on_note(line)
    after = notes_on_run(runs[0], deployment, options.cluster.kills, 0 if options.horizon else len(arrivals.arrivals))
    for note in (*after, *notes_on_targets(analysis_config.targets, runs[0].requests)):
        on_run_note(note)
    sending = SendPolicy(is_chosen_by_run=options.decides_sending, keeps_schedule=options.reissue)
    origin = partial(_provenance, options, deployment, trace.data_path)
    header, title = _header_of(trace, analysis_config.targets), title_of(options, deployment)
    outcome = FinishedRun(
        analysis_config=analysis_config,
        simulated=runs[0],
        header=header,
        title=title,
        describe=origin,
        sending=sending,
        notes=tuple(on_run_note.notes),
    )
    return outcome if len(runs) == 1 else _mean_outcome(outcome, runs)


def _header_of(trace: "Trace", targets: "Mapping[str, SloTargets]") -> "TraceHeader":
    """Return the header of a trace of the replay."""
    from traces import TraceHeader

    offload, observed = trace.header.kv_offload, trace.header.observed_kv_metrics
    return TraceHeader(mode="replayed", goodput_slo_targets=targets, kv_offload=offload, observed_kv_metrics=observed)


def _mean_outcome(first: "FinishedRun", runs: "list[Simulated]") -> "FinishedRun":
    """Return the mean of several replays, with all else as in the first."""
    from replay.output.ensemble import averaged, mean_metrics
    from replay.output.metrics import aggregate
    from replay.simulation.simulate import Simulated

    mean = Simulated(runs[0].simulation, averaged([run.requests for run in runs]))
    return first._replace(simulated=mean, metrics=mean_metrics(list(map(aggregate, runs))), runs=tuple(runs))


def _interval_lines(
    options: ReplayOptions, deployment: "Deployment", arrivals: "Arrivals", ties: "TieBreaker", run: "Simulated"
) -> "Iterator[str]":
    """Return a line with the interval of each figure.

    Where coefficients were learned from the server itself, replays have other coefficients, speeds and phases. Else
    intervals are what was measured of servers like it.
    """
    from blis_sim.engine.cluster.build import build_simulation
    from replay.output.ensemble import (
        figures_of,
        interval_lines,
        intervals_of,
        sampled_latency_models,
        stated_intervals,
    )
    from replay.provenance import least_sure
    from replay.simulation.uncertainty import is_sampled, latency_sampler

    sureness = least_sure(options.cluster, deployment)
    if not is_sampled(deployment.latency) or sureness.unlike:
        predicted = figures_of(run.requests)
        return interval_lines(predicted, stated_intervals(predicted, sureness))
    draw = latency_sampler(deployment.latency, options.cluster.deployment.coefficients)
    figures = []
    for latency in sampled_latency_models(draw, options.intervals, options.seed):
        simulation = build_simulation(options.cluster, deployment, ties=ties, adjusted=partial(_drawn_model, latency))
        other = _run_mode(simulation, options, arrivals, is_real=False, on_finished=None, on_tokens=None)
        figures.append(figures_of(other.requests))
    return interval_lines(figures_of(run.requests), intervals_of(figures))


def _drawn_model(drawn: "LatencyModel", _: "LatencyModel") -> "LatencyModel":
    return drawn


def _provenance(options: ReplayOptions, deployment: "Deployment", data_path: Path) -> "Provenance":
    from replay.provenance import provenance_of

    return provenance_of("blis replay", options, deployment, options.seed, [options.header_path, data_path])


def _replayed_once(
    simulation: "Engine | RankGroup | Cluster",
    options: ReplayOptions,
    deployment: "Deployment",
    arrivals: "Arrivals",
    interruptions: "SequenceOf[tuple[Micros, str]]",
    *,
    is_real: bool,
    on_finished: "Callable[[], None] | None",
    on_tokens: "OnTokens | None",
) -> "Simulated":
    """Run one replay, and write its folder of metrics if the options ask for one."""
    from replay.metrics_dir.observing import observing

    with observing(options, deployment, simulation, "replay") as observed:
        run = _with_interruptions(observed, simulation, interruptions) if interruptions else observed
        simulated = _run_mode(run, options, arrivals, is_real=is_real, on_finished=on_finished, on_tokens=on_tokens)
    return simulated._replace(simulation=simulation)


def _with_offload_file(
    options: ReplayOptions, trace: "Trace", cluster: "ReplayClusterOptions"
) -> "tuple[ReplayClusterOptions, OffloadFile | None, list[str]]":
    """Return the options with CPU memory and devices behind the KV cache: those of a simulated trace, else the file's.

    Raises EngineError or OptionError.
    """
    from blis_sim.engine.offload_file import offload_of_header, read_offload, with_offload

    header = trace.header
    if not header.kv_offload or header.mode == "real":
        return read_offload(options.offload, cluster)
    if options.offload.kv_offload_config is not None:
        raise ExclusionError("--kv-offload-config", f"the kv_offload of {options.header_path}", "")
    return with_offload(offload_of_header(options.header_path, header.kv_offload), cluster, f"{options.header_path}")


def _new_simulation(
    options: ReplayOptions, deployment: "Deployment", phase: int, ties: "TieBreaker", is_interrupted: bool = False
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
        reports_batches=options.report.needs_events,
        reports_steps=is_interrupted,  # others take many steps at once
    )


def _run_mode(
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
    if options.session_mode != FIXED:
        from replay.closed_loop import RecordedRounds, run_closed_loop

        rounds = RecordedRounds(
            arrivals,
            is_real=is_real,
            think_time_us=options.think_times_us,
            speed=options.speed,
            keeps_times=options.session_mode == FIXED_ACCUMULATE,
            pool_size=options.session_pool,
        )
        return run_closed_loop(simulation, rounds, options.horizon, on_finished, on_tokens)
    from replay.simulation.simulate import simulate

    return simulate(simulation, arrivals.arrivals, options.horizon, on_finished, on_tokens)


def _in_phase(options: ReplayOptions, trace: "Trace", arrivals: "Arrivals", timer_us: "Micros") -> "Arrivals":
    """Return arrivals as they were between the ticks of the recorded server's timer, where that is known.

    Raises TraceError.
    """
    from replay.arrivals import in_phase
    from traces.server_settings import clock_origin_of

    is_as_recorded = options.session_mode == FIXED and options.speed.speedup == 1 and not options.reissue
    if not timer_us or not is_as_recorded or trace.header.mode != "real" or options.ignore_server_settings:
        return arrivals
    origin_us = clock_origin_of(options.header_path)
    return arrivals if origin_us is None else in_phase(arrivals, origin_us, timer_us)


def _recorded_interruptions(options: ReplayOptions, trace: "Trace", arrivals: "Arrivals") -> "list[tuple[Micros, str]]":
    """Return when the recorded server was paused or emptied, on the clock of arrivals. Raises TraceError."""
    from traces.server_settings import interruptions_of

    if trace.header.mode != "real" or options.ignore_server_settings or options.speed.speedup != 1:
        return []
    found = interruptions_of(options.header_path)
    return [(max(1, at_us - arrivals.clock_offset_us), kind) for at_us, kind in found]


def _with_interruptions(
    observed: "Simulation",
    simulation: "Engine | RankGroup | Cluster",
    interruptions: "SequenceOf[tuple[Micros, str]]",
) -> "Simulation":
    """Return a simulation, which may be observed, with interruptions of all of its engines."""
    from blis_sim.engine.cluster.cluster import Cluster
    from replay.simulation.interruptions import InterruptedSimulation, Interruption

    cluster = simulation if isinstance(simulation, Cluster) else None
    return InterruptedSimulation(observed, [Interruption(*each) for each in interruptions], cluster)


def _note_missing_client_cap(options: ReplayOptions, rows: "SequenceOf[TraceRow]", on_note: "NoteCallback") -> None:
    """Note the concurrency cap that a recording shows, unless flags give a cap or other rules of sending."""
    from traces.client_cap import client_cap_of

    if options.session_mode != FIXED or (options.reissue and options.max_in_flight):
        return
    cap = client_cap_of(rows)
    if cap is not None:
        on_note(f"warning: {cap}; --reissue --max-concurrency {cap.max_concurrency} sends as it did")


def _note_omitted_rows(trace: "Trace", arrivals: "Arrivals", model: str, on_note: "NoteCallback") -> None:
    """Note the rows that are not replayed, and refuse a trace without other rows."""
    if not trace.rows:
        raise OptionError(f"{trace.data_path} has no rows, so there is nothing to replay")
    if arrivals.num_failed_left_out:
        on_note(f"left out {arrivals.num_failed_left_out} rows that failed (--include-failed replays them)")
    if arrivals.num_other_models_left_out:
        on_note(f"left out {arrivals.num_other_models_left_out} rows recorded for another model than {model}")
    if not arrivals.arrivals:
        raise OptionError(f"no row of {trace.data_path} can be replayed: all were left out")
