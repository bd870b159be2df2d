"""Replies of the render routes: a request in the format of POST /inference/v1/generate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.completions.messages import tool_definitions
from mockserve.protocol.reading.types import as_flag
from mockserve.protocol.sampling import SamplingParams

DEFAULT_MAX_TOKENS = 16
WHOLE_REPLY, DELTAS = 2, 1
"""Numbers of vLLM's `RequestOutputKind`."""


SKIPS_SPECIAL_TOKENS = frozenset(
    {
        *("deepseek_v3", "deepseek_v31", "dots", "ernie45", "granite-20b-fc", "hunyuan_a13b", "hy_v3", "hy_v4"),
        *("k2_horizon", "llama3_json", "llama4_json", "llama4_pythonic", "minimax_m3", "olmo3", "phi4_mini_json"),
        *("pythonic", "xlam"),
    }
)
"""Parsers of calls for which a rendered request skips special tokens, as other requests do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedRequest:
    """One rendered prompt with its request. `parse_context` is the information for parsing a chat's answer."""

    request_id: str
    token_ids: Sequence[int]
    token_offsets: Sequence[tuple[int, int]] | None
    sampling: dict[str, Any]
    body: Mapping[str, Any]
    streams: bool
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: Mapping[str, Any] | None = None
    parse_context: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the body, with fields in vLLM's order."""
        body = self.body
        return {
            "request_id": self.request_id,
            "token_ids": list(self.token_ids),
            "token_offsets": None if self.token_offsets is None else [list(each) for each in self.token_offsets],
            "features": None,
            "content_parts": None,
            "sampling_params": self.sampling,
            "model": body.get("model"),
            "reasoning_ended": self.reasoning_ended,
            "reasoning_parser_kwargs": self.reasoning_parser_kwargs,
            "return_token_ids": _flag(body.get("return_token_ids")),
            "output_mode": "tokens",
            "parse_context": self.parse_context,
            "stream": self.streams,
            "stream_options": _stream_options(body) if self.streams else None,
            "cache_salt": body.get("cache_salt"),
            "priority": body.get("priority", 0),
            "kv_transfer_params": body.get("kv_transfer_params"),
            "ec_transfer_params": body.get("ec_transfer_params"),
        }


def sampling_object(
    sampling: SamplingParams, body: Mapping[str, Any], max_tokens: int, streams: bool, parses_calls: bool = False
) -> dict[str, Any]:
    """Return vLLM's object of sampling parameters, without defaults, in vLLM's order.

    Special tokens are not skipped when calls are to be parsed, since they may mark calls.
    """
    needs_prompt = sampling.num_prompt_logprobs is not None
    chosen = list(sampling.logprob_token_ids or ())
    greedy, extra_arguments = sampling.is_greedy, body.get("vllm_xargs")
    buffer_chars = 0 if sampling.include_stop_str_in_output else max(map(len, sampling.stop), default=1) - 1
    rows: tuple[tuple[str, Any, bool], ...] = (
        ("n", sampling.n, sampling.n != 1),
        ("presence_penalty", sampling.presence_penalty, True),
        ("frequency_penalty", sampling.frequency_penalty, True),
        ("repetition_penalty", sampling.repetition_penalty, True),
        ("temperature", sampling.temperature, True),
        _given(body, "watermarking"),
        ("top_p", sampling.top_p, not greedy),
        ("top_k", sampling.top_k, sampling.top_k != 0 and not greedy),
        ("min_p", sampling.min_p, not greedy),
        ("seed", sampling.seed, sampling.seed is not None),
        ("stop", list(sampling.stop), True),
        ("stop_token_ids", list(sampling.stop_token_ids), True),
        ("ignore_eos", True, sampling.ignore_eos),
        ("max_tokens", max_tokens, max_tokens != DEFAULT_MAX_TOKENS),
        ("min_tokens", sampling.min_tokens, sampling.min_tokens != 0),
        ("logprobs", sampling.num_logprobs, sampling.num_logprobs is not None and not chosen),
        ("prompt_logprobs", sampling.num_prompt_logprobs, needs_prompt),
        ("logprob_token_ids", chosen, bool(chosen)),
        ("skip_special_tokens", False, parses_calls or not sampling.skip_special_tokens),
        ("spaces_between_special_tokens", False, body.get("spaces_between_special_tokens") is False),
        ("include_stop_str_in_output", True, sampling.include_stop_str_in_output),
        ("output_kind", DELTAS if streams else WHOLE_REPLY, True),
        _given(body, "stream_interval"),
        ("skip_clone", True, True),
        ("output_text_buffer_length", buffer_chars, buffer_chars != 0),
        ("structured_outputs", structured_outputs(body), structured_outputs(body) is not None),
        ("logit_bias", _biases(body), bool(body.get("logit_bias"))),
        ("allowed_token_ids", list(sampling.allowed_token_ids or ()), sampling.allowed_token_ids is not None),
        ("extra_args", extra_arguments, extra_arguments is not None),
        ("bad_words", list(sampling.bad_words), True),
        ("skip_reading_prefix_cache", needs_prompt, True),
        _given(body, "thinking_token_budget"),
    )
    return {name: value for name, value, is_shown in rows if is_shown}


def _given(body: Mapping[str, Any], name: str) -> tuple[str, Any, bool]:
    """Return the row of a field that is copied from the request."""
    return name, body.get(name), body.get(name) is not None


def structured_outputs(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the constraint of a request's answer as one object with all its fields."""
    given = dict(body.get("structured_outputs") or {})
    requested = body.get("response_format") or {}
    if requested.get("type") == "json_object":
        given["json_object"] = True
    elif requested.get("type") == "json_schema":
        given["json"] = (requested.get("json_schema") or {}).get("schema")
    if not given:
        return None
    nothing = dict.fromkeys(("json", "regex", "choice", "grammar", "json_object"))
    switches = {"disable_any_whitespace": False, "disable_additional_properties": False}
    rest = {"whitespace_pattern": None, "structural_tag": None, "_backend": None, "_backend_was_auto": False}
    return {name: given.get(name, default) for name, default in {**nothing, **switches, **rest}.items()}


def parse_context(body: Mapping[str, Any], template_arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the information for parsing a chat's answer: its tools, and the arguments of the template for its
    prompt."""
    tools = body.get("tools")
    return {
        "tools": None if tools is None else tool_definitions(tools),
        "tool_choice": _shown_choice(body.get("tool_choice") or ("auto" if tools else "none")),
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "include_reasoning": body.get("include_reasoning", True),
        "chat_template_kwargs": dict(template_arguments),
        "history_tool_call_cnt": sum(len(each.get("tool_calls") or ()) for each in body["messages"]),
    }


def _shown_choice(choice: Any) -> Any:
    return {"function": choice.get("function"), "type": "function", **choice} if isinstance(choice, Mapping) else choice


def _stream_options(body: Mapping[str, Any]) -> dict[str, Any] | None:
    options = body.get("stream_options")
    return None if options is None else {"include_usage": True, "continuous_usage_stats": False, **options}


def _biases(body: Mapping[str, Any]) -> dict[str, float]:
    return {str(key): float(value) for key, value in (body.get("logit_bias") or {}).items()}


def _flag(value: Any) -> bool | None:
    return None if value is None else as_flag(value)
