"""`blis observe`: put load on a server, record what it did, search the knee of its rate, and repeat runs."""

import math
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TextIO

from blis_sim.options import options_of, with_settings
from blis_sim.options.command_line import parse_command_line
from blis_sim.options.latency_targets import LatencyTargets, checks_of, percentiles_ms
from blis_sim.options.printing import printed_format
from blis_sim.options.provenance import Provenance, command_line, input_hashes
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable
from observe.errors import RunError, messages_through, print_message
from observe.options import LEAST_RUNS, ObserveOptions

# The knee of a server: the highest rate of requests at which a share of them still meets the targets.

PRECISION = 0.1
"""The search ends when the lowest rate that was too high is above the knee by this share."""
_GROWTH = 2.0
MOST_PER_S = 1_000_000.0
"""The highest rate that can be asked for."""
_MOST_RUNS = 20
_MOST_MISSES = 8
"""Runs after which a server that has met the targets at no rate is given up."""


class Run(NamedTuple):
    """One run of a search: what was asked for, and whether it met the targets."""

    rate_per_s: float
    share: float | None
    """Requests within --goodput among all; None without it."""
    is_met: bool
    throughput_per_s: float
    recording: str


class Search:
    """Doubles the rate while the targets are met, or halves it until they are, then takes middles of the bounds."""

    def __init__(self, first_per_s: float) -> None:
        self.next_per_s = first_per_s
        self.highest_met: Run | None = None
        self._lowest_missed: float | None = None
        self.runs: list[Run] = []

    def add(self, run: Run) -> None:
        """Take in a run at `next_per_s`, and choose the next rate."""
        self.runs.append(run)
        if run.is_met:
            self.highest_met = run
        else:
            self._lowest_missed = run.rate_per_s
        met, missed = self.highest_met, self._lowest_missed
        if missed is None:
            self.next_per_s = min(run.rate_per_s * _GROWTH, MOST_PER_S)
        elif met is None:
            self.next_per_s = run.rate_per_s / _GROWTH
        else:
            self.next_per_s = (met.rate_per_s * missed) ** 0.5

    @property
    def is_over(self) -> bool:
        """Whether the bounds are close, or so many runs have not brought them together."""
        met, missed = self.highest_met, self._lowest_missed
        is_close = met is not None and missed is not None and missed <= met.rate_per_s * (1 + PRECISION)
        is_highest = met is not None and met.rate_per_s >= MOST_PER_S
        return is_close or is_highest or len(self.runs) >= (_MOST_RUNS if met else _MOST_MISSES)


def find_knee(options: ObserveOptions) -> int:
    """Measure at one rate after the other, each with a recording of its own, and print what was found.

    Returns the code of the first run that was interrupted, got no answer or could not be recorded; 1 where no rate
    meets the targets.
    """
    assert options.rate is not None
    search, limits_ms = Search(options.rate), options.targets.targets_ms
    while not search.is_over:
        number, rate = len(search.runs) + 1, search.next_per_s
        code, figures = _numbered_run(options, number, rate=rate)
        if code or not figures:
            return code or 1
        output = _recording_of(options, number)
        checks, share = checks_of(limits_ms, percentiles_ms(figures)), figures.get("slo_attainment")
        is_met = all(each.is_met for each in checks) and (share is None or share >= options.knee_share)
        search.add(Run(rate, share, is_met, figures["request_throughput_per_s"], output))
        found = [*([] if share is None else [f"{share:.1%} meet the targets"]), *(each.line for each in checks)]
        print_message(f"{rate:.3g} requests/s: {', '.join(found)}")
    knee = search.highest_met
    runs = [run._asdict() for run in search.runs]
    cells = [
        {
            "recording": run.recording,
            "requests/s": f"{run.rate_per_s:.3g}",
            "within targets": "-" if run.share is None else f"{run.share:.1%}",
            "targets": "met" if run.is_met else "missed",
        }
        for run in search.runs
    ]
    data = {"knee_requests_per_s": None if knee is None else round(knee.rate_per_s, 6), "runs": runs}
    _print_report(options, "Knee of a server", data, runs, cells)
    if knee is None:
        print_message("no rate meets the targets")
        return 1
    print_message(f"the knee is at {knee.rate_per_s:.3g} requests/s; its recording is {knee.recording}")
    return 0


def _recording_of(options: ObserveOptions, number: int) -> str:
    return f"{options.output}-{number}"


_ONCE = {
    each.name: each.default
    for each in options_of(ObserveOptions)
    if each.name in ("find_knee", "knee_share", "until_within", "most_runs")
}
"""Settings that measure once."""
_NO_TARGETS = {each.name: each.default for each in options_of(LatencyTargets)}


