"""The load of a benchmark on a server, the figures of its requests, and output as `vllm bench serve` has it."""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain, count, pairwise
from math import inf
from pathlib import Path
from random import Random
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from blis_sim.bench import BenchError
from blis_sim.bench.datasets import SampleRequest, load_of_samples
from blis_sim.bench.rate_search import Verdict, rates_to_try
from blis_sim.bench.serve_options import APIS, BenchServeOptions, BodyStyle
from blis_sim.options.printing import TABLE, printed_format
from blis_sim.options.provenance import Provenance, command_line, input_hashes
from blis_sim.report.figures import Curve, Panel, frontier_panels
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable, flat
from observe.body import RequestStyle
from observe.client import Client, Outcome
from observe.errors import print_message, warn
from observe.event_loop import Nanos
from observe.figures import RequestLog, RunStats
from observe.http import post_bytes, tls_context
from observe.requests import (
    Dispatcher,
    PlannedRequest,
    PreparedRequest,
    PromptGenerator,
    SentRequest,
    TokenScale,
    mean_rate,
    peak_arrivals,
)
from observe.sending import send_with_progress
from observe.server import ServerQueries
from observe.timeline import panels_of, timeline_of
from traces import TraceError
from traces.append_file import AppendFile, back_up
from traces.load import Load, load_text
from traces.text_file import write_text

# Outcomes of the requests of a benchmark, and figures under the names of vLLM's result files.


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFuncOutput:
    """One request. The answer ends with its last token; gaps are those between events that carry tokens.

    A request is a success when it was answered in full and at least one token came. `queue_s` is the time in
    the client's queue, which no latency includes.
    """

    is_success: bool
    error: str
    prompt_tokens: int
    output_tokens: int
    text: str
    start_s: float
    """Send time, on a clock without a meaningful zero."""
    ttft_s: float
    gaps_s: Sequence[float]
    latency_s: float
    queue_s: float

    @property
    def tpot_s(self) -> float:
        """The time per output token behind the first one, 0 with fewer than two."""
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


def request_output_of(sent: SentRequest) -> RequestFuncOutput:
    """The answer to a request that has ended."""
    outcome = sent.outcome
    times = outcome.token_times
    is_ok = outcome.status == "ok"
    counted = outcome.reply.prompt_tokens
    planned = sent.prepared.planned
    error = outcome.error_message if not is_ok else "" if times else "no event of the answer carried a token"
    return RequestFuncOutput(
        is_success=is_ok and bool(times),
        error=error,
        prompt_tokens=planned.prefix_tokens + planned.input_tokens if counted is None else counted,
        output_tokens=outcome.output_tokens if is_ok and times else 0,
        text=outcome.reply.content,
        start_s=outcome.sent / 1e9,
        ttft_s=_seconds(outcome.sent, times[0]) if times else 0.0,
        gaps_s=[_seconds(earlier, later) for earlier, later in pairwise(times)],
        latency_s=_seconds(outcome.sent, times[-1]) if times else 0.0,
        queue_s=_seconds(sent.due, outcome.sent),
    )


def _seconds(start: Nanos, end: Nanos) -> float:
    return (end - start) / 1e9


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSelection:
    """The contents of a report: latencies, percentiles, and the limits in milliseconds of a good request."""

    metrics: Sequence[str]
    percentiles: Sequence[float]
    limits_ms: Mapping[str, float]
    max_concurrency: int | None = None
    request_rate: float = inf


