"""`blis bench tune`: try engine settings on the simulator, each at the highest rate it keeps up within limits."""

import sys
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blis_sim.bench.simulation_commands import check_table, processes_option, simulation_option, vary_option
from blis_sim.installation import check_answer
from blis_sim.options import OptionError, check_outputs, option, written_file
from blis_sim.options.latency_targets import LatencyTargets
from blis_sim.options.printing import format_option, json_option, printed_format

if TYPE_CHECKING:
    from blis_sim.bench.points import AskedPoints, Plan
    from blis_sim.bench.tune import Combination
    from blis_sim.options.provenance import Provenance

__all__ = ["TuneOptions", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(LatencyTargets):
    """One search. Raises OptionError for settings that do not fit together."""

    simulation: tuple[str, ...] = simulation_option(
        "Flags of blis run: the model, the workload, engine settings; they may stand anywhere."
    )
    vary: tuple[str, ...] = vary_option(
        "An engine setting and the values to try, such as max_num_seqs=128,256. May be given again: all combinations"
        " are tried, each at the highest rate that it can keep up within the limits.",
        heading="Search",
    )
    config: str | None = option(
        None, "YAML file with the keys settings and vary; flags come before it.", metavar="FILE"
    )
    min_attainment: float | None = option(None, "Least share of requests that meet --goodput.", above=0, at_most=1)
    tolerance: float = option(0.02, "Tolerance of the best rate, as a share of it.", at_least=0.001, at_most=0.5)
    output: str | None = written_file(
        "points", "Write every simulation of the search here (CSV).", flags=("--output", "-o")
    )
    plot: str | None = written_file(
        "picture", "Draw throughput against p99 TTFT and ITL (.png, .svg or .pdf; needs matplotlib)."
    )
    html: str | None = written_file(
        "tune page", "Write the search as one page with table, pictures and origin (HTML; needs matplotlib)."
    )
    format: str = format_option(
        "What standard output gets: the best rate of each combination for people. JSON, CSV, Markdown and an HTML "
        "page have all figures and their origin."
    )
    json: bool = json_option()
    processes: int | None = processes_option()

    def __post_init__(self) -> None:
        check_answer(self)
        _ = self.targets_ms  # making it checks it
        check_table("--output", self.output)


def run(options: TuneOptions) -> int:
    """Search, print a line per combination, write requested files. Exit codes: 0 done, 1 no combination is good
    enough, or a simulation failed in a way that its settings do not explain."""
    from blis_sim.bench.points import asked, notes_of_points
    from blis_sim.bench.tune import best_of, tune_report, write_trials

    plan = _plan(options)
    for note in plan.notes:
        sys.stderr.write(f"blis bench tune: {note}\n")
    check_outputs(options, *plan.paths_read())
    question = asked(plan.simulation, plan.points())
    combinations = _searched(options, plan, question)
    outcomes = [(each.point, each.outcome) for each in combinations]
    for line in notes_of_points([(point, outcome) for point, outcome in outcomes if not outcome.error]):
        sys.stderr.write(f"blis bench tune: {line}\n")
    report = tune_report(combinations, plan.varied, options.targets_ms, _origin(options, plan, question), question.text)
    try:
        if options.output is not None:  # before printing, since the reader of the output may have gone
            write_trials(options.output, combinations, plan.varied)
    finally:
        report.print(printed_format(options))
    for combination in combinations:
        if combination.error:
            sys.stderr.write(f"blis bench tune: {combination.point.label}: {combination.error}\n")
    if any(trial.found.figures for combination in combinations for trial in combination.trials):
        report.write(options.html, options.plot)
    winner = best_of(combinations)
    if winner is None or winner.best is None:
        sys.stderr.write("blis bench tune: error: nothing stays within the limits at any rate\n")
        return 1
    return int(any(combination.is_unexpected for combination in combinations))


def _origin(options: TuneOptions, plan: "Plan", question: "AskedPoints") -> "Provenance":
    from blis_sim.bench.points import origin_of

    return origin_of("blis bench tune", options, plan, question.points)


def _plan(options: TuneOptions) -> "Plan":
    """Return the plan of trials. Raises BlisError, also when no combination has valid settings."""
    from blis_sim.bench.points import plan_of

    plan = plan_of(options.simulation, options.vary, options.config, TuneOptions, searched=("rate",))
    if plan.simulation.name != "run":
        raise OptionError("blis bench tune needs a workload whose rate can be changed, as blis run generates")
    for name in ("rate", "stages", "concurrency"):
        if name in plan.settings or name in plan.varied:
            raise OptionError(f"--{name} has no place here: the search changes the rate")
    if "workload_spec" in plan.settings or "workload_spec" in plan.varied:
        raise OptionError("--workload-spec has no place here; blis plan finds how much of a spec a deployment can take")
    if not options.targets_ms and options.min_attainment is None:
        raise OptionError("--ttft-p99, --itl-p99, --e2e-p99 or --min-attainment must set what the search keeps to")
    targets = ("goodput", "slo_ttft", "slo_itl", "slo_e2e")
    if options.min_attainment is not None and not any(plan.settings.get(n) or n in plan.varied for n in targets):
        raise OptionError("--min-attainment needs --goodput, the limits of good requests")
    return plan


def _searched(options: TuneOptions, plan: "Plan", question: "AskedPoints") -> "list[Combination]":
    """All combinations, in order."""
    from blis_sim.bench.points import step_time_warnings
    from blis_sim.bench.tune import SearchJob, not_covered, search
    from blis_sim.bench.workers import run_on_processes
    from blis_sim.options.progress import progress_bar

    points = question.points
    plan.check_some_fit(points)
    for line in step_time_warnings(plan.simulation, points):
        sys.stderr.write(f"blis bench tune: {line}\n")
    limits = (options.targets_ms, options.min_attainment, options.tolerance)
    refusals = question.refusals
    jobs = [SearchJob(point, plan.simulation.name, *limits) for point in points if point.number not in refusals]
    combinations = [not_covered(point, refusals[point.number]) for point in points if point.number in refusals]
    with (
        closing(run_on_processes(search, jobs, options.processes)) as results,
        progress_bar("tuning", len(jobs)) as step,
    ):
        for _, combination in results:
            combinations.append(combination)
            if step is not None:
                step()
    return sorted(combinations, key=lambda combination: combination.point.number)
