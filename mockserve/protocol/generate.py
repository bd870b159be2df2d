"""The bodies of POST /inference/v1/generate and its replies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.bodies import (
    LONG_TOKENS,
    LOWEST_LOGPROB,
    Candidate,
    Choice,
    Choices,
    Ending,
    Piece,
    PromptOutput,
    ScoredToken,
    ScoredTokens,
    Usage,
    id_list,
    listed,
)
from mockserve.protocol.errors import ApiError, Problem, bad_fields, bad_value
from mockserve.protocol.json_text import json_array
from mockserve.protocol.reading.body import Fields
from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Nullable, Record, TupleOf
from mockserve.protocol.reading.types import (
    LARGEST_INT64,
    SMALLEST_INT64,
    Anything,
    FieldType,
    Flag,
    Integer,
    Number,
    OneOf,
    Text,
    as_flag,
    as_integer,
    integer_problem,
)
from mockserve.protocol.refusals import check_one_constraint, refuse_bad_salt, refuse_bad_thinking_budget
from mockserve.protocol.sampling import (
    STRUCTURED_OUTPUTS,
    Delivery,
    RequestMetadata,
    SamplingParams,
    read_delivery,
    read_request_metadata,
    read_sampling,
)
from mockserve.protocol.token_checks import REPETITION_DETECTION


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateBodies:
    """Bodies of one reply. Text or a message of a choice is in separate keys beside its ids."""

    id: str
    created: int
    model: str
    output_mode: str
    shows_prompt_ids: bool
    weight_version: str

    def opening_chunks(
        self, num_choices: int, prompt_output: PromptOutput, usage: Usage | None
    ) -> list[dict[str, Any]]:
        return []

    def chunk(self, index: int, piece: Piece, usage: Usage | None) -> dict[str, Any]:
        ending = piece.ending
        choice = {
            "index": index,
            "finish_reason": None if ending is None else ending.finish_reason,
            "stop_reason": None if ending is None else ending.stop_reason,
            "token_ids": id_list(piece.token_ids),
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": None if ending is None else self._weights(piece.num_tokens),
            **piece.delta,
            "logprobs": piece.logprobs,
        }
        # Only a chunk with prompt token ids, the first, has their key.
        about_prompt = {"prompt_token_ids": id_list(piece.prompt_token_ids)} if piece.prompt_token_ids else {}
        return {
            "request_id": self.id,
            "usage": None if usage is None else usage.full(),
            **about_prompt,
            "output_mode": self.output_mode,
            "choices": [choice],
        }

    def usage_chunk(self, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        return {"request_id": self.id, "usage": usage.last(), "output_mode": self.output_mode, "choices": []}

    def whole(self, choices: Choices, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        prompt_output = choices[0].prompt_output
        return {
            "request_id": self.id,
            "model": self.model,
            "created": self.created,
            "usage": usage.full(),
            "prompt_logprobs": prompt_output.logprobs,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": id_list(prompt_output.token_ids) if self.shows_prompt_ids else None,
            "mm_placeholders": None,
            "metrics": metrics,
            "kv_transfer_params": choices[-1].kv_transfer_params,
            "ec_transfer_params": None,
            "output_mode": self.output_mode,
            "choices": listed(choices, self._whole_choice),
        }

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": index,
            **_ending(choice.ending),
            "token_ids": id_list(choice.token_ids),
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": self._weights(choice.num_tokens),
            **choice.content,
            "logprobs": choice.logprobs,
        }

    def _weights(self, num_tokens: int) -> list[dict[str, Any]]:
        return [{"version": self.weight_version, "start": 0, "end": num_tokens}]


def token_logprobs(tokens: ScoredTokens) -> dict[str, Any]:
    """Log-probabilities by token id."""
    if len(tokens) > LONG_TOKENS:
        return {"content": json_array(lambda: map(_token, tokens))}
    return {"content": [_token(each) for each in tokens]}


def _token(scored: ScoredToken) -> dict[str, Any]:
    return {**_candidate(scored.chosen), "top_logprobs": [_candidate(shown) for shown in scored.shown]}


def _candidate(candidate: Candidate) -> dict[str, Any]:
    logprob = max(candidate.logprob, LOWEST_LOGPROB)
    return {"token_id": candidate.token_id, "logprob": logprob, "rank": candidate.rank}


def _ending(ending: Ending) -> dict[str, Any]:
    return {"finish_reason": ending.finish_reason, "stop_reason": ending.stop_reason}


OUTPUT_MODES = ("tokens", "text", "derender")


class TokenIds:
    """A list of token ids, at least one."""

    def problems(self, value: Any, location: str) -> list[Problem]:
        if not isinstance(value, list):
            return [Problem("list_type", location, "Input should be a valid list", value)]
        if not value:
            context = {"field_type": "List", "min_length": 1, "actual_length": 0}
            message = "List should have at least 1 item after validation, not 0"
            return [Problem("too_short", location, message, value, context)]
        found = (integer_problem(each, f"{location}.{index}") for index, each in enumerate(value))
        wrong = [problem for problem in found if problem is not None]
        if not wrong and any(as_integer(each) < 0 for each in value):
            reason = "token_ids must not contain negative values"
            wrong = [Problem("value_error", location, f"Value error, {reason}", value, {"error": ValueError(reason)})]
        return wrong

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


OUTPUT_KINDS = (0, 1, 2)


class OutputKind:
    """A number of vLLM's `RequestOutputKind`."""

    def problems(self, value: Any, location: str) -> list[Problem]:
        if type(value) in (int, float) and value in OUTPUT_KINDS:
            return []
        expected = "0, 1 or 2"
        return [Problem("enum", location, f"Input should be {expected}", value, {"expected": expected})]

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "enum": list(OUTPUT_KINDS)}