def _numbered_run(options: ObserveOptions, number: int, **changes: Any) -> tuple[int, dict[str, Any]]:
    """Measure once of several times, with a recording of its own: the exit code, and the figures."""
    # A run with the seed of an earlier one would find its prompts in the server's cache.
    seed = options.prompt_seed + number
    return measured(with_settings(options, output=_recording_of(options, number), seed=seed, **_ONCE, **changes))


def measured(options: ObserveOptions) -> tuple[int, dict[str, Any]]:
    """Measure without a verdict on percentiles, and print nothing: the exit code, and the figures."""
    return _recorded(with_settings(options, **_NO_TARGETS), None)


def _print_report(
    options: ObserveOptions,
    title: str,
    data: dict[str, Any],
    rows: list[dict[str, Any]],
    cells: list[dict[str, str]],
) -> None:
    """Print the answer of several runs, with one row for each."""
    answer = Report(
        title=title,
        origin=lambda: Provenance(command=command_line("blis observe", options), inputs=input_hashes(options)),
        data=lambda: data,
        rows=lambda: rows,
        sections=lambda: [Section(table=TextTable.of(cells))],
    )
    answer.print(printed_format(options))


# Runs that are repeated until it is known how far their means are off.

_CONFIDENCE = 0.95
_MEANS = {"TTFT, ms": "ttft_ms", "E2E, ms": "e2e_ms", "ITL, ms": "itl_ms"}
"""Latencies whose means must be known; those that no run has are left out."""


class Interval(NamedTuple):
    """A mean over runs, and the half of the width of its interval of confidence (Student's t) in parts of it."""

    mean: float
    within: float


def interval_of(values: Sequence[float]) -> Interval:
    """Return the interval of the mean of at least two values, of which no other is known."""
    from scipy.special import stdtrit  # takes a tenth of a second to load

    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in values) / (len(values) - 1))
    half = float(stdtrit(len(values) - 1, (1 + _CONFIDENCE) / 2)) * deviation / math.sqrt(len(values))
    return Interval(mean, half / mean if mean else 0.0)


def repeat_runs(options: ObserveOptions) -> int:
    """Measure again, each time with a recording and a seed of its own, until the intervals of all means are narrow.

    Returns the code of the first run that was interrupted, got no answer or could not be recorded. It is 1 where the
    most runs are not enough.
    """
    assert options.until_within is not None
    runs: list[dict[str, Any]] = []
    found: dict[str, Interval] = {}
    while len(runs) < options.most_runs:
        code, figures = _numbered_run(options, len(runs) + 1)
        if code or not figures:
            return code or 1
        runs.append(figures)
        if len(runs) < LEAST_RUNS:
            continue
        columns = {name: [run[key]["mean"] for run in runs if run[key]] for name, key in _MEANS.items()}
        found = {name: interval_of(values) for name, values in columns.items() if len(values) > 1}
        print_message(f"{len(runs)} runs: " + ", ".join(f"{name} ± {each.within:.1%}" for name, each in found.items()))
        if all(each.within <= options.until_within for each in found.values()):
            break
    assert options.until_within is not None
    is_narrow = all(each.within <= options.until_within for each in found.values())
    means = [
        {"recording": _recording_of(options, number)}
        | {key: run[key] and run[key]["mean"] for key in _MEANS.values()}
        | {name: run[name] for name in ("completed", "request_throughput_per_s", "output_throughput_tokens_per_s")}
        for number, run in enumerate(runs, start=1)
    ]
    intervals = {
        _MEANS[name]: {"mean": round(each.mean, 6), "within": round(each.within, 6)} for name, each in found.items()
    }
    interval = f"{_CONFIDENCE:.0%} interval"
    cells = [
        {"mean over runs": name, "value": f"{each.mean:.3f}", interval: f"± {each.within:.2%}"}
        for name, each in found.items()
    ]
    data = {"is_within": is_narrow, "confidence": _CONFIDENCE, "means": intervals, "runs": means}
    _print_report(options, "Repeated load on", data, means, cells)
    if not is_narrow:
        print_message(f"{len(runs)} runs are not enough for means within {options.until_within:.1%}")
    return 0 if is_narrow else 1


# `blis observe`: put load on a server and record what it did.

GENTLE_RATE, GENTLE_SECONDS, GENTLE_IN_FLIGHT = 1.0, 30, 8
"""The load without any flag: requests per second, for how long, and the most in flight, for a server in use."""
DEFAULT_OUTPUT = "blis-trace"
_LOADS = frozenset(("trace", "workload_spec", "proxy", "concurrency", "stages"))
"""Settings that name the requests to send, or that others send them."""


def rewritten(arguments: list[str]) -> list[str]:
    """Return a command line with what was not said of the load and of the recording; one line says what was added."""
    return with_default_load("blis observe", ObserveOptions, arguments)


