"""Observers of requests: vLLM's log lines, and an OpenTelemetry span for each request."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import orjson

from blis_sim.engine.units import Micros
from blis_sim.installation import new_exporter
from mockserve.http.headers import Caller
from mockserve.options.server import ObservabilityOptions, in_vllm_form
from mockserve.protocol.sampling import SamplingParams
from mockserve.realtime.in_flight import InFlightRequest
from mockserve.reply.reply import PlannedChoice, Reply, ReplyJob, RequestObserver

MOST_QUEUED = 8192
"""Maximum number of spans that wait for the exporting process; further spans are dropped."""
EXPORT_INTERVAL_S = 0.1
CLOSING_TIMEOUT_S = 10.0
"""Time limit for the end of the exporting process, which itself gives up soon after it has read the last span."""


class RequestSpans:
    """A span `llm_request` for each request to the engine, with vLLM's attributes, child of the client's span.

    A span begins and ends on the wall clock; its latencies are in simulated seconds, as on the metrics page. A separate
    process makes and exports the spans, because exporting takes half as long as answering a short request. A thread
    writes the span data to that process.
    """

    def __init__(self, endpoint: str) -> None:
        """Raises OptionError where spans cannot be exported to `endpoint`."""
        new_exporter(endpoint).shutdown()
        command = [sys.executable, "-m", "mockserve.reply.span_process", endpoint, str(os.getpid())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        self._queue: deque[list[Any]] = deque()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._export_loop, daemon=True)
        self._thread.start()

    def tokenized(self, name: str, prompt: str | None, token_ids: Sequence[int], adapter: str) -> None:
        """Do nothing: the engine has no part in it."""

    def received(self, job: ReplyJob) -> None:
        """Do nothing: a span is made when it has ended."""

    def completed(self, reply: Reply, choice: PlannedChoice) -> None:
        attributes = latency_attributes(choice) | {"gen_ai.request.id": choice.external_id(choice.prompt_number)}
        self._send_span(attributes | sampling_attributes(reply.job.sampling, choice), reply.caller, reply.started_ns)

    def close(self) -> None:
        """Export all spans and end the exporting process."""
        self._is_closing.set()
        give_up_at = time.monotonic() + CLOSING_TIMEOUT_S
        self._thread.join(CLOSING_TIMEOUT_S)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, give_up_at - time.monotonic()))
        self._process.kill()
        self._process.wait()

    def _send_span(self, attributes: dict[str, Any], caller: Caller, started_ns: int) -> None:
        if len(self._queue) < MOST_QUEUED:
            self._queue.append([attributes, caller.traceparent, caller.tracestate, started_ns, time.time_ns()])

    def _export_loop(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with suppress(OSError), pipe:  # the process may have been killed
            is_last = False
            while not is_last:
                is_last = self._is_closing.wait(EXPORT_INTERVAL_S)
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
        "gen_ai.latency.time_to_first_token": _in_seconds(flight.first_token_latency_us),
        "gen_ai.latency.e2e": _in_seconds(flight.e2e_latency_us),
        "gen_ai.latency.time_in_queue": _in_seconds(scheduled_at - flight.queued_at),
        "gen_ai.usage.prompt_tokens": flight.request.input_tokens,
        "gen_ai.usage.completion_tokens": flight.num_tokens,
        "gen_ai.latency.time_in_model_prefill": _in_seconds(first_at - scheduled_at),
        "gen_ai.latency.time_in_model_decode": _in_seconds(flight.last_token_at - first_at),
        "gen_ai.latency.time_in_model_inference": _in_seconds(flight.last_token_at - scheduled_at),
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


def _in_seconds(us: Micros) -> float:
    return us / 1e6


_logger = logging.getLogger(__name__)


AdapterOf: TypeAlias = Callable[[str], object | None]
"""Returns the adapter with a name, or None."""


def open_observers(
    options: ObservabilityOptions, logs_prompts: bool, adapter_of: AdapterOf
) -> Sequence[RequestObserver]:
    """Return the observers selected by the options. Raises OptionError if a library is missing."""
    found: list[RequestObserver] = []
    if options.enable_log_requests:
        found.append(RequestLog(options, logs_prompts, adapter_of))
    if options.otlp_traces_endpoint:
        found.append(RequestSpans(options.otlp_traces_endpoint))
    return found


def sampling_text(sampling: SamplingParams, max_tokens: int, extra_args: Mapping[str, Any] | None = None) -> str:
    """Return sampling parameters as vLLM prints them; `max_tokens` is the limit in force."""
    return (
        f"SamplingParams(n={sampling.n}, presence_penalty={sampling.presence_penalty}, "
        f"frequency_penalty={sampling.frequency_penalty}, repetition_penalty={sampling.repetition_penalty}, "
        f"temperature={sampling.temperature}, watermarking=None, "
        f"top_p={1.0 if sampling.is_greedy else sampling.top_p}, "
        f"top_k={0 if sampling.is_greedy else sampling.top_k}, min_p={0.0 if sampling.is_greedy else sampling.min_p}, "
        f"seed={sampling.seed}, stop={list(sampling.stop)}, stop_token_ids={list(sampling.stop_token_ids)}, "
        f"bad_words={list(sampling.bad_words)}, thinking_token_budget=None, "
        f"include_stop_str_in_output={sampling.include_stop_str_in_output}, ignore_eos={sampling.ignore_eos}, "
        f"max_tokens={max_tokens}, min_tokens={sampling.min_tokens}, logprobs={sampling.num_logprobs}, "
        f"prompt_logprobs={sampling.num_prompt_logprobs}, skip_special_tokens={sampling.skip_special_tokens}, "
        f"spaces_between_special_tokens=True, structured_outputs=None, extra_args={extra_args})"
    )


class RequestLog:
    """vLLM's log lines about requests. Prompts are logged at level DEBUG, outputs with --enable-log-outputs."""

    def __init__(self, options: ObservabilityOptions, logs_prompts: bool, adapter_of: AdapterOf) -> None:
        if logs_prompts:
            _logger.setLevel(logging.DEBUG)
        self._adapter_of = adapter_of
        self._logs_outputs = options.enable_log_outputs
        self._max_log_len = options.max_log_len

    def received(self, job: ReplyJob) -> None:
        if job.sampling is None:
            return
        for number, prompt in enumerate(job.prompts):
            choice = prompt.choices[0]
            request = choice.request
            params = sampling_text(job.sampling, request.max_output_tokens, job.extra_args)
            self._log(choice.external_id(number), prompt.text, prompt.token_ids, params, request.adapter)

    def tokenized(self, name: str, prompt: str | None, token_ids: Sequence[int], adapter: str) -> None:
        self._log(name, prompt, token_ids, None, adapter)

    def _log(self, name: str, text: str | None, ids: Sequence[int], params: str | None, adapter: str) -> None:
        most = self._max_log_len
        if _logger.isEnabledFor(logging.DEBUG):
            message = "Request %s details: prompt: %r, prompt_token_ids: %s, prompt_embeds shape: None."
            shown = None if text is None else text[:most]
            place = in_vllm_form("request_logger.py:56", request_id=name)
            _logger.debug(message, name, shown, list(ids[:most]), extra=place)
        lora = self._adapter_of(adapter) if adapter else None
        message = "Received request %s: params: %s, lora_request: %s."
        _logger.info(message, name, params, lora, extra=in_vllm_form("request_logger.py:66", request_id=name))

    def completed(self, reply: Reply, choice: PlannedChoice) -> None:
        if not self._logs_outputs or reply.job.sampling is None:  # vLLM logs no output of a pooling request
            return
        answer = choice.answer
        text = "".join(answer.texts[: choice.num_tokens])[: self._max_log_len]
        is_streamed = bool(reply.job.delivery.stream)
        reason = "streaming_complete" if is_streamed else answer.ending.finish_reason
        name = choice.external_id(choice.prompt_number)
        message = "Generated response %s%s: output: %r, finish_reason: %s"
        kind = " (streaming complete)" if is_streamed else ""
        place = in_vllm_form("request_logger.py:119", request_id=name, finish_reason=reason)
        _logger.info(message, name, kind, text, reason, extra=place)

    def close(self) -> None:
        """Do nothing: lines are written at once."""
