"""Fields of a request body that exclude or need each other, or that a server without the matching flags refuses."""

from typing import Any

from mockserve.protocol.errors import ApiError, Problem, bad_fields, bad_value

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
MAX_CACHE_SALT_CHARS = 128


def refuse_contradictions(body: dict[str, Any], stream: bool) -> None:
    """What chat and text completions both refuse before types are looked at. Raises ApiError."""
    if body.get("prompt_logprobs") is not None and stream:
        raise bad_value("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    salt = body.get("cache_salt")
    if salt == "":
        raise bad_value("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if isinstance(salt, str) and (len(salt) > MAX_CACHE_SALT_CHARS or any(each in salt for each in "@/\\\0")):
        message = (
            f"Parameter 'cache_salt' must be at most {MAX_CACHE_SALT_CHARS} characters "
            "and must not contain '@', '/', '\\\\', or NUL."
        )
        raise bad_value(message, "cache_salt")
    response_format = body.get("response_format")
    wants_schema = isinstance(response_format, dict) and response_format.get("type") == "json_schema"
    if wants_schema and not body["response_format"].get("json_schema"):
        message = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        raise bad_value(message, "response_format")
    constraints = body.get("structured_outputs")
    if isinstance(constraints, dict) and sum(constraints.get(each) is not None for each in CONSTRAINTS) > 1:
        raise ApiError("You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').")


def refuse_chat_contradictions(body: dict[str, Any]) -> None:
    """The same for the fields only chat has. Raises ApiError."""
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise bad_value("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    if body.get("add_generation_prompt", True) and body.get("continue_final_message"):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    _refuse_tool_contradictions(body)


def refuse_bad_effort(body: dict[str, Any]) -> None:
    """A `reasoning_effort` that is none. Raises ApiError."""
    effort = body.get("reasoning_effort")
    if effort is None or effort in REASONING_EFFORTS:
        return
    quoted = [repr(each) for each in REASONING_EFFORTS]
    expected = f"{', '.join(quoted[:-1])} or {quoted[-1]}"
    context = {"expected": expected}
    location = "body.reasoning_effort"
    raise bad_fields([Problem("literal_error", location, f"Input should be {expected}", effort, context)])


def refuse_unavailable(body: dict[str, Any]) -> None:
    """What needs a flag that the server does not have. Raises ApiError."""
    choice = body.get("tool_choice") or "auto"
    if body.get("tools") and choice == "auto":
        raise ApiError('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    if body.get("tools") and choice != "none":
        raise ApiError('tool_choice="required" requires --tool-call-parser to be set')
    if body.get("thinking_token_budget") is not None:
        raise ApiError(
            "thinking_token_budget is set but reasoning_config is not configured. "
            "Please set --reasoning-parser and/or --reasoning-config to use thinking_token_budget."
        )


def refuse_bad_bias(body: dict[str, Any], vocabulary_size: int) -> None:
    """A `logit_bias` for what is no token of the model. Raises ApiError."""
    bias = body.get("logit_bias")
    if not isinstance(bias, dict):
        return
    wrong = [key for key in bias if not key.lstrip("-").isdecimal()]
    if wrong:
        message = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {wrong}"
        raise bad_value(message, "logit_bias", wrong)
    unknown = [int(key) for key in bias if not 0 <= int(key) < vocabulary_size]
    if unknown:
        message = (
            f"token_id(s) {unknown} in logit_bias contain out-of-vocab token ids. Vocabulary size: {vocabulary_size}"
        )
        raise bad_value(message, "logit_bias", unknown)


def _refuse_tool_contradictions(body: dict[str, Any]) -> None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools == []:
        message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise bad_value(message, "tools")
    if choice not in (None, "none") and not tools:
        raise bad_value("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict) and isinstance(tools, list):
        wanted = _function_name(choice)
        if wanted not in [_function_name(tool) for tool in tools]:
            message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
            raise bad_value(message, "tool_choice")


def _function_name(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