def with_default_load(
    program: str, options_class: type, arguments: list[str], *, is_for_replay: bool = False
) -> list[str]:
    """Return a command line of an options class that sends a load and records it. Raises OptionError.

    A gentle load is added where no flag is about the load, thirty seconds of a rate without a number of requests. A
    load without flags has a new seed each time, for the prompts of the last run are in the server's prefix cache. So
    has any synthetic load whose recording `is_for_replay`, which also gets token times.
    """
    found = parse_command_line(options_class, arguments)
    given = found.values
    if found.requests_help or "url" not in given:
        return arguments
    added: list[str] = []
    if not given.get("output") and not (given.get("trace_header") and given.get("trace_data")):
        added += ["--output", DEFAULT_OUTPUT]
    if _LOADS.isdisjoint(given):
        added += _gentle_load(given)
        if "seed" not in given and (is_for_replay or "rate" not in given):
            added += ["--seed", str(int(time.time()))]
    if (is_for_replay or "--max-concurrency" in added) and given.keys().isdisjoint(("streaming", "record_itl")):
        added += ["--record-itl"]
    if added:
        sys.stderr.write(f"{program}: {' '.join(added)} (flags win over these)\n")
    return [*added, *arguments]


def _gentle_load(given: dict[str, object]) -> list[str]:
    """Return the flags of the load that were not given."""
    rate = given.get("rate")
    added = [] if rate is not None else ["--rate", f"{GENTLE_RATE:g}"]
    if given.keys().isdisjoint(("num_requests", "horizon", "duration")):
        per_second = rate if isinstance(rate, float) and math.isfinite(rate) else GENTLE_RATE
        in_a_run = ["--num-requests", str(max(1, round(per_second * GENTLE_SECONDS)))]
        added += ["--duration", f"{GENTLE_SECONDS}s"] if "find_knee" in given else in_a_run
    if rate is None:
        lengths = () if "workload" in given else (("prompt_tokens", 512), ("output_tokens", 128))
        added += [
            word for name, mean in lengths if name not in given for word in (f"--{name.replace('_', '-')}", str(mean))
        ]
        if given.keys().isdisjoint(("max_concurrency", "processes", "ray", "find_knee")):
            added += ["--max-concurrency", str(GENTLE_IN_FLIGHT)]
    return added


def run(options: ObserveOptions) -> int:
    """Run the measurement, write the recording, print the summary as JSON.

    Exit codes: 0 done, 1 nothing could be measured or written, 128 + n stopped by signal n. Bad input raises.
    """
    if options.find_knee:
        return find_knee(options)
    if options.until_within is not None:
        return repeat_runs(options)
    return _recorded(options, sys.stdout)[0]


def _recorded(options: ObserveOptions, result: TextIO | None) -> tuple[int, dict[str, Any]]:
    """Record, and write the summary to `result` unless that is None: the exit code, and the figures of a load."""
    from traces.append_file import exclusive_writer, open_pipes

    with exclusive_writer(options.paths.header), open_pipes(options.paths.rows_and_companions), _redacted(options):
        try:
            return (_record_through_proxy(options), {}) if options.proxying.proxy else _send_load(options, result)
        except RunError as error:
            print_message(f"blis observe: error: {error}")
            return 1, {}


def _redacted(options: ObserveOptions) -> AbstractContextManager[None]:
    """Return a context in which messages are printed as the options redact them."""
    if not options.proxying.redact:
        return nullcontext()
    from traces.redaction import Redactor

    return messages_through(Redactor(options.proxying.redact).text)


def _send_load(options: ObserveOptions, result: TextIO | None) -> tuple[int, dict[str, Any]]:
    from observe.event_loop import allow_many_connections, run_loop
    from observe.measurement import measure
    from observe.sending import SENDERS
    from observe.workload import plan_of, remaining_plan

    if options.live_html:
        from observe.live_page import check_live_port

        check_live_port(options.live_html)
    planned = plan_of(options)
    if planned.seed is not None:
        options = with_settings(options, seed=planned.seed)
    plan = remaining_plan(options, planned)
    if not plan.requests:
        print_message(f"{options.paths.data} has all of the requests already, nothing is left to send")
        return 0, {}
    allow_many_connections()
    # Before any signal is listened to: Ray would take SIGTERM away.
    with SENDERS["ray"].connect(options.ray_address, options.processes) if options.ray else nullcontext():
        return run_loop(measure(options, plan, result))


def _record_through_proxy(options: ObserveOptions) -> int:
    from observe.event_loop import allow_many_connections, run_loop
    from observe.proxy.command import record_through_proxy

    allow_many_connections()
    return run_loop(record_through_proxy(options, sys.stdout))
