"""A valid body with many fields for every route: what mutations start from."""

from dataclasses import dataclass
from typing import Any

MODEL = "m"
SAMPLING: dict[str, Any] = {
    "max_tokens": 4, "n": 1, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "stop": ["zq"],
    "frequency_penalty": 0.1, "presence_penalty": 0.1, "repetition_penalty": 1.1, "logit_bias": {"5": 1.5},
    "stop_token_ids": [9], "ignore_eos": True, "min_tokens": 1, "skip_special_tokens": True, "bad_words": ["bad"],
    "allowed_token_ids": [5, 6, 7], "stream": False, "user": "u", "priority": 0, "request_id": "r",
    "truncate_prompt_tokens": 50, "cache_salt": "salt", "return_token_ids": True, "length_penalty": 1.0,
    "include_stop_str_in_output": False, "spaces_between_special_tokens": True, "use_beam_search": False,
    "repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 3}, "vllm_xargs": {"a": 1},
    "stream_options": None, "prompt_logprobs": None, "logprob_token_ids": None, "kv_transfer_params": None,
    "structured_outputs": None, "thinking_token_budget": None,
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"type": "array", "items": {"enum": ["x", 2, None]}}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}}
CONVERSATION = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": [{"type": "text", "text": "hello"}], "name": "n"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "content": "3", "tool_call_id": "c1"},
    {"role": "user", "content": "go on"},
]
CHAT = {"model": MODEL, "messages": CONVERSATION, **SAMPLING, "logprobs": True, "top_logprobs": 1, "echo": False}
CHAT_OPTIONS = {
    "chat_template_kwargs": {"a": 1}, "add_generation_prompt": True, "continue_final_message": False, "documents": None,
    "reasoning_effort": "low", "include_reasoning": True, "parallel_tool_calls": True, "response_format": None,
    "chat_template": None, "add_special_tokens": False, "mm_processor_kwargs": None, "max_completion_tokens": 4,
}  # fmt: skip
COMPLETION = {"model": MODEL, "prompt": ["hello there", "and here"], **SAMPLING, "logprobs": 1, "echo": False}
RESPONSE = {
    "model": MODEL, "max_output_tokens": 16, "instructions": "be short", "temperature": 0.5, "top_p": 0.9,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "x", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "hm"}], "content": None},
        {"type": "message", "role": "assistant", "id": "m1", "status": "completed",
         "content": [{"type": "output_text", "text": "yes", "annotations": []}]},
    ],
    "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "metadata": {"a": "b"}, "store": False,
    "truncation": "disabled", "top_logprobs": 0, "include": [], "parallel_tool_calls": True, "stream": False,
    "background": False, "previous_response_id": None, "service_tier": "auto", "user": "u", "max_tool_calls": 3,
    "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True, "description": "d"}],
    "tool_choice": "none", "request_id": "resp_1", "priority": 0, "cache_salt": "salt",
}  # fmt: skip
MESSAGES = {
    "model": MODEL, "max_tokens": 4, "system": [{"type": "text", "text": "be short"}], "temperature": 0.5, "top_k": 5,
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "yes"},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "3", "is_error": False}]},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}], "tool_choice": {"type": "none"},
    "stop_sequences": ["zq"], "stream": False, "metadata": {"user_id": "u"}, "top_p": 0.9,
    "thinking": {"type": "disabled"},
}  # fmt: skip
GENERATE = {
    "model": MODEL, "token_ids": [5, 6, 7], "stream": False, "request_id": "g", "cache_salt": "s", "priority": 0,
    "sampling_params": {"max_tokens": 3, "temperature": 0.5, "logprobs": 1, "stop_token_ids": [9], "n": 1, "seed": 1,
                        "top_k": 2, "top_p": 0.5, "min_tokens": 1, "bad_words": ["x"], "detokenize": True},
    "features": None, "kv_transfer_params": None, "stream_options": None,
}  # fmt: skip
GENERATED = {
    "request_id": "g", "prompt_logprobs": None, "kv_transfer_params": None,
    "choices": [{"index": 0, "logprobs": None, "finish_reason": "stop", "token_ids": [5, 6, 7]}],
}  # fmt: skip
POOLED: dict[str, Any] = {
    "model": MODEL, "truncate_prompt_tokens": 50, "user": "u", "priority": 0, "add_special_tokens": True,
    "request_id": "p", "cache_salt": "s",
}  # fmt: skip
CONVERTING = {"encoding_format": "float", "embed_dtype": "float32", "endianness": "native"}


