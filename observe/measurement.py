"""One run from the first connection to the last row, and the messages and the exit code at its end."""

import asyncio
import os
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from blis_sim.options.latency_targets import checks_json, checks_of, percentiles_ms
from blis_sim.options.printing import TABLE, printed_format
from blis_sim.options.provenance import Provenance, command_line, input_hashes
from blis_sim.report.report import Report
from observe.balancer import Balancer
from observe.body import RequestStyle
from observe.client import HUNG_UP, Client
from observe.errors import ObserveError, print_message, warn
from observe.event_loop import Interrupt, start_clock
from observe.figures import RunStats, judged_saturation, load_report, summarize
from observe.options import ROUTERS, ObserveOptions
from observe.processes import send_from_processes
from observe.recording import Recorder, note_settings, reserved_paths
from observe.requests import Dispatcher, PromptGenerator, TokenScale, num_spare_connections
from observe.sending import SENDERS, balanced, clients_of, send_with_progress
from observe.server import (
    MetricsReading,
    Scraper,
    ServerQueries,
    interruptions_of_server,
    metrics_page,
    settings_of_server,
    shared_share,
    warn_of_warm_cache,
)
from observe.spans import export_spans
from observe.workload import Graph, Plan, Workload, check_same_model, preparer
from traces import TraceError, TraceHeader, read_cut_rows, write_header
from traces.redaction import Redactor
from traces.server_settings import ENGINE, HEADER_NAMES, INTERRUPTIONS, SPEED
from traces.steps import StepWriter, step_of_line

if TYPE_CHECKING:
    from blis_sim.report.figures import Panel


# The log of a server, read while it grows: the steps that its lines tell of become a part of the recording.

_INTERVAL_S = 0.5
_SETTLE_S = 1.0
"""The last lines come this long after the last reply at most."""
_LONGEST_END_S = 5.0
_PIECE_BYTES = 1 << 16
_PAUSE_S = 0.01
"""Between two pieces, so that a log that never ends leaves the time to the load."""
_LONGEST_LINE = 1 << 16
"""No line about a step is longer; of a longer line the rest is dropped."""


