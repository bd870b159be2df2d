"""One run from the first connection to the last row."""

import asyncio
import gc
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter_ns

from observe.client import Client
from observe.clock import start_clock
from observe.dispatch import Dispatcher, Prepared
from observe.errors import RunError
from observe.http_request import Server, parse_server, post_bytes
from observe.interrupt import Interrupt
from observe.live import Snapshot, View, open_view, percentile
from observe.messages import say
from observe.options import ObserveOptions
from observe.preparation import Preparation
from observe.prompts import PromptBook
from observe.recorder import Recorder
from observe.report import report
from observe.request_body import RequestStyle
from observe.schedule import Planned, peak_arrivals
from traces import TraceHeader, write_header

_MOST_SPARE_CONNECTIONS = 32
_SPARE_WINDOW_US = 100_000
_HEAD_START_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class KnownServer:
    """What was learnt of the server before the run."""

    style: RequestStyle
    prompts: PromptBook
    rtt_ms: float | None


async def measure(options: ObserveOptions, plan: Sequence[Planned]) -> int:
    """Send the plan, record and report it, and return the exit code. Raises RunError, BlisError."""
    arrivals_us = [planned.at_us for planned in plan]
    num_spare = min(peak_arrivals(arrivals_us, _SPARE_WINDOW_US) + 1, _MOST_SPARE_CONNECTIONS)
    client = Client(parse_server(options.url), timeout_s=options.timeout, num_spare=num_spare)
    with Interrupt() as interrupt:
        try:
            await client.open()
            known = await _get_to_know(client, options)
            return await _record(client, options, plan, known, interrupt)
        except asyncio.CancelledError:
            if not interrupt.taken():
                raise
            say("interrupted before the first request was sent, nothing is recorded")
            return interrupt.exit_code or 1
        finally:
            await client.close()


async def _get_to_know(client: Client, options: ObserveOptions) -> KnownServer:
    preparation = Preparation(client, options.headers)
    model = options.model or await preparation.first_model()
    style = RequestStyle(
        model=model,
        chat=options.api_format == "chat",
        streaming=options.streaming,
        exact_output=not options.unconstrained_output,
        ignore_eos=options.ignore_eos,
    )
    scale = await preparation.token_scale(style)
    await client.warm_up(preparation.health_request)
    rtt_ms = await preparation.round_trip_ms() if options.rtt_ms is None else options.rtt_ms
    return KnownServer(style, PromptBook(options.seed, scale), rtt_ms)


async def _record(
    client: Client, options: ObserveOptions, plan: Sequence[Planned], known: KnownServer, interrupt: Interrupt
) -> int:
    clock = start_clock()
    paths = options.paths
    _write_header(options, known)
    recorder = Recorder(
        clock, paths.data, paths.itl, num_warm_up=options.warmup_requests, failed=interrupt.stop
    )
    dispatcher = Dispatcher(
        client,
        plan,
        _preparer(client.server, options.headers, known),
        recorder.record,
        max_concurrency=options.max_concurrency,
    )
    try:
        num_not_sent = await _run(client, dispatcher, recorder, interrupt, len(plan), _asked_rate(options, plan))
    finally:
        recorder.close()
    return report(
        recorder,
        interrupt,
        options,
        asked_rate=_asked_rate(options, plan),
        num_not_sent=num_not_sent,
        rtt_ms=known.rtt_ms,
    )