class SamplingParameters:
    """vLLM's own object of sampling parameters; each problem with it is reported twice."""

    inner = Record(
        {
            "n": Integer(),
            "presence_penalty": Number(),
            "frequency_penalty": Number(),
            "repetition_penalty": Number(),
            "temperature": Number(),
            "watermarking": Nullable(Flag()),
            "top_p": Number(),
            "top_k": Integer(),
            "min_p": Number(),
            "seed": Nullable(Integer()),
            "stop": Nullable(AnyOf((Text(), ListOf(Text())))),
            "stop_token_ids": Nullable(ListOf(Integer())),
            "ignore_eos": Flag(),
            "max_tokens": Nullable(Integer()),
            "min_tokens": Integer(),
            "logprobs": Nullable(Integer()),
            "prompt_logprobs": Nullable(Integer()),
            "prompt_logprob_token_ids": Nullable(ListOf(ListOf(Integer()))),
            "prompt_logprob_start": Nullable(Integer()),
            "logprob_token_ids": Nullable(ListOf(Integer())),
            "flat_logprobs": Flag(),
            "detokenize": Flag(),
            "skip_special_tokens": Flag(),
            "spaces_between_special_tokens": Flag(),
            "include_stop_str_in_output": Flag(),
            "output_kind": OutputKind(),
            "stream_interval": Nullable(Integer()),
            "skip_clone": Flag(),
            "output_text_buffer_length": Integer(),
            "structured_outputs": STRUCTURED_OUTPUTS,
            "logit_bias": Nullable(MapOf(Number())),
            "allowed_token_ids": Nullable(ListOf(Integer())),
            "extra_args": Nullable(MapOf(Anything())),
            "bad_words": Nullable(ListOf(Text())),
            "skip_reading_prefix_cache": Nullable(Flag()),
            "thinking_token_budget": Nullable(Integer()),
            "repetition_detection": REPETITION_DETECTION,
            "routed_experts_prompt_start": Integer(),
            "trace_decode_token_ids": Nullable(ListOf(Integer())),
        },
        kind="dict_type",
        ignores_unknown=True,
    )

    def problems(self, value: Any, location: str) -> list[Problem]:
        found = self.inner.problems(value, location)
        if not found:
            return []
        message, context = "Input should be an instance of SamplingParams", {"class": "SamplingParams"}
        return [Problem("is_instance_of", location, message, value, context), *found]

    def schema(self) -> dict[str, Any]:
        return self.inner.schema()


