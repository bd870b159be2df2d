"""`blis sweep`: many simulations that differ in their settings, as rows, pictures and a frontier."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from blis_sim.bench.simulation_commands import (
    check_cluster,
    check_table,
    processes_option,
    ray_address_option,
    ray_option,
    simulation_option,
    vary_option,
)
from blis_sim.installation import check_answer, install_command
from blis_sim.options import OptionError, check_outputs, option, written_file
from blis_sim.options.printing import format_option, json_option, print_note, printed_format
from replay.report_options import LEAST_ATTAINMENT

if TYPE_CHECKING:
    from blis_sim.bench.points import Plan, Row, Table
    from blis_sim.bench.sweep_report import SweepResult
    from blis_sim.options.progress import NoteCallback, Progress
    from blis_sim.options.provenance import Provenance

_print_note = partial(print_note, "blis sweep")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """One sweep. Raises OptionError for settings that do not fit together."""

    simulation: tuple[str, ...] = simulation_option(
        "The command to repeat, run or replay (default: run), and its flags, which may stand anywhere."
    )
    vary: tuple[str, ...] = vary_option(
        "A setting of that command and its values, such as rate=1,2,4 or tensor_parallel_size=1,2; values with commas"
        " as a JSON list. May be given again: all combinations are computed."
    )
    config: str | None = option(
        None, "YAML file with the keys command, settings and vary; flags come before it.", metavar="FILE"
    )
    sample: int | None = option(None, "Compute so many combinations, chosen by chance, instead of all.", at_least=1)
    sample_seed: int = option(0, "Seed of the choice of --sample.")
    output: str = written_file(
        "points",
        "Write a row per point to this CSV file; points already in it are not computed again.",
        "sweep.csv",
        flags=("--output", "-o"),
    )
    overwrite: bool = option(False, "Discard an existing --output and compute all points.")
    parquet: str | None = written_file("parquet", "Also write the rows to this Parquet file (needs pyarrow).")
    plot: str | None = written_file(
        "picture", "Draw throughput against p99 TTFT, p99 ITL and cost (.png, .svg or .pdf; needs matplotlib)."
    )
    html: str | None = written_file(
        "sweep page", "Write the sweep as one page with table, pictures and origin (HTML; needs matplotlib)."
    )
    gpu_cost_per_hour: float | None = option(None, "Dollars per GPU-hour. Adds costs.", above=0)
    format: str = format_option(
        "What standard output gets: a table of the points for people, or the points with their origin as JSON, CSV, "
        "Markdown or an HTML page."
    )
    json: bool = json_option()
    processes: int | None = processes_option()
    ray: bool = ray_option()
    ray_address: str | None = ray_address_option()

    def __post_init__(self) -> None:
        check_answer(self)
        check_table("--output", self.output)
        check_cluster(self.ray, self.ray_address, self.processes)
        if self.sample_seed and self.sample is None:
            raise OptionError("--sample-seed needs --sample")
        if self.parquet is not None:
            from importlib.util import find_spec

            if find_spec("pyarrow") is None:
                raise OptionError(f"--parquet needs pyarrow: {install_command('parquet')}")


__all__ = ["SweepOptions", "run"]


def run(options: SweepOptions) -> int:
    """Compute missing points, write the files, print the points.

    Exit codes: 0 done, 1 where no point could be computed. It is also 1 where settings do not explain a failure, or a
    point is what --fail-on names.
    """
    from blis_sim.bench.points import plan_of
    from blis_sim.bench.sweep_report import is_overloaded, served_rows, sweep_report
    from blis_sim.options.progress import progress_bar

    plan = plan_of(options.simulation, options.vary, options.config, SweepOptions)
    result = compute_sweep(options, plan, _print_note, progress_bar)
    failed = [row for row in result.rows if row.outcome.error]
    if len(failed) == len(result.rows):
        _print_note("error: no point could be computed")
        return 1
    sweep_report(result, partial(_origin, options, plan, result)).print(printed_format(options))
    if not served_rows(result.rows):
        _print_note("no point served any request")
    _print_note(f"all {len(result.rows)} points are in {options.output}")
    fails = "overload" in plan.settings.get("fail_on", ()) and any(map(is_overloaded, result.rows))
    return int(fails or any(row.outcome.is_unexpected for row in failed))


def compute_sweep(options: SweepOptions, plan: "Plan", on_note: "NoteCallback", progress: "Progress") -> "SweepResult":
    """Compute the points of a plan that have no row yet, write the files, and return the rows of all points.

    `on_note` gets the notes, a line each, and `progress` shows how far it is. Raises BlisError.
    """
    from blis_sim.bench.points import (
        asked,
        notes_of_points,
        open_rows,
        read_rows,
        step_time_warnings,
        table_of,
        write_parquet,
    )
    from blis_sim.bench.sweep_report import SweepResult, draw, served_rows, sweep_report
    from traces import slo_targets

    for note in plan.notes:
        on_note(note)
    if not plan.varied:
        raise OptionError("--vary NAME=VALUE,... must name what is to vary")
    check_outputs(options, *plan.paths_read())
    points = plan.points(options.sample, options.sample_seed)
    plan.check_some_fit(points)
    question = asked(plan.simulation, points)
    points = list(question.points)
    for line in step_time_warnings(plan.simulation, points):
        on_note(line)
    table = table_of(plan, points, options.gpu_cost_per_hour)
    path = Path(options.output)
    rows = [] if options.overwrite else read_rows(path, table)
    if rows:
        on_note(f"{path} has {len(rows)} of {len(points)} points already")
    computed = _computed(options, plan, table, rows, question.refusals, on_note, progress)
    rows = table.in_order([*rows, *computed])
    for line in notes_of_points([(row.point, row.outcome) for row in rows if not row.outcome.error]):
        on_note(line)
    open_rows(path, table, rows).close()
    if options.parquet is not None:
        write_parquet(options.parquet, table, rows)
    failed = [row for row in rows if row.outcome.error]
    if failed:
        worst = max(failed, key=lambda row: row.outcome.is_unexpected)
        on_note(f"{len(failed)} points failed, the first, {worst.point.label}: {worst.outcome.error}")
    targets = slo_targets(plan.settings.get("goodput", ()), str(plan.settings.get("slo_ttft", "")))
    result = SweepResult(
        table=table,
        rows=rows,
        least_attainment=float(plan.settings.get("min_attainment", LEAST_ATTAINMENT)),
        ttft_limits_ms={name: each.ttft_ms for name, each in targets.items() if each.ttft_ms},
        path=str(path),
        step_times=question.text,
    )
    if options.plot is not None and served_rows(rows):
        draw(rows, options.plot, options.gpu_cost_per_hour)
    if options.html is not None and served_rows(rows):
        sweep_report(result, partial(_origin, options, plan, result)).write(options.html, None)
    return result


def _origin(options: SweepOptions, plan: "Plan", result: "SweepResult") -> "Provenance":
    from blis_sim.bench.points import origin_of

    return origin_of("blis sweep", options, plan, [row.point for row in result.rows])


def _computed(
    options: SweepOptions,
    plan: "Plan",
    table: "Table",
    rows: "Sequence[Row]",
    refusals: "Mapping[int, str]",
    on_note: "NoteCallback",
    progress: "Progress",
) -> "list[Row]":
    """Compute the points that have no row yet, and write each row as soon as its point is computed.

    `refusals` are the points that the latency model cannot time, by number, which are not computed.
    """
    from blis_sim.bench.points import Job, Outcome, Row, compute, open_rows
    from blis_sim.bench.simulation_commands import with_whole_paths
    from blis_sim.bench.workers import run_on_cluster, run_on_processes
    from traces.text_file import naming_write_errors

    there = {row.key for row in rows}
    refused = {key: refusals[each.number] for key, each in table.points.items() if each.number in refusals}
    found = [Row(key, table.points[key], Outcome(error=reason)) for key, reason in refused.items()]
    settings = {key: each.settings for key, each in table.points.items() if key not in {*there, *refused}}
    if options.ray:
        settings = {key: with_whole_paths(each) for key, each in settings.items()}
    jobs = [Job(key, plan.simulation.name, each) for key, each in settings.items()]
    if not jobs:
        return found
    path = Path(options.output)
    if options.ray:
        results = run_on_cluster(compute, jobs, "ray", options.ray_address)
    else:
        results = run_on_processes(compute, jobs, options.processes)
    with (
        closing(open_rows(path, table, [*rows, *found])) as file,
        closing(results),
        progress("points", len(jobs)) as advance,
    ):
        try:
            for job, outcome in results:
                row = Row(job.key, table.points[job.key], outcome)
                found.append(row)
                with naming_write_errors(path):
                    file.write(table.line(row))
                if advance is not None:
                    advance()
        except KeyboardInterrupt:
            on_note(
                f"{len(rows) + len(found)} of {len(table.points)} points are in {path}; the same command goes on there"
            )
            raise
    return found
