"""An OpenTelemetry span for each request, with vLLM's name and attributes."""

import os
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

import orjson

from blis_sim.engine.units import Micros
from blis_sim.options.otlp import new_exporter
from mockserve.in_flight_request import InFlightRequest
from mockserve.protocol.sampling.sampling import SamplingParams
from mockserve.replies.generation import external_id
from mockserve.replies.reply_set import CompletedChoice, ReplyJob
from mockserve.transport.clients import Caller

MOST_QUEUED = 8192
"""Spans that wait for the exporting process; further ones are dropped."""
HAND_OVER_EVERY_S = 0.1
EXPORT_AT_END_S = 10.0
"""Seconds that the last spans of a server may take."""


class RequestSpans:
    """A span `llm_request` for each request to the engine, with vLLM's attributes, child of the client's span.

    A span begins and ends on the wall clock; its latencies are in simulated seconds, as on the metrics page. A process
    of its own makes and exports the spans, because that takes half as long as answering a short request; a thread
    writes what it needs.
    """

    def __init__(self, endpoint: str) -> None:
        """Raises OptionError where spans cannot be exported to `endpoint`."""
        new_exporter(endpoint).shutdown()
        command = [sys.executable, "-m", "mockserve.serving.span_process", endpoint, str(os.getpid())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        self._queue: deque[list[Any]] = deque()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._hand_over, daemon=True)
        self._thread.start()

    def received(self, job: ReplyJob) -> None:
        """Do nothing: a span is made when it has ended."""

    def completed(self, choice: CompletedChoice) -> None:
        name, flight = external_id(choice.generation, choice.prompt_number), choice.flight
        attributes = latency_attributes(flight) | {"gen_ai.request.id": name}
        self._end(attributes | sampling_attributes(choice.job.sampling, flight), choice.caller, choice.started_ns)

    def prefilled(self, flight: InFlightRequest, caller: Caller, started_ns: int) -> None:
        name, _, _ = flight.request.id.rpartition("-")
        self._end(latency_attributes(flight) | {"gen_ai.request.id": name}, caller, started_ns)

    def close(self) -> None:
        """Have all spans exported, and end the process that does it."""
        self._is_closing.set()
        self._thread.join(EXPORT_AT_END_S)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXPORT_AT_END_S)
        self._process.kill()
        self._process.wait()

    def _end(self, attributes: dict[str, Any], caller: Caller, started_ns: int) -> None:
        if len(self._queue) < MOST_QUEUED:
            self._queue.append([attributes, caller.traceparent, caller.tracestate, started_ns, time.time_ns()])

    def _hand_over(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with suppress(OSError), pipe:  # the process may have been killed
            is_last = False
            while not is_last:
                is_last = self._is_closing.wait(HAND_OVER_EVERY_S)
                if self._queue:
                    due = [self._queue.popleft() for _ in range(len(self._queue))]
                    pipe.write(orjson.dumps(due) + b"\n")
                    pipe.flush()


def latency_attributes(flight: InFlightRequest) -> dict[str, Any]:
    """Return vLLM's attributes about tokens and latencies of a complete request; latencies in simulated seconds."""
    scheduled_at, first_at = flight.first_scheduled_at, flight.first_token_at
    scheduled_at = flight.queued_at if scheduled_at is None else scheduled_at
    first_at = scheduled_at if first_at is None else first_at
    return {
        "gen_ai.latency.time_to_first_token": _seconds(flight.first_token_latency_us),
        "gen_ai.latency.e2e": _seconds(flight.e2e_latency_us),
        "gen_ai.latency.time_in_queue": _seconds(scheduled_at - flight.queued_at),
        "gen_ai.usage.prompt_tokens": flight.request.input_tokens,
        "gen_ai.usage.completion_tokens": flight.num_tokens,
        "gen_ai.latency.time_in_model_prefill": _seconds(first_at - scheduled_at),
        "gen_ai.latency.time_in_model_decode": _seconds(flight.last_token_at - first_at),
        "gen_ai.latency.time_in_model_inference": _seconds(flight.last_token_at - scheduled_at),
    }


def sampling_attributes(sampling: SamplingParams | None, flight: InFlightRequest) -> dict[str, Any]:
    """Return vLLM's attributes about sampling. vLLM leaves out a temperature of 0, and each choice has n 1."""
    if sampling is None:
        return {}
    found: dict[str, Any] = {
        "gen_ai.request.top_p": 1.0 if sampling.is_greedy else float(sampling.top_p),
        "gen_ai.request.max_tokens": flight.request.max_output_tokens,
    }
    if sampling.temperature:
        found["gen_ai.request.temperature"] = float(sampling.temperature)
    return found | {"gen_ai.request.n": 1}


def _seconds(us: Micros) -> float:
    return us / 1e6