@dataclass(frozen=True, slots=True)
class ValidRequest:
    """One route with a body that it takes."""

    method: str
    path: str
    body: Any = None
    disturbs: bool = False


def _gets(*paths: str) -> tuple[ValidRequest, ...]:
    return tuple(ValidRequest("GET", path) for path in paths)


def _posts(path: str, *bodies: Any, disturbs: bool = False) -> tuple[ValidRequest, ...]:
    return tuple(ValidRequest("POST", path, body, disturbs) for body in bodies)


_TALK: dict[str, Any] = {"model": MODEL, "messages": CONVERSATION, "max_tokens": 4}
_WITH_USAGE = {"stream_options": {"include_usage": True}}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
_DERENDERED: dict[str, Any] = {"model": MODEL, "prompt_token_ids": [5]}
_IN_PARTS = {"stream": True, "generate_chunk": GENERATED, "stream_state": None}
EVERYWHERE = (
    *_posts("/tokenize", {"model": MODEL, "prompt": "hello", "add_special_tokens": True, "return_token_strs": True},
            {"model": MODEL, "messages": CONVERSATION, "add_generation_prompt": True, "continue_final_message": False,
             "tools": [TOOL], "chat_template_kwargs": {}}),
    *_posts("/detokenize", {"model": MODEL, "tokens": [5, 6, 7]}),
    *_posts("/ping", {}),
    *_gets("/v1/models", "/metrics", "/load", "/version", "/openapi.json", "/kv_event_sources"),
)  # fmt: skip
GENERATING = (
    *_posts("/v1/chat/completions", CHAT | CHAT_OPTIONS, _TALK | {"max_tokens": 16, "response_format": _FORMAT},
            _TALK | {"tools": [TOOL], "tool_choice": "auto", "stream": True, **_WITH_USAGE}),
    *_posts("/v1/completions", COMPLETION, {"model": MODEL, "prompt": "hi", "max_tokens": 8, "stream": True,
                                            "structured_outputs": {"json": SCHEMA}}),
    *_posts("/v1/chat/completions/batch", _TALK | {"messages": [CONVERSATION, CONVERSATION], "temperature": 0.5}),
    *_posts("/v1/responses", RESPONSE),
    *_gets("/v1/responses/resp_1"),
    *_posts("/v1/responses/resp_1/cancel", {}),
    *_posts("/v1/messages", MESSAGES, {**MESSAGES, "stream": True}),
    *_posts("/v1/messages/count_tokens", {each: MESSAGES[each] for each in MESSAGES
                                          if each not in ("max_tokens", "stream")}),
    *_posts("/invocations", CHAT, COMPLETION),
    *_posts("/scale_elastic_ep", {"new_data_parallel_size": 1, "drain_timeout": 10}),
    *_posts("/is_scaling_elastic_ep", {}),
)  # fmt: skip
SCALING_OUT = (
    *_posts("/v1/chat/completions/render", CHAT),
    *_posts("/v1/completions/render", COMPLETION),
    *_posts("/v1/messages/render", MESSAGES),
    *_posts("/v1/responses/render", RESPONSE),
    *_posts("/inference/v1/generate", GENERATE),
    *_posts("/v1/chat/completions/derender", _DERENDERED | _IN_PARTS | {"chat_request": CHAT},
            _DERENDERED | {"generate_response": GENERATED, "prompt_tokens": 3, "chat_request": CHAT}),
    *_posts("/v1/completions/derender", _DERENDERED | _IN_PARTS | {"completion_request": COMPLETION},
            {"model": MODEL, "generate_responses": [GENERATED], "prompt_tokens": [3], "prompt_token_ids": [[5]],
             "completion_request": COMPLETION}),
    *_posts("/inference/v1/abort_requests", {"request_ids": ["x"]}),
)  # fmt: skip
DEVELOPING = (
    *_posts("/abort_requests", {"request_ids": ["x"]}, disturbs=True),
    *(request for path in (
        "/pause?mode=keep&clear_cache=true", "/resume", "/sleep?level=1&mode=keep", "/wake_up?tags=weights",
        "/release_kv_cache_memory", "/reset_prefix_cache?reset_running_requests=false&reset_external=true",
    ) for request in _posts(path, {}, disturbs=True)),
    *_posts("/reset_mm_cache", {}),
    *_posts("/reset_encoder_cache", {}),
    *_gets("/is_paused", "/is_sleeping", "/server_info?config_format=json", "/get_world_size?include_dp=true"),
    *_posts("/update_weight_version", {"new_version": "w2"}),
    *_posts("/collective_rpc", {"method": "f", "args": [1], "kwargs": {"a": 1}, "timeout": 3}),
)  # fmt: skip
FAULTY = (
    *_gets("/blis/faults"),
    *_posts("/blis/faults", {"rates": {"rate_limit": 0.01}, "retry_after_s": 2}, {"engine": {"slow": False}},
            disturbs=True),
    ValidRequest("DELETE", "/blis/faults", disturbs=True),
)  # fmt: skip
ADAPTING = (
    *_posts("/v1/load_lora_adapter", {"lora_name": "ad1", "lora_path": "./ad1", "load_inplace": True}),
    *_posts("/v1/unload_lora_adapter", {"lora_name": "ad1", "lora_int_id": 1}),
    *_posts("/v1/completions", {"model": "ad0", "prompt": "hi", "max_tokens": 2}),
)
CONTROLLING = (
    *_gets("/blis/instances"),
    *_posts("/blis/instances", {"startup_s": 1.5}, disturbs=True),
    *_posts("/blis/instances/99/drain", {}, disturbs=True),
    ValidRequest("DELETE", "/blis/instances/99", disturbs=True),
)
URGENT = (
    *_posts("/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": 8, "priority": 9, "stream": True,
                                "vllm_xargs": {"slo_e2e_ms": 60}}),
    *_posts("/v1/chat/completions", _TALK | {"priority": -4, "vllm_xargs": {"slo_e2e_ms": 0.5}}),
)  # fmt: skip
EMBEDDING = (
    *_posts("/v1/embeddings", {**POOLED, **CONVERTING, "input": ["a", "b c"], "dimensions": None},
            {**POOLED, "messages": CONVERSATION, "add_generation_prompt": False}),
    *_posts("/v2/embed", {"model": MODEL, "texts": ["a b"], "embedding_types": ["float"], "input_type": "search_query",
                          "truncate": "END", "max_tokens": 20},
            {"model": MODEL, "inputs": [{"content": [{"type": "text", "text": "a"}]}]}),
)  # fmt: skip
POOLING = (
    *_posts("/pooling", {**POOLED, **CONVERTING, "input": [[5, 6], [7]], "task": None}),
    *_posts("/invocations", {**POOLED, "input": "a"}),
)
CLASSIFYING = _posts("/classify", {**POOLED, "input": ["a", "b"], "use_activation": True})
SCORED = {**POOLED, "max_tokens_per_query": 0, "max_tokens_per_doc": 9, "use_activation": True}
SCORING = (
    *_posts("/score", {**SCORED, "text_1": "a", "text_2": ["b", "c"]}),
    *_posts("/v1/score", {**SCORED, "queries": ["a", "b"], "documents": ["b", "c"]}),
    *_posts("/rerank", {**SCORED, "query": "a", "documents": ["b", "c d"], "top_n": 1}),
    *_posts("/v2/rerank", {**SCORED, "query": {"content": [{"type": "text", "text": "a"}]}, "documents": ["b"]}),
    *_posts("/invocations", {**SCORED, "query": "a", "documents": ["b"]}),
)