def result_of(answers: Sequence[RequestFuncOutput], duration_s: float, selection: MetricSelection) -> dict[str, Any]:
    """The figures of a run of this duration as vLLM's result file has them, with those of each request.

    `request_goodput` is None without limits.
    """
    good = [each for each in answers if each.is_success]
    num_input, num_output = sum(each.prompt_tokens for each in good), sum(each.output_tokens for each in good)
    peak_tokens, peak_requests = _peaks(good)
    result: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / duration_s,
        "request_goodput": _num_within(good, selection.limits_ms) / duration_s if selection.limits_ms else None,
        "output_throughput": num_output / duration_s,
        "total_token_throughput": (num_input + num_output) / duration_s,
        "input_lens": [each.prompt_tokens for each in answers],
        "output_lens": [each.output_tokens for each in answers],
        "ttfts": [each.ttft_s for each in answers],
        "itls": [list(each.gaps_s) for each in answers],
        "latencies": [each.latency_s for each in answers],
        "start_times": [each.start_s for each in answers],
        "queue_times": [each.queue_s for each in answers],
        "generated_texts": [each.text for each in answers],
        "errors": [each.error for each in answers],
        "max_output_tokens_per_s": peak_tokens,
        "max_concurrent_requests": peak_requests,
        "rtfx": 0.0,
    }
    values = _latencies_s(good, selection)
    for name in selection.metrics:
        if name in values:
            result |= _latency_figures(name, values[name], selection.percentiles)
    return result