class EngineLog:
    """Follows a log from its present end on, and writes the steps in it to a file of steps.

    A file that cannot be written any more ends the recording of steps, with a warning. Raises ObserveError where the
    log cannot be opened, and TraceError where the file of steps cannot be made.
    """

    def __init__(self, log: Path, steps: Path, *, resume: bool = False) -> None:
        self._log = log
        try:
            self._descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise ObserveError(f"--engine-log {log}: {(error.strerror or str(error)).lower()}") from error
        mode = os.fstat(self._descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            os.close(self._descriptor)
            kind = "a folder" if stat.S_ISDIR(mode) else "a device"
            raise ObserveError(f"--engine-log {log}: expected a file or a pipe, got {kind}")
        with suppress(OSError):  # a pipe has no end to go to
            os.lseek(self._descriptor, 0, os.SEEK_END)
        self._writer = StepWriter(steps, resume=resume)
        self._path = steps
        self._begun = b""
        """The last line so far, which has not ended."""
        self._has_failed = False
        self.num_steps = 0

    async def keep_reading(self) -> None:
        """Take in what is new every half second, until cancelled."""
        while True:
            is_more = self._read_piece()
            await asyncio.sleep(_PAUSE_S if is_more else _INTERVAL_S)

    async def end(self) -> None:
        """Take in what is still to come, but not for ever, close both files and say what was found."""
        await asyncio.sleep(_SETTLE_S)
        until_s = time.monotonic() + _LONGEST_END_S
        while self._read_piece() and time.monotonic() < until_s:
            pass  # no load is measured any more
        os.close(self._descriptor)
        self._writer.close()
        if self.num_steps:
            print_message(f"{self.num_steps} steps of the engine are in {self._path}")
        else:
            warn(
                f"{self._log} told of no step during the load: "
                "start the server with --enable-logging-iteration-details, as in `vllm serve MODEL ... 2>&1 | tee FILE`"
            )

    def _read_piece(self) -> bool:
        """Take in a piece of the log; return whether there was any."""
        try:
            piece = os.read(self._descriptor, _PIECE_BYTES)
        except OSError:  # a pipe with nothing in it at present
            return False
        *lines, self._begun = (self._begun + piece).split(b"\n")
        self._begun = self._begun[:_LONGEST_LINE]
        found = map(step_of_line, (line.decode("utf-8", "replace") for line in lines if b"Iteration(" in line))
        steps = [step for step in found if step is not None]
        self.num_steps += len(steps)
        if steps and not self._has_failed:
            try:
                self._writer.write(steps)
            except OSError as error:
                self._has_failed = True
                warn(f"steps are recorded no more: {self._path}: {(error.strerror or str(error)).lower()}")
        return bool(piece)


# One run from the first connection to the last row, and the messages and the exit code at its end.

_LATE_P99_MS = 5.0


def report(
    recorder: Recorder, workload: Workload, interrupt: Interrupt, result: TextIO | None, *, num_not_sent: int
) -> tuple[int, dict[str, Any]]:
    """Write the summary to `result` unless that is None, print messages. Returns the exit code and the summary."""
    # First of all: standard output may lead to the disk that is full.
    if recorder.rescued:
        warn(recorder.rescued)
    if recorder.failure:
        print_message(f"blis observe: error: {recorder.failure}; {num_not_sent} requests not sent")
    stats = recorder.stats
    summary = summarize(
        stats,
        requested_per_s=workload.requested_per_s,
        load=workload.load,
        num_not_sent=num_not_sent,
        rtt_ms=workload.rtt_ms,
        num_earlier=recorder.num_earlier,
        slo_targets=workload.slo_targets,
    )
    summary |= judged_saturation(stats.log, workload.options.saturation)
    checks = checks_of(workload.options.targets.targets_ms, percentiles_ms(summary))
    summary |= {"targets": checks_json(checks)} if checks else {}
    answer = _answer(summary, stats, workload)
    form = printed_format(workload.options)
    if result is not None:
        result.write(answer.text(form))
        result.flush()
    if result is None or form != TABLE:
        print_message(answer.text(TABLE).rstrip("\n"))
    if recorder.num_earlier:
        print_message(f"{recorder.num_earlier} requests were recorded earlier and are not in these figures")
    for warning in warnings_of(stats, summary["send_lag_ms"], exact_output=workload.style.exact_output):
        warn(warning)
    if interrupt.signal is not None:
        cut = stats.kinds["cancelled"]
        print_message(
            f"interrupted by {interrupt.signal.name}: {num_not_sent} requests not sent, {cut} cut while under way"
        )
    if len(stats.log):
        _write_files(answer, workload.options)
    return _exit_code(recorder, interrupt) or int(not all(each.is_met for each in checks)), summary


def _exit_code(recorder: Recorder, interrupt: Interrupt) -> int:
    stats = recorder.stats
    if recorder.failure:
        return 1
    if interrupt.exit_code is not None:
        return interrupt.exit_code
    if not stats.num_ok and not stats.kinds[HUNG_UP]:
        print_message(
            f"blis observe: error: all requests failed, the first with: {' '.join(stats.first_error.split())}"
        )
        return 1
    return 0


def _write_files(answer: Report, options: ObserveOptions) -> None:
    """Draw the picture and write the page that are requested."""
    try:
        answer.write(options.html, options.plot)
    except TraceError as error:
        warn(str(error))


def _answer(summary: dict[str, Any], stats: RunStats, workload: Workload) -> Report:
    """Return the answer of a run. Its texts are without what is to be redacted."""
    options = workload.options
    redactor = Redactor(options.proxying.redact)

    def origin() -> Provenance:
        command = command_line("blis observe", options)
        model = redactor.text(workload.style.model)
        return Provenance(command=command, model=model, seed=options.prompt_seed, inputs=input_hashes(options))

    def panels() -> "list[Panel]":
        from observe.timeline import panels_of, timeline_of

        return panels_of(timeline_of(stats.log)) if len(stats.log) else []

    return load_report(summary, origin, panels)


def warnings_of(stats: RunStats, lag_ms: dict[str, float] | None, *, exact_output: bool) -> list[str]:
    """Yield warnings about figures that are less reliable than they look."""
    warnings = []
    if lag_ms is not None and lag_ms["p99"] > _LATE_P99_MS:
        warnings.append(
            f"requests were sent late (p99 {lag_ms['p99']:.1f} ms, longest {lag_ms['max']:.1f} ms): this machine"
            " cannot keep up, and its latencies are in doubt"
        )
    waits = stats.log.line_wait
    if len(waits):
        warnings.append(
            f"{len(waits)} requests waited for their turn under --max-concurrency (longest"
            f" {waits.max() / 1e9:.3f} s); latencies count from the actual sending"
        )
    if stats.num_uncounted:
        warnings.append(f"{stats.num_uncounted} answers had no usage; their output tokens are the chunks that came")
    if stats.num_other_length and exact_output:
        warnings.append(
            f"{stats.num_other_length} outputs had another length than asked for;"
            " the server may not support min_tokens and ignore_eos"
        )
    if stats.num_ok and stats.first_error:
        warnings.append(f"the first failure: {' '.join(stats.first_error.split())[:300]}")
    return warnings


async def measure(options: ObserveOptions, plan: Plan, result: TextIO | None) -> tuple[int, dict[str, Any]]:
    """Send what is on the agenda, record it, and write the summary to `result` unless that is None.

    Returns the exit code, and the summary, which is empty where nothing was sent. Raises RunError and BlisError.
    """
    num_spare = num_spare_connections(plan.requests)
    for line in options.flags_without_effect:
        print_message(line)
    clients = clients_of(options, num_spare, start_clock())
    client = balanced(clients, options)
    try:
        with Interrupt() as interrupt:
            try:
                await asyncio.gather(*(each.open() for each in clients))
                workload = await _prepare_workload(clients, options, plan)
                recorder, num_not_sent = await _record(clients, workload, interrupt)
            except asyncio.CancelledError:
                if not interrupt.consume_cancellation():
                    raise
                print_message("interrupted before the first request was sent, nothing is recorded")
                return interrupt.exit_code or 1, {}
    finally:
        await client.close()
    if options.tracing.otlp_traces_endpoint:
        _export_spans(workload)
    return report(recorder, workload, interrupt, result, num_not_sent=num_not_sent)


def _export_spans(workload: Workload) -> None:
    """Send the spans of the requests of this run, which the recording has."""
    options, earlier = workload.options, workload.plan.earlier
    there = set() if earlier is None else {row.request_id for row in earlier.rows}
    endpoint = options.tracing.otlp_traces_endpoint
    model = Redactor(options.proxying.redact).text(workload.style.model)
    rows = (row for row in read_cut_rows(options.paths.data) if row.request_id not in there)
    try:
        num_taken, num_lost = export_spans(endpoint, rows, options.servers[0], model, workload.style.api)
    except (OSError, TraceError) as error:
        warn(f"no spans were sent to {endpoint}: the recording cannot be read again ({error})")
        return
    print_message(f"{num_taken} spans sent to {endpoint}")
    if num_lost:
        warn(f"{num_lost} spans were not taken by {endpoint}")


async def _prepare_workload(clients: Sequence[Client], options: ObserveOptions, plan: Plan) -> Workload:
    """Ask the first server what all of them serve, and make the connections to all of them warm."""
    preparation = ServerQueries(clients[0], options.headers)
    adapters = await preparation.adapters()
    style = RequestStyle(
        model=options.model or await preparation.first_model(),
        adapters=adapters,
        api=options.api_format,
        streaming=options.streaming,
        exact_output=not options.unconstrained_output,
        ignore_eos=options.ignore_eos,
    )
    if options.unconstrained_output and style.api == "completions":
        most = await preparation.context_tokens(style.model)
        style = style if most is None else replace(style, most_output_tokens=most)
    named = {planned.adapter for planned in plan.requests if not planned.model} - {""}
    if missing := sorted(named - adapters):
        warn(f"the server lists no adapter {missing[0]!r}: such requests go to the model of all others")
    scale = TokenScale() if options.prompts is not None else await preparation.token_scale(style)
    queries = [ServerQueries(client, options.headers) for client in clients]
    await asyncio.gather(*(each.client.warm_up(each.health_request) for each in queries))
    if options.prewarm_s:
        answered = await asyncio.gather(*(each.keep_warm(style, options.prewarm_s) for each in queries))
        print_message(f"{sum(answered)} requests answered while warming up")
    rtt_ms = await preparation.round_trip_ms() if options.rtt_ms is None else options.rtt_ms
    prompts = PromptGenerator(options.prompt_seed, scale)
    return Workload(options=options, plan=plan, style=style, prompts=prompts, rtt_ms=rtt_ms)


async def _record(clients: Sequence[Client], workload: Workload, interrupt: Interrupt) -> tuple[Recorder, int]:
    """Send everything and write it down; also the number of requests that were not sent."""
    with reserved_paths(workload.options, workload.plan.earlier):
        return await _record_at_paths(clients, workload, interrupt)


async def _record_at_paths(clients: Sequence[Client], workload: Workload, interrupt: Interrupt) -> tuple[Recorder, int]:
    """Of several servers the first one's metrics are read."""
    options, earlier = workload.options, workload.plan.earlier
    client = clients[0]
    try:
        scraper = _scraper(client, workload)
        if scraper is not None:
            await scraper.begin()
        settings = await _settings(clients, options)
        header = _header(workload, settings)
        if earlier is None:
            write_header(options.paths.header, header, in_place=True)
            note_settings(options.paths.header, settings)
        else:
            check_same_model(options, earlier, workload.style.model)
        recorder = Recorder(
            client.clock,
            options.paths,
            earlier,
            options.warmup_requests,
            columns=workload.plan.columns,
            redact=options.proxying.redact,
            failed=interrupt.stop,
        )
    except OSError as error:
        raise ObserveError(f"cannot write the recording: {(error.strerror or str(error)).lower()}") from error
    at_start = await _metrics(client, workload)
    steps = _step_recorder(options, resume=earlier is not None)
    readers = [] if scraper is None else [scraper.keep_reading(options.scrape_interval)]
    readers += [] if steps is None else [steps.keep_reading()]
    reading = [asyncio.create_task(each) for each in readers]
    try:
        if (wait_s := wave_s(settings)) > _SAID_FROM_S:
            print_message(f"waiting {wait_s:.0f} s, until ranks that may share experts are at rest")
        await asyncio.sleep(wait_s)
        num_not_sent = await _send(clients, workload, recorder, interrupt)
    finally:
        recorder.close()
        for task in reading:
            task.cancel()
    if steps is not None:
        await interrupt.run_to_completion(steps.end())
    await interrupt.run_to_completion(_note_interruptions(client, options, settings))
    if at_start is not None:
        at_end = await interrupt.run_to_completion(_metrics(client, workload))
        warn_of_warm_cache(at_start, at_end, shared_share(workload.plan.requests), options.prompt_seed)
    if scraper is not None:
        observed = await interrupt.run_to_completion(scraper.end())
        if observed is not None and earlier is None:
            commit = {} if options.vllm_commit is None else {"vllm_commit": options.vllm_commit}
            _note_hit_rate(options.paths.header, header, {**observed, **commit})
    return recorder, num_not_sent


_LONGEST_WAVE_S, _LONGEST_WAIT_S, _SAID_FROM_S = 0.5, 60.0, 2.0


def wave_s(settings: Mapping[str, Any]) -> float:
    """Return how long data-parallel ranks may step in common after the requests that prepared a run; 0 for one rank.

    Ranks that share experts go on for up to 16 forward passes, in which a first request would wait for its turn. What
    is known of a server does not tell whether its ranks do.
    """
    ranks = settings.get(ENGINE, {}).get("dp", settings.get("data_parallel"))
    if not isinstance(ranks, int) or ranks < 2:
        return 0.0
    speed: float = settings.get(SPEED, 1)
    return min(_LONGEST_WAIT_S, _LONGEST_WAVE_S / speed)


async def _send(clients: Sequence[Client], workload: Workload, recorder: Recorder, interrupt: Interrupt) -> int:
    """Send everything, from this process or several; the number of requests that were not sent."""
    options, clock = workload.options, clients[0].clock
    if options.ray:
        num_not_sent: int = await SENDERS["ray"].send(workload, clock, recorder, interrupt)
        return num_not_sent
    if options.shared_by:
        return await send_from_processes(workload, clock, recorder, interrupt)
    return await _run(balanced(clients, options), recorder, workload, interrupt)


async def _settings(clients: Sequence[Client], options: ObserveOptions) -> Mapping[str, Any]:
    """The settings of the servers as they may be written: several equal ones are a cluster of instances."""
    found = await asyncio.gather(
        *(settings_of_server(client, options.headers, options.server_config) for client in clients)
    )
    settings: dict[str, Any] = found[0]
    if len(clients) > 1:
        engine = settings.get(ENGINE, {})
        if all(each == settings for each in found) and engine.get("num_instances", 1) == 1:
            cluster = {"num_instances": len(clients), "routing_policy": ROUTERS[options.url_strategy]}
            settings = {**settings, ENGINE: {**engine, **cluster}}
        else:
            warn("the servers differ, or are clusters: a replay takes the settings of the first for all of them")
    if not options.proxying.redact:
        return settings
    redacted: Mapping[str, Any] = Redactor(options.proxying.redact).value(settings)
    return redacted


async def _note_interruptions(client: Client, options: ObserveOptions, settings: Mapping[str, Any]) -> None:
    """Write when the engines of a simulated server were paused, where that happened."""
    if ENGINE not in settings:
        return
    found = await interruptions_of_server(client, options.headers)
    if found:
        note_settings(options.paths.header, {**settings, INTERRUPTIONS: found})


async def _metrics(client: Client, workload: Workload) -> MetricsReading | None:
    """The server's metrics, where they show whether it has seen the prompts before."""
    if workload.plan.conversations is not None or workload.options.prompts is not None:
        return None
    return await metrics_page(client, workload.options.headers)


def _scraper(client: Client, workload: Workload) -> Scraper | None:
    options = workload.options
    if options.paths.metrics is None:
        return None
    page = options.metrics_server
    return Scraper(
        client,
        options.headers,
        options.paths.metrics,
        resume=workload.plan.earlier is not None,
        redactor=Redactor(options.proxying.redact) if options.proxying.redact else None,
        page=None if page is None else Client(page, timeout_s=options.timeout, num_spare=0, tls=options.tls),
    )


def _step_recorder(options: ObserveOptions, *, resume: bool) -> EngineLog | None:
    if options.engine_log is None or options.paths.steps is None:
        return None
    return EngineLog(Path(options.engine_log), options.paths.steps, resume=resume)


def _note_hit_rate(path: Path, header: TraceHeader, observed: Mapping[str, Any]) -> None:
    """Rewrite the header with the metrics of the whole run, which a resumed part alone does not have."""
    if not path.is_file():  # a device has no place to take
        return
    try:
        write_header(path, replace(header, observed_kv_metrics=observed))
    except TraceError as error:
        warn(f"the hit rate of the prefix cache cannot be noted in {path}: {error}")


async def _run(client: Client | Balancer, recorder: Recorder, workload: Workload, interrupt: Interrupt) -> int:
    """Send everything, or until the interrupt; the number of requests that were not sent."""
    plan = workload.plan
    dispatcher = Dispatcher(
        client,
        plan.requests,
        preparer(client.server, workload),
        recorder.record,
        max_concurrency=workload.options.max_concurrency,
        follow=None if plan.conversations is None else plan.conversations.follow_up,
    )
    _, num_not_sent = await send_with_progress(
        client,
        dispatcher,
        recorder.stats,
        requested_per_s=workload.requested_per_s,
        starts_at_us=plan.starts_at_us,
        interrupt=interrupt,
        live_port=workload.options.live_html,
    )
    if isinstance(plan.conversations, Graph) and plan.conversations.num_waiting and interrupt.signal is None:
        waiting = plan.conversations.num_waiting
        warn(f"{waiting} requests were not sent: a request that they wait for was not answered")
    return num_not_sent


def _header(workload: Workload, settings: Mapping[str, Any]) -> TraceHeader:
    options = workload.options
    redactor = Redactor(options.proxying.redact)
    in_header = {name: settings[name] for name in HEADER_NAMES if name in settings}
    return TraceHeader(
        time_unit="us",
        created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        mode="real",
        warm_up_requests=options.warmup_requests,
        workload_seed=options.prompt_seed,
        workload_spec=redactor.text(options.source),
        server={"type": options.server_type, "model": redactor.text(workload.style.model), **in_header},
        measured_rtt_ms=workload.rtt_ms,
        goodput_slo_targets=workload.slo_targets,
    )