_FEATURES = ("mm_hashes", "mm_placeholders")
GENERATE_FIELDS: dict[str, FieldType] = {
    "request_id": Text(),
    "token_ids": TokenIds(),
    "token_offsets": Nullable(ListOf(TupleOf((Integer(), Integer())))),
    "features": Nullable(Record(dict.fromkeys(_FEATURES, Anything()), _FEATURES, ignores_unknown=True)),
    "content_parts": Nullable(ListOf(MapOf(Anything()))),
    "sampling_params": SamplingParameters(),
    "model": Nullable(Text()),
    "reasoning_ended": Nullable(Flag()),
    "reasoning_parser_kwargs": Nullable(Record({})),
    "return_token_ids": Nullable(Flag()),
    "output_mode": OneOf(OUTPUT_MODES),
    "parse_context": Nullable(Record({})),
    "stream": Nullable(Flag()),
    "stream_options": Nullable(Record({"include_usage": Nullable(Flag()), "continuous_usage_stats": Nullable(Flag())})),
    "cache_salt": Nullable(Text(is_bounded=True)),
    "priority": Integer(SMALLEST_INT64, LARGEST_INT64),
    "kv_transfer_params": Nullable(MapOf(Anything())),
    "ec_transfer_params": Nullable(MapOf(Anything())),
}
_GENERATE = Record(GENERATE_FIELDS, required=("token_ids", "sampling_params"), ignores_unknown=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A parsed request. An empty `model` means the first served name."""

    model: str
    token_ids: list[int]
    sampling: SamplingParams
    logit_bias: dict[str, Any] | None
    structured_outputs: Mapping[str, Any] | None
    thinking_token_budget: int | None
    delivery: Delivery
    output_mode: str
    returns_prompt_ids: bool
    includes_reasoning: bool
    parse_context: Mapping[str, Any] | None
    """Context for parsing the answer: the chat to which it belongs may parse reasoning or calls. None for other
    text."""
    common: RequestMetadata
    stream_interval: int = 1


def parse_generate(body: dict[str, Any]) -> GenerateRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_bad_salt(body.get("cache_salt"))
    problems = _GENERATE.problems(body, "body")
    if problems:
        raise bad_fields(problems)
    given = body["sampling_params"]
    constraint = given.get("structured_outputs")
    if constraint is not None:
        check_one_constraint(constraint)
    budget = given.get("thinking_token_budget")
    refuse_bad_thinking_budget(None if budget is None else as_integer(budget))
    detokenizes = as_flag(given.get("detokenize", True))
    if given.get("stop") and not detokenizes:
        raise ApiError("stop strings are only supported when detokenize is True. Set detokenize=True to use stop.")
    output_mode = body.get("output_mode", "tokens")
    if output_mode != "tokens" and not detokenizes:
        reason = f"output_mode={output_mode!r} requires sampling_params.detokenize to be true"
        raise bad_fields(
            [Problem("value_error", "body", f"Value error, {reason}", body, {"error": ValueError(reason)})]
        )
    fields, sampling_fields = Fields(body), Fields(given)
    delivery = read_delivery(fields)
    if delivery.stream and output_mode == "derender":
        raise ApiError("output_mode='derender' does not support stream=true.")
    interval = sampling_fields.integer("stream_interval", 1)
    if interval is not None and interval < 1:
        raise bad_value(f"stream_interval must be at least 1, got {interval}.", "stream_interval", interval)
    max_tokens, num_logprobs = sampling_fields.integer("max_tokens"), sampling_fields.integer("logprobs")
    context = body.get("parse_context")
    return GenerateRequest(
        model=body.get("model") or "",
        token_ids=[as_integer(each) for each in body["token_ids"]],
        sampling=read_sampling(sampling_fields, max_tokens, "max_tokens", num_logprobs),
        logit_bias=given.get("logit_bias"),
        structured_outputs=constraint,
        thinking_token_budget=None if budget is None else as_integer(budget),
        delivery=delivery,
        output_mode=output_mode,
        returns_prompt_ids=fields.flag("return_token_ids"),
        includes_reasoning=(context or {}).get("include_reasoning") is not False,
        parse_context=context,
        common=read_request_metadata(fields),
        stream_interval=interval or 1,
    )


def check_prompt_length(num_tokens: int, max_model_len: int) -> None:
    """Raise ApiError, with this route's message, for a prompt that leaves no room for output."""
    if num_tokens > max_model_len:
        raise ApiError(f"Input length ({num_tokens}) exceeds model's maximum context length ({max_model_len}).")
    if num_tokens == max_model_len:
        raise ApiError(
            f"The decoder prompt (length {num_tokens}) plus the number of requested output tokens (at least 1) is "
            f"longer than the maximum model length of {max_model_len}. Make sure that `max_model_len` is no smaller "
            "than the number of text tokens (prompt + requested output tokens)."
        )