def _latency_figures(name: str, values_s: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Mean, median, standard deviation and percentiles of a sample in milliseconds; all 0 of nothing."""
    values_ms: Floats = np.array(values_s if len(values_s) else [0.0], np.float64) * 1000
    figures = {"mean": values_ms.mean(), "median": np.median(values_ms), "std": values_ms.std()}
    figures |= {f"p{_word(percent)}": np.percentile(values_ms, percent) for percent in percentiles}
    return {f"{figure}_{name}_ms": float(value) for figure, value in figures.items()}


def _word(percent: float) -> str:
    return str(int(percent)) if percent == int(percent) else str(percent)


def _latencies_s(good: Sequence[RequestFuncOutput], selection: MetricSelection) -> dict[str, list[float]]:
    """Samples by metric. Queueing times in the client are included only with a limit of requests in flight."""
    values = {
        "ttft": [each.ttft_s for each in good],
        "tpot": [each.tpot_s for each in good if each.output_tokens > 1],
        "itl": [gap for each in good for gap in each.gaps_s],
        "e2el": [each.latency_s for each in good],
    }
    if selection.max_concurrency is not None:
        values["client_queue_time"] = [each.queue_s for each in good]
        if selection.request_rate != inf:
            values["e2el_including_client_queue"] = [each.latency_s + each.queue_s for each in good]
    return values


def _num_within(good: Sequence[RequestFuncOutput], limits_ms: Mapping[str, float]) -> int:
    """Return the number of requests within all limits."""
    return sum(
        all(
            1000 * {"ttft": each.ttft_s, "tpot": each.tpot_s, "e2el": each.latency_s}[name] <= limit_ms
            for name, limit_ms in limits_ms.items()
        )
        for each in good
    )


def _peaks(good: Sequence[RequestFuncOutput]) -> tuple[float, int]:
    """The most events with tokens in a second, and the most requests that were under way within one.

    Seconds are counted from the first sending.
    """
    if not good:
        return 0.0, 0
    origin = min(each.start_s for each in good)
    first_s = np.array([each.start_s - origin for each in good])
    last_s = first_s + np.array([each.latency_s for each in good])
    num_seconds = int(last_s.max()) + 2
    came = np.concatenate(
        [start + np.cumsum([each.ttft_s, *each.gaps_s]) for start, each in zip(first_s, good, strict=True)]
    )
    changes = np.bincount(first_s.astype(int), minlength=num_seconds) - np.bincount(
        last_s.astype(int) + 1, minlength=num_seconds
    )
    return float(np.bincount(came.astype(int)).max()), int(np.cumsum(changes).max())


# The load of a benchmark: requests and their send times, over one connection pool, with one run per rate.


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that rises from the first request to the last, in requests per second."""

    strategy: str
    start_rps: float
    end_rps: float

    def rate(self, place: int, count: int) -> float:
        """The rate at one of `count` requests."""
        progress = place / max(count - 1, 1)
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return float(self.start_rps * (self.end_rps / self.start_rps) ** progress)


def arrivals_us(count: int, rate: float, burstiness: float, seed: int, ramp: Ramp | None = None) -> list[int]:
    """Instants from the start of the run, ascending, in microseconds; all 0 at an unlimited rate.

    Gaps are gamma distributed with shape `burstiness`, all equal where that is infinite. Without a ramp they are
    stretched so that the last request is due after exactly `count / rate` seconds.
    """
    if ramp is None and rate == inf:
        return [0] * count
    rates = np.array([rate if ramp is None else ramp.rate(place, count) for place in range(count)])
    means_s = 1 / np.maximum(rates, 1e-9)
    if ramp is not None and ramp.start_rps == 0:
        means_s[0] = 0.0  # a ramp from nothing would never begin
    if burstiness == inf:
        gaps_s = means_s
    else:
        gaps_s = np.random.default_rng([seed, 1]).gamma(burstiness, 1 / burstiness, count) * means_s
    instants_s = np.cumsum(gaps_s)
    if ramp is None and instants_s[-1] > 0:
        instants_s *= count / rate / instants_s[-1]
    return [round(float(at_s) * 1e6) for at_s in instants_s]


def rates_of(options: BenchServeOptions) -> Generator[float, Verdict, None]:
    """Yield the rates to run, each after the verdict on the rate before."""
    if not options.find_rate:
        for each in options.rates:
            _ = yield each  # whatever came of the one before
        return
    search = rates_to_try(options.tolerance)
    rate = next(search)
    while True:
        verdict = yield inf if rate is None else rate
        try:
            rate = search.send(verdict)
        except StopIteration:
            return


def plan_at(options: BenchServeOptions, samples: Sequence[SampleRequest], rate: float) -> list[PlannedRequest]:
    """Return the requests and their send times at this rate."""
    ramp = None
    if options.ramp_up_strategy is not None:
        assert options.ramp_up_start_rps is not None
        assert options.ramp_up_end_rps is not None
        ramp = Ramp(options.ramp_up_strategy, options.ramp_up_start_rps, options.ramp_up_end_rps)
    due_us = arrivals_us(len(samples), rate, options.burstiness, options.dataset.seed, ramp)
    models = _models(options, len(samples))
    return [
        PlannedRequest(
            at_us=at_us,
            input_tokens=sample.input_tokens,
            output_tokens=sample.output_tokens,
            prompt=sample.text,
            prefix_group=sample.prefix_group,
            prefix_tokens=sample.prefix_tokens,
            model=model,
        )
        for at_us, sample, model in zip(due_us, samples, models, strict=True)
    ]


def _models(options: BenchServeOptions, count: int) -> list[str]:
    """The model of each request where they differ, else nothing."""
    modules = options.lora_modules
    if not modules:
        return [""] * count
    if options.lora_assignment == "round-robin":
        return [modules[place % len(modules)] for place in range(count)]
    return Random(f"{options.dataset.seed}/models").choices(modules, k=count)


_TIMEOUT_S = 6 * 60 * 60
_READY_EVERY_S = 5.0
_MOST_SPARE_CONNECTIONS = 32
_SPARE_WINDOW_US = 100_000
_SEED_STEP = 1_000_003
"""Between the prompts of one rate and the next: were they the same, a prefix cache would have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutput:
    """One run: its answers in the order of sending, how long it took, and a log for pictures."""

    model: str
    rate: float
    duration_s: float
    answers: Sequence[RequestFuncOutput]
    log: RequestLog
    load: Load


async def benchmark(
    options: BenchServeOptions, samples: Sequence[SampleRequest], on_run: Callable[[RunOutput], Verdict]
) -> None:
    """Run each rate in turn and report it at its end; the returned verdict decides on the next rate of a search.

    Raises RunError when the server cannot be used.
    """
    tls = tls_context(None, insecure=options.insecure) if options.server.tls else None
    peak = max(peak_arrivals(plan_at(options, samples, rate), _SPARE_WINDOW_US) for rate in options.rates)
    num_spare = min(peak + 1, _MOST_SPARE_CONNECTIONS)
    client = Client(options.server, timeout_s=_TIMEOUT_S, num_spare=num_spare, tls=tls)
    try:
        await client.open()
        bench = await _prepared(client, options, samples)
        if options.ready_check_timeout_sec:
            await _wait_until_ready(bench)
        if options.num_warmups:
            print_message(f"warming up with {options.num_warmups} requests")
            await asyncio.gather(*(bench.send_first() for _ in range(options.num_warmups)))
        rates, verdict = rates_of(options), None
        for number in count():
            try:
                rate = rates.send(verdict)  # type: ignore[arg-type]  # the first one follows on nothing
            except StopIteration:
                break
            verdict = on_run(await bench.run(number, rate))
    finally:
        await client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """The client, the samples and the body style that all runs of a benchmark share."""

    client: Client
    options: BenchServeOptions
    samples: Sequence[SampleRequest]
    style: BodyStyle
    scale: TokenScale

    async def run(self, number: int, rate: float) -> RunOutput:
        """Send all samples at this rate; `number` counts the runs."""
        options = self.options
        plan = plan_at(options, self.samples, rate)
        prompts = PromptGenerator(options.dataset.seed + number * _SEED_STEP, self.scale)
        stats = RunStats()
        answers: list[RequestFuncOutput | None] = [None] * len(plan)

        def finished(sent: SentRequest) -> None:
            stats.add(sent)
            answers[sent.prepared.request_id] = request_output_of(sent)

        dispatcher = Dispatcher(
            self.client, plan, partial(self._prepare, prompts), finished, max_concurrency=options.max_concurrency or 0
        )
        await self.client.warm_up(ServerQueries(self.client, options.headers).health_request)
        origin, _ = await send_with_progress(self.client, dispatcher, stats, requested_per_s=mean_rate(plan))
        return RunOutput(
            model=self.style.model,
            rate=rate,
            duration_s=(max(stats.last_ended, origin + 1) - origin) / 1e9,
            answers=[each for each in answers if each is not None],
            log=stats.log,
            load=load_of_samples(self.samples, inf if rate == inf else mean_rate(plan)),
        )

    async def send_first(self) -> Outcome:
        """Send the first prompt alone, and wait for its answer."""
        (planned, *_) = plan_at(self.options, self.samples, self.options.rates[0])
        prepared = self._prepare(PromptGenerator(self.options.dataset.seed, self.scale), 0, planned)
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.client.send(prepared.request, streaming=True, finished=answered.set_result)
        return await answered

    def _prepare(self, prompts: PromptGenerator, place: int, planned: PlannedRequest) -> PreparedRequest:
        prompt = planned.prompt or prompts.text(
            place,
            input_tokens=planned.input_tokens,
            prefix_group=planned.prefix_group,
            prefix_tokens=planned.prefix_tokens,
        )
        x_request_id = f"{self.options.request_id_prefix}{place}"
        headers = {**self.options.headers, "x-request-id": x_request_id}
        body = self.style.body(prompt, planned.output_tokens, planned.model)
        return PreparedRequest(
            request_id=place,
            planned=planned,
            x_request_id=x_request_id,
            request=post_bytes(self.client.server, self.options.path, headers, body),
            streaming=True,
        )


async def _prepared(client: Client, options: BenchServeOptions, samples: Sequence[SampleRequest]) -> _Bench:
    preparation = ServerQueries(client, options.headers)
    model = options.served_model_name or options.model or await preparation.first_model()
    has_texts = any(sample.text for sample in samples)
    style = RequestStyle(model=model, api=APIS[options.backend])
    return _Bench(
        client=client,
        options=options,
        samples=samples,
        style=BodyStyle(
            backend=options.backend,
            model=model,
            logprobs=options.logprobs,
            # Random texts mean nothing to the model.
            ignore_eos=options.ignore_eos or options.dataset.dataset_name == "random",
            extra=options.extra_fields,
        ),
        scale=TokenScale() if has_texts else await preparation.token_scale(style),
    )


async def _wait_until_ready(bench: _Bench) -> None:
    timeout_s = bench.options.ready_check_timeout_sec
    give_up_at = perf_counter_ns() + timeout_s * 1_000_000_000
    while (outcome := await bench.send_first()).status != "ok":
        left_s = (give_up_at - perf_counter_ns()) / 1e9
        if left_s <= 0:
            raise BenchError(f"the server is not ready after {timeout_s} s: {' '.join(outcome.error_message.split())}")
        warn(f"the server is not ready: {' '.join(outcome.error_message.split())[:200]}")
        await asyncio.sleep(min(_READY_EVERY_S, left_s))


# Output about each run of a benchmark and about all runs: tables, and the result file of `vllm bench serve`.

_DETAILS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")


def content(
    options: BenchServeOptions, model: str, rate: float, result: Mapping[str, Any], date: str
) -> dict[str, Any]:
    """The object of the file: the settings of the run, then its results."""
    head: dict[str, Any] = {
        "date": date,
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": options.label,
        "model_id": options.model or model,
        "tokenizer_id": options.dataset.tokenizer or options.model or model,
        "num_prompts": options.dataset.num_prompts,
        **options.extra_results,
        "request_rate": "inf" if rate == inf else rate,
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
    }
    if options.ramp_up_strategy is not None:
        head["ramp_up_strategy"] = options.ramp_up_strategy
        head["ramp_up_start_rps"] = options.ramp_up_start_rps
        head["ramp_up_end_rps"] = options.ramp_up_end_rps
    details = () if options.save_detailed else _DETAILS
    return {**head, **{name: value for name, value in result.items() if name not in details}}


def save(options: BenchServeOptions, found: Mapping[str, Any], rate: float) -> Path:
    """Write the result file and return its path. Raises BlisError when writing fails."""
    path = options.result_path or Path(options.result_dir or ".") / _name(options, found, rate)
    text = json.dumps(found)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if options.append_result:
            path.touch()
            with closing(AppendFile(path, is_shared=True)) as file:
                file.write(f"\n{text}" if path.stat().st_size else text)
        elif options.result_path is None:
            path = _write_beside(path, text)
        elif options.overwrite or (path.exists() and not path.is_file()):
            write_text(path, text)
        else:
            path = _overwrite(path, text)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
    return path


def _write_beside(path: Path, text: str) -> Path:
    """Write to this path, or to a numbered one where the file exists: two short runs at one rate end in the same
    second."""
    others = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return next(each for each in chain([path], others) if _write_new(each, text))


def _overwrite(path: Path, text: str) -> Path:
    """Write to this path after moving earlier results away; where moving fails, write beside them."""
    while not _write_new(path.resolve(), text):
        try:
            folder = back_up(path.with_suffix(""), [], [path])
        except TraceError as error:
            warn(str(error))
            return _write_beside(path, text)
        if folder is not None:
            print_message(f"note: the earlier results at {path} are now in {folder}")
    return path


def _write_new(path: Path, text: str) -> bool:
    """Write a file, unless there is one. A file that could not be written whole is removed."""
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def check_result_folder(options: BenchServeOptions) -> None:
    """Make the folder of the results before anything is sent. Raises BenchError when they could not be written."""
    path = Path(options.result_dir or ".") / (options.result_filename or ".")
    folder = path.parent if options.result_filename else path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"cannot write to {folder}: {(error.strerror or str(error)).lower()}") from error
    if options.result_filename and path.is_dir():
        raise BenchError(f"--result-filename must be a file, got the folder {path}")
    stays = path.exists() and (options.append_result or options.overwrite or not path.is_file())
    if not os.access(path if stays else path.resolve().parent, os.W_OK):
        raise BenchError(f"cannot write to {path}: permission denied")


def _name(options: BenchServeOptions, found: Mapping[str, Any], rate: float) -> str:
    """The file name, made of label, rate, limit of concurrency if there is one, model and time."""
    traffic = f"{rate}qps"
    if options.ramp_up_strategy is not None:
        start, end = options.ramp_up_start_rps, options.ramp_up_end_rps
        traffic = f"ramp-up-{options.ramp_up_strategy}-{start:g}qps-{end:g}qps"
    concurrency = "" if options.max_concurrency is None else f"-concurrency{options.max_concurrency}"
    model = str(found["model_id"]).rpartition("/")[2]
    return f"{options.label or options.backend}-{traffic}{concurrency}-{model}-{found['date']}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: its requested rate and its figures."""

    label: str
    result: Mapping[str, Any]
    """The figures under the names of the result file of vLLM, without those of each request."""
    p99_ttft_ms: float
    p99_itl_ms: float
    document: Mapping[str, Any]
    """The result file of vLLM."""


def runs_table(runs: Sequence[Run]) -> TextTable:
    """Return a table with a row for each rate."""
    columns = {"request_throughput": "req/s", "request_goodput": "good req/s", "output_throughput": "tok/s"}
    shown = {name: title for name, title in columns.items() if runs[0].result[name] is not None}
    rows = []
    for run in runs:
        numbers = {title: run.result[name] for name, title in shown.items()}
        numbers |= {"p99 TTFT ms": run.p99_ttft_ms, "p99 ITL ms": run.p99_itl_ms}
        figures = {title: f"{each:.2f}" for title, each in numbers.items()}
        rows.append({"rate": run.label, **figures, "failed": str(run.result["failed"])})
    return TextTable.of(rows, num_left_aligned=0)


def panels_of_runs(runs: Sequence[Run]) -> list[Panel]:
    """Return throughput against latency, with a point for each rate."""
    curve = Curve(
        name="",
        throughput=[run.result["output_throughput"] for run in runs],
        ttft_ms=[run.p99_ttft_ms for run in runs],
        itl_ms=[run.p99_itl_ms for run in runs],
        labels=[f"{run.label}/s" for run in runs],
    )
    return frontier_panels([curve])


_WIDTH = 50
_METRICS: Mapping[str, tuple[str, str]] = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
    "e2el_including_client_queue": ("E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency"),
}
"""Metric to its short name and its heading, in the order of the table."""


