"""Observers of requests, and the one that writes vLLM's log lines."""

import logging
from collections.abc import Sequence
from typing import Protocol

from mockserve.in_flight_request import InFlightRequest
from mockserve.log_lines import fields
from mockserve.options.observability import ObservabilityOptions
from mockserve.protocol.sampling.sampling import SamplingParams
from mockserve.replies.generation import external_id
from mockserve.replies.reply_set import CompletedChoice, ReplyJob
from mockserve.transport.clients import Caller

_logger = logging.getLogger(__name__)


class RequestObserver(Protocol):
    """Gets each reply when it goes to the engine, and each choice with its last token."""

    def received(self, job: ReplyJob) -> None:
        """A reply's requests are about to go to the engine."""
        ...

    def completed(self, choice: CompletedChoice) -> None:
        """A choice is complete."""
        ...

    def prefilled(self, flight: InFlightRequest, caller: Caller, started_ns: int) -> None:
        """A prompt of a pooling request has been read."""
        ...

    def close(self) -> None:
        """Send what has not been sent."""
        ...


def open_observers(options: ObservabilityOptions, logs_prompts: bool) -> Sequence[RequestObserver]:
    """Return the observers that the options ask for. Raises OptionError when a library is missing."""
    found: list[RequestObserver] = []
    if options.enable_log_requests:
        found.append(RequestLog(options, logs_prompts))
    if options.otlp_traces_endpoint:
        from mockserve.serving.spans import RequestSpans  # the library takes half a second to import

        found.append(RequestSpans(options.otlp_traces_endpoint))
    return found


def sampling_text(sampling: SamplingParams, max_tokens: int) -> str:
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
        "spaces_between_special_tokens=True, structured_outputs=None, extra_args=None)"
    )


class RequestLog:
    """vLLM's log lines about requests. Prompts are logged at level DEBUG, outputs with --enable-log-outputs."""

    def __init__(self, options: ObservabilityOptions, logs_prompts: bool) -> None:
        if logs_prompts:
            _logger.setLevel(logging.DEBUG)
        self._logs_outputs = options.enable_log_outputs
        self._max_log_len = options.max_log_len

    def received(self, job: ReplyJob) -> None:
        if job.sampling is None:
            return
        for number, prompt in enumerate(job.prompts):
            generation = prompt.generations[0]
            request = generation.request
            name = external_id(generation, number)
            most = self._max_log_len
            if _logger.isEnabledFor(logging.DEBUG):
                text, ids = prompt.text[:most], list(prompt.token_ids[:most])
                message = "Request %s details: prompt: %r, prompt_token_ids: %s, prompt_embeds shape: None."
                _logger.debug(message, name, text, ids, extra=fields(request_id=name))
            params = sampling_text(job.sampling, request.max_output_tokens)
            message = "Received request %s: params: %s, lora_request: %s."
            _logger.info(message, name, params, request.adapter or None, extra=fields(request_id=name))

    def completed(self, choice: CompletedChoice) -> None:
        if not self._logs_outputs:
            return
        answer = choice.generation.answer
        text = "".join(answer.texts[: choice.flight.num_tokens])[: self._max_log_len]
        is_streamed = bool(choice.job.delivery.stream)
        reason = "streaming_complete" if is_streamed else answer.ending.finish_reason
        name = external_id(choice.generation, choice.prompt_number)
        message = "Generated response %s%s: output: %r, finish_reason: %s"
        kind = " (streaming complete)" if is_streamed else ""
        _logger.info(message, name, kind, text, reason, extra=fields(request_id=name, finish_reason=reason))

    def prefilled(self, flight: InFlightRequest, caller: Caller, started_ns: int) -> None:
        """Log nothing: vLLM logs no output of a pooling request."""

    def close(self) -> None:
        """Do nothing: lines are written at once."""
