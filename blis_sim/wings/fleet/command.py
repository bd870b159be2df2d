"""`blis fleet`: a rehearsal of a fleet under load, with the autoscaler, cold starts and kills that it will meet.

The fleet runs in virtual time, or in real time behind a port, where clients of any kind can join in.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_sim.options import OptionError, option, options_of, with_settings
from blis_sim.options.latency_targets import TargetCheck, checks_columns, checks_json, checks_of, percentiles_ms
from blis_sim.options.provenance import Provenance, command_line, flag_words
from replay.report_options import ReportOptions
from replay.run_command import RunOptions, simulate_run

if TYPE_CHECKING:
    from blis_sim.engine.cluster.cluster import Cluster
    from blis_sim.report.report import Report, Section

__all__ = ["FleetOptions", "run"]

PROGRAM = "blis fleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions(RunOptions):
    """The settings of `blis fleet`: those of a run, the size of the fleet, and what it must reach."""

    count: int | None = option(
        None,
        "Instances at the beginning (default: --num-instances).",
        at_least=1,
        at_most=10_000,
        metavar="N",
        heading="Fleet",
    )
    real_time: bool = option(
        False,
        "Serve the fleet on a free port and send the load to it, instead of simulating both in virtual time.",
        heading="Fleet",
    )
    min_completed: float = option(
        1.0,
        "Share of the requests that must be completed.",
        at_least=0,
        at_most=1,
        metavar="SHARE",
        heading="Fleet",
    )

    def __post_init__(self) -> None:
        RunOptions.__post_init__(self)
        if self.count is not None and self.cluster.num_instances not in (1, self.count):
            raise OptionError(f"--count is --num-instances ({self.cluster.num_instances}), got {self.count}")
        for each in options_of(ReportOptions):
            if self.real_time and each.option.writes and each.name != "html" and each.of(self.report):
                raise OptionError(f"{each.label} has no meaning with --real-time: it writes a simulated run")


class Change(NamedTuple):
    """An instance that loads, serves, is drained or is killed, and how many serve and load from then on."""

    at_s: float
    instance: int
    state: str
    num_serving: int
    num_loading: int


class Verdict(NamedTuple):
    """The figures of a fleet beside those that it must reach."""

    completed_share: float
    """Completed requests among all that arrived."""
    min_completed: float
    checks: Sequence[TargetCheck]
    """The percentiles that have targets."""

    @property
    def is_met(self) -> bool:
        """Whether all is reached."""
        return self.completed_share >= self.min_completed and all(each.is_met for each in self.checks)

    @property
    def completed_line(self) -> str:
        """The verdict on the completed requests in words."""
        verdict = "met" if self.completed_share >= self.min_completed else "MISSED"
        return f"{verdict}: {self.completed_share:.2%} of requests completed, {self.min_completed:.2%} asked"


def run(options: FleetOptions) -> int:
    """Rehearse, print the figures, the changes of the fleet and the verdict; notes go to standard error.

    Exit codes: 0 all met, 1 a target was missed.
    """
    if options.count is not None:
        options = with_settings(options, num_instances=options.count)
    answer, verdict = (_in_real_time if options.real_time else _in_virtual_time)(options)
    answer.print(options.report.printed_format)
    answer.write(options.report.html, None)
    return int(not verdict.is_met)


def _in_virtual_time(options: FleetOptions) -> "tuple[Report, Verdict]":
    from blis_sim.options.progress import progress_bar
    from replay.analysis.clusters import cluster_of
    from replay.output.report import answer_of, write_files
    from traces.collector import gc_disabled

    with gc_disabled():
        outcome = simulate_run(options, _print_note, progress_bar)
        found = outcome.findings()
        write_files(options.report, outcome, found)
        cluster = cluster_of(outcome.simulated.simulation)
        arrived = len(outcome.simulated.requests)
        share = found.metrics["completed_requests"] / arrived if arrived else 0.0
        verdict = Verdict(share, options.min_completed, found.checks)
        changes = [] if cluster is None else list(changes_of(cluster, options.cluster.num_instances))
        answer = replace(answer_of(options.report, outcome, found), title="Fleet of")
        return _with_fleet(options, answer, changes, verdict), verdict


_WORDS = {"LOADING": "loading", "READY": "serving", "DRAINING": "drained", "KILLED": "killed"}


def changes_of(cluster: "Cluster", num_first: int) -> Iterator[Change]:
    """Yield the changes of a cluster's instances in their order, up to the end of the run.

    The first `num_first` instances serve from the beginning.
    """
    until = cluster.clock
    seen = ((each.at / 1e6, each.number, _WORDS[each.state.name]) for each in cluster.changes if each.at <= until)
    return _counted(sorted(seen, key=lambda change: change[0]), num_first)


def _counted(changes: Iterable[tuple[float, int, str]], num_first: int) -> Iterator[Change]:
    """Yield changes with the number of instances that serve and load after each."""
    states = dict.fromkeys(range(num_first), "serving")
    for at_s, number, state in changes:
        states[number] = state
        present = list(states.values())
        yield Change(at_s, number, state, present.count("serving"), present.count("loading"))


def _with_fleet(options: FleetOptions, answer: "Report", changes: Sequence[Change], verdict: Verdict) -> "Report":
    """Return the answer of a run, as that of this command, with the changes of the fleet and the verdict below it."""
    from blis_sim.report.tables import flat

    fleet = {
        "changes": [each._asdict() for each in changes],
        **verdict._asdict(),
        "checks": checks_json(verdict.checks),
        "is_met": verdict.is_met,
    }
    command = command_line(PROGRAM, options)

    def data() -> dict[str, Any]:
        found = answer.data()
        return {**found, "provenance": {**found.get("provenance", {}), "command": command}, "fleet": fleet}

    def rows() -> list[dict[str, Any]]:
        """The verdict is in the row of all instances, the first."""
        first, *others = [dict(row) for row in answer.rows()] if answer.rows else [flat(answer.data())]
        judged = {**first, "completed_share": verdict.completed_share, "is_met": verdict.is_met}
        return [{**each, "command": command} for each in (judged, *others)]

    return replace(
        answer,
        origin=lambda: replace(answer.origin(), command=command),
        data=data,
        rows=rows,
        sections=lambda: [*answer.sections(), *_sections(changes)],
        remarks=lambda: [*answer.remarks(), verdict.completed_line],
    )


_MOST_ROWS = 40


def _sections(changes: Sequence[Change]) -> "Iterator[Section]":
    from blis_sim.report.report import Section
    from blis_sim.report.tables import TextTable, number

    if not changes:
        return
    rows = [
        [number(each.at_s, 1), f"instance_{each.instance}", each.state, str(each.num_serving), str(each.num_loading)]
        for each in changes[:_MOST_ROWS]
    ]
    left = len(changes) - _MOST_ROWS
    heading = "changes of the fleet" + (f", the first {_MOST_ROWS}; --json has {left} more" if left > 0 else "")
    yield Section(heading, TextTable(("at s", "instance", "is", "serving", "loading"), rows))


# In real time: a server of the fleet on a port, and the load client. Both are processes of their own, as they would be.

_POLL_S, _REPLY_S = 0.25, 5.0


def _in_real_time(options: FleetOptions) -> "tuple[Report, Verdict]":
    from blis_sim.engine.cluster.build import notes_on_late_kills
    from blis_sim.engine.deployment import resolve
    from blis_sim.report.report import Report, Section
    from blis_sim.report.tables import facts_table, number
    from blis_sim.testing import ServerError, serving

    resolve(options.cluster.deployment)  # refuses a model for which a server would simulate another one
    of_server, of_load = _command_lines(options)
    began = time.monotonic()
    try:
        with (
            _ended_by_sigterm(),
            _settings_read_once(),
            serving(["-m", "blis_sim.cli", "serve", *of_server]) as server,
            _watched(server.url, options.cluster.num_instances) as changes,
        ):
            _print_note(f"fleet at {server.url}: {' '.join(of_server)}")
            seen = _observed(["--url", server.url, *of_load])
            for note in notes_on_late_kills(options.cluster.kills, round((time.monotonic() - began) * 1e6)):
                _print_note(note)
            due = [at for at, _ in options.cluster.kills if at / 1e6 < time.monotonic() - began]
            num_killed = sum(state == "killed" for _, _, state in changes)
            if len(due) > num_killed:
                _print_note(f"warning: of {len(due)} kills {len(due) - num_killed} killed nothing")
    except ServerError as error:
        raise OptionError(f"blis serve did not start: {error}") from None
    num_failed = sum(seen["failed"].values())
    arrived = seen["completed"] + num_failed + seen["not_sent"]
    metrics = percentiles_ms(seen)
    share = seen["completed"] / arrived if arrived else 0.0
    checks = checks_of(options.report.targets.targets_ms, metrics if seen["completed"] else None)
    verdict = Verdict(share, options.min_completed, checks)
    facts = [
        ("requests", f"{number(arrived, 0)} sent, {number(seen['completed'], 0)} completed, {num_failed} failed"),
        ("requests/s", number(seen["request_throughput_per_s"])),
        *((f"{name.replace('_', ' ')}", number(value)) for name, value in metrics.items()),
    ]
    answer = Report(
        title="Fleet of",
        origin=lambda: Provenance(command=command_line(PROGRAM, options), model=options.cluster.deployment.model),
        data=lambda: {"observed": seen, **checks_columns(checks)},
        sections=lambda: [Section(table=facts_table(facts))],
        remarks=lambda: [check.line for check in checks],
    )
    return _with_fleet(options, answer, list(_counted(changes, options.cluster.num_instances)), verdict), verdict


@contextmanager
def _settings_read_once() -> Iterator[None]:
    """While open, programs that start read no settings from variables or files: this command has read them for all."""
    before = dict(os.environ)
    for name in [each for each in before if each.startswith("BLIS_")]:
        del os.environ[name]
    os.environ["BLIS_CONFIG"] = os.devnull
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """While open, SIGTERM ends this process as an exception does, so that neither server nor load outlives it."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # no other thread may set a handler
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _command_lines(options: FleetOptions) -> tuple[list[str], list[str]]:
    """Return the words for the server and for the load client. Raises OptionError for what neither can do."""
    from blis_sim.engine.cluster.options import ClusterOptions
    from observe.options import ObserveOptions

    of_fleet = {each.name for each in options_of(ClusterOptions)}
    of_client = {each.name for each in options_of(ObserveOptions)}
    own = {"count", "real_time", "min_completed"}
    shown = {each.name for each in options_of(ReportOptions)}
    server = ["--host", "127.0.0.1", "--port", "0", "--enable-instance-control"]
    load = ["--json"]
    for setting in options_of(type(options)):
        value = setting.of(options)
        if setting.name in own | shown or value == setting.default or value is None:
            continue
        if setting.name not in of_fleet | of_client:
            raise OptionError(f"{setting.label} has no meaning with --real-time")
        (server if setting.name in of_fleet else load).extend(flag_words(setting, value))
    return server, load