def table(result: Mapping[str, Any], selection: MetricSelection) -> str:
    """The whole table, with a newline at the end."""
    lines = _lines({**result, "concurrency": selection.max_concurrency, "rate": selection.request_rate}, selection)
    return "\n".join([" Serving Benchmark Result ".center(_WIDTH, "="), *lines, "=" * _WIDTH, ""])


_ROWS = {
    "completed": "Successful requests:",
    "failed": "Failed requests:",
    "concurrency": "Maximum request concurrency:",
    "rate": "Request rate configured (RPS):",
    "duration": "Benchmark duration (s):",
    "total_input_tokens": "Total input tokens:",
    "total_output_tokens": "Total generated tokens:",
    "request_throughput": "Request throughput (req/s):",
    "request_goodput": "Request goodput (req/s):",
    "output_throughput": "Output token throughput (tok/s):",
    "max_output_tokens_per_s": "Peak output token throughput (tok/s):",
    "max_concurrent_requests": "Peak concurrent requests:",
    "total_token_throughput": "Total token throughput (tok/s):",
}
"""Figures in the order of the table, with their labels."""
_COUNTS = ("completed", "failed", "concurrency", "total_input_tokens", "total_output_tokens")
"""Figures without decimals."""


def _lines(figures: Mapping[str, Any], selection: MetricSelection) -> Iterator[str]:
    for name, label in _ROWS.items():
        if figures[name] is not None and figures[name] != inf:
            yield f"{label:<40} {figures[name]:{'<10' if name in _COUNTS else '<10.2f'}}"
    words = {
        "mean": "Mean",
        "median": "Median",
        **{f"p{_word(each)}": f"P{_word(each)}" for each in selection.percentiles},
    }
    for metric, (short, heading) in _METRICS.items():
        if metric in selection.metrics and f"mean_{metric}_ms" in figures:
            yield heading.center(_WIDTH, "-")
            for figure, word in words.items():
                yield f"{f'{word} {short} (ms):':<40} {figures[f'{figure}_{metric}_ms']:<10.2f}"


