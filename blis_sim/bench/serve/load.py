"""The load of a benchmark: requests and their send times, over one connection pool, with one run per rate."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from random import Random
from time import perf_counter_ns

import numpy as np

from blis_sim.bench import BenchError
from blis_sim.bench.datasets import SampleRequest
from blis_sim.bench.rate_search import Verdict, rates_to_try
from blis_sim.bench.serve.figures import RequestFuncOutput, request_output_of
from blis_sim.bench.serve.options import APIS, BenchServeOptions, BodyStyle
from observe.body import RequestStyle
from observe.client import Client
from observe.connection import Outcome
from observe.dispatch import Dispatcher, PreparedRequest, SentRequest
from observe.errors import print_message, warn
from observe.figures import RequestLog, RunStats
from observe.http import post_bytes, tls_context
from observe.requests import PlannedRequest, PromptGenerator, TokenScale, mean_rate, peak_arrivals
from observe.sending import send_with_progress
from observe.server import ServerQueries


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
            ignore_eos=options.ignore_eos or options.dataset.forces_length,
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