def _observed(words: Sequence[str]) -> dict[str, Any]:
    """Return the figures of `blis observe`. Raises OptionError when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "blis_sim.cli", "observe", *words, "--output", f"{folder}/trace"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise OptionError(f"the load could not be sent: exit code {done.returncode} of blis observe") from None
    return found


@contextmanager
def _watched(url: str, num_first: int) -> Iterator[list[tuple[float, int, str]]]:
    """Look at the instances of a server again and again, and yield the list of their changes, which grows.

    The first `num_first` instances serve from the beginning.
    """
    import urllib.request

    changes: list[tuple[float, int, str]] = []
    states = dict.fromkeys(range(num_first), "serving")
    began, ended = time.monotonic(), threading.Event()

    def look() -> None:
        while not ended.is_set():
            with (
                suppress(OSError, ValueError),
                urllib.request.urlopen(f"{url}/blis/instances", timeout=_REPLY_S) as reply,
            ):
                for each in json.loads(reply.read())["instances"]:
                    number, state = each["instance"], _SEEN[each["life"]]
                    if states.get(number) != state:
                        changes.append((time.monotonic() - began, number, state))
                    states[number] = state
            ended.wait(_POLL_S)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield changes
    finally:
        ended.set()
        # SIGTERM may have interrupted an import, whose lock the watcher then waits for without end.
        watcher.join(2 * _REPLY_S)


_SEEN = {**{name.lower(): word for name, word in _WORDS.items()}, "drained": "drained"}
"""States of instances by their names in the server, those of removed instances included."""


def _print_note(line: str) -> None:
    with suppress(OSError):  # a full disk behind standard error takes no result away
        sys.stderr.write(f"{PROGRAM}: {line}\n")