_MOST_ERRORS = 10


class Reporter:
    """Prints the table of each run when it ends, and keeps figures for the final comparison."""

    def __init__(self, options: BenchServeOptions) -> None:
        self._options = options
        self._form = printed_format(options)
        self._runs: list[Run] = []
        self._log: RequestLog | None = None
        self._table = ""
        self._model = ""

    def measured(self, measured: RunOutput) -> Verdict:
        """Save and print one run, and return whether it met its limits. Raises BenchError when it cannot be saved."""
        options = self._options
        selection = MetricSelection(
            metrics=options.percentile_metrics,
            percentiles=options.metric_percentiles,
            limits_ms=options.limits_ms,
            max_concurrency=options.max_concurrency,
            request_rate=measured.rate,
        )
        result = result_of(measured.answers, measured.duration_s, selection)
        document = content(options, measured.model, measured.rate, result, datetime.now().strftime("%Y%m%d-%H%M%S"))
        try:
            # First of all: the reader of standard output may have gone.
            if options.save_result or options.append_result:
                print_message(f"the results are in {save(options, document, measured.rate)}")
            elif options.save_detailed:
                warn("--save-detailed writes nothing without --save-result")
        finally:
            self._table, self._model = f"{table(result, selection)}{load_text(measured.load)}\n", measured.model
            if self._form == TABLE:
                sys.stdout.write(self._table)
                sys.stdout.flush()
        errors = Counter(" ".join(each.error.split())[:300] for each in measured.answers if not each.is_success)
        for error, num_failed in errors.most_common(_MOST_ERRORS):
            warn(f"{num_failed} requests failed: {error}")
        self._log = measured.log
        samples = _latencies_s([each for each in measured.answers if each.is_success], selection)
        ttft_ms, itl_ms = (_latency_figures(name, samples[name], (99,))[f"p99_{name}_ms"] for name in ("ttft", "itl"))
        label = "inf" if measured.rate == inf else f"{measured.rate:.6g}"
        figures = {name: value for name, value in result.items() if not isinstance(value, list)}
        document = {} if self._form == TABLE else document
        self._runs.append(Run(label=label, result=figures, p99_ttft_ms=ttft_ms, p99_itl_ms=itl_ms, document=document))
        return Verdict(self._is_good(result), result["request_throughput"])

    def end(self) -> int:
        """Compare the runs, draw requested pictures, and return the exit code."""
        best = self._best
        report = self._report(best)
        if self._form != TABLE:
            report.print(self._form)
        elif len(self._runs) > 1:
            sys.stdout.write("\n" + "\n".join(runs_table(self._runs).lines()) + "\n")
        if self._options.find_rate and self._form == TABLE:
            sys.stdout.write(f"\n{self._best_line(best)}\n")
        try:
            report.write(self._options.html, self._options.plot)
        except TraceError as error:
            warn(str(error))
        if not any(run.result["completed"] for run in self._runs):
            print_message("blis bench serve: error: all requests failed")
            return 1
        return 0

    @property
    def _best(self) -> Run | None:
        """The run of the highest rate within the limits."""
        good = [run for run in self._runs if self._is_good(run.result)]
        return max(good, key=lambda run: run.result["request_throughput"], default=None)

    def _best_line(self, best: Run | None) -> str:
        found = "none" if best is None else f"{best.label} ({best.result['request_throughput']:.2f} req/s)"
        return f"Highest rate within the limits: {found}"

    def _report(self, best: Run | None) -> Report:
        """Return the answer: the table of vLLM of one run, or a row for each of several."""
        options, several = self._options, len(self._runs) > 1

        def origin() -> Provenance:
            command, seed = command_line("blis bench serve", options), options.dataset.seed
            return Provenance(command=command, model=self._model, seed=seed, inputs=input_hashes(options))

        def panels() -> list[Panel]:
            return panels_of_runs(self._runs) if several else panels_of(timeline_of(self._log)) if self._log else []

        def section() -> Section:
            return Section(table=runs_table(self._runs)) if several else Section(text=self._table.strip())

        documents = [run.document for run in self._runs]
        return Report(
            title="Load on",
            origin=origin,
            data=lambda: {"runs": documents} if several else documents[0],
            rows=lambda: map(flat, documents),
            sections=lambda: [section()],
            remarks=lambda: [self._best_line(best)] if options.find_rate else [],
            panels=panels,
        )

    def _is_good(self, result: Mapping[str, Any]) -> bool:
        """Whether the share of good requests is high enough."""
        num_good = (result["request_goodput"] or 0) * result["duration"]
        return bool(round(num_good) >= self._options.min_attainment * (result["completed"] + result["failed"]))
