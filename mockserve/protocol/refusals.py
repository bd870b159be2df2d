"""Refusals independent of the types of fields: fields that exclude or require each other, SageMaker's adapters."""

from collections.abc import Mapping
from typing import Any

from mockserve.protocol.errors import ApiError, bad_value, mark_late, not_an_object, unhandled_error
from mockserve.protocol.reading.types import FieldType, Flag, Text

CONSTRAINTS = ("json", "regex", "choice")
ALL_CONSTRAINTS = (*CONSTRAINTS, "grammar", "json_object", "structural_tag")
MAX_CACHE_SALT_CHARS = 128
MAX_PROMPTS = 1024


def refuse_chat_contradictions(body: dict[str, Any]) -> None:
    """Check a chat body in vLLM's order. Raises ApiError."""
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    _refuse_tool_contradictions(body)
    _refuse_several_constraints(body, excludes_tools=True)
    _refuse_chosen_logprobs(
        body, requests_logprobs=bool(body.get("logprobs")), otherwise="`logprobs` must be set to true"
    )
    _refuse_bad_logprobs(body, "top_logprobs")
    top = body.get("top_logprobs")
    if top and (top > 0 or top == -1) and not body.get("logprobs"):
        raise bad_value("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    refuse_stream_options(body)
    _refuse_bad_format(body)
    refuse_bad_salt(body.get("cache_salt"))
    refuse_bad_thinking_budget(body.get("thinking_token_budget"))


def refuse_completion_contradictions(body: dict[str, Any]) -> None:
    """Check the body of a text completion in vLLM's order. Raises ApiError."""
    _refuse_bad_prompt(body)
    refuse_stream_options(body)
    if body.get("use_beam_search") and body.get("echo") and body.get("logprobs") is not None:
        message = (
            "`echo` with `logprobs` is not supported with beam search "
            "because beam search does not compute prompt logprobs."
        )
        raise bad_value(message, "echo")
    requests_logprobs = body.get("logprobs") is not None
    _refuse_chosen_logprobs(body, requests_logprobs, otherwise="`logprobs` must be set")
    _refuse_bad_logprobs(body, "logprobs")
    _refuse_several_constraints(body, excludes_tools=False)
    _refuse_bad_format(body)
    refuse_bad_salt(body.get("cache_salt"))
    refuse_bad_thinking_budget(body.get("thinking_token_budget"))


def refuse_stream_options(body: dict[str, Any]) -> None:
    """Raise ApiError for stream options without `stream`."""
    if body.get("stream_options") and not body.get("stream"):
        raise bad_value("Stream options can only be defined when `stream=True`.", "stream_options")


def _refuse_bad_prompt(body: dict[str, Any]) -> None:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > MAX_PROMPTS and not all(isinstance(each, int) for each in prompt):
        message = (
            f"prompt list length {len(prompt)} exceeds the maximum allowed count of {MAX_PROMPTS}. "
            "To increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable."
        )
        raise bad_value(message, "prompt")
    if prompt in (None, "") and body.get("prompt_embeds") in (None, []):
        raise bad_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


def _refuse_chosen_logprobs(body: dict[str, Any], requests_logprobs: bool, otherwise: str) -> None:
    if not body.get("logprob_token_ids"):
        return
    if body.get("use_beam_search"):
        raise bad_value("`logprob_token_ids` is not supported with beam search.", "logprob_token_ids")
    if body.get("echo") and body.get("max_tokens") == 0:
        message = (
            "`logprob_token_ids` is not supported when `echo=True` and `max_tokens=0` "
            "because no output tokens are generated."
        )
        raise bad_value(message, "logprob_token_ids")
    if not requests_logprobs:
        raise bad_value(f"when using `logprob_token_ids`, {otherwise}.", "logprob_token_ids")


def _refuse_bad_logprobs(body: dict[str, Any], name: str) -> None:
    for each in ("prompt_logprobs", name):
        value = body.get(each)
        if value is not None and not isinstance(value, int | float):
            raise bad_value(f"`{each}` must be an integer.", each, value)
    requested = body.get("prompt_logprobs")
    if requested is not None and body.get("stream") and (requested > 0 or requested == -1):
        raise bad_value("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    for each in ("prompt_logprobs", name):
        value = body.get(each)
        if value is not None and value < 0 and value != -1:
            raise bad_value(f"`{each}` must be a positive value or -1.", each, value)


def _refuse_several_constraints(body: dict[str, Any], excludes_tools: bool) -> None:
    constraints = body.get("structured_outputs")
    if constraints is None:
        return
    if not isinstance(constraints, dict):
        raise not_an_object(constraints)
    count = sum(constraints.get(each) is not None for each in CONSTRAINTS)
    if count > 1:
        message = "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
        raise ApiError(message) if excludes_tools else bad_value(message, "structured_outputs")
    if excludes_tools and count and body.get("tool_choice", "none") not in ("none", "auto", "required"):
        raise ApiError("You can only either use constraints for structured outputs or tools, not both.")
    check_one_constraint(constraints)


def check_one_constraint(constraints: dict[str, Any]) -> None:
    """Raise ApiError unless `structured_outputs` has exactly one constraint."""
    count = sum(constraints.get(each) is not None for each in ALL_CONSTRAINTS)
    if count != 1:
        raise _several_constraints(constraints) if count else missing_constraint_error(constraints)


def _several_constraints(constraints: dict[str, Any]) -> ApiError:
    given = _all_constraints(constraints)
    return ApiError(f"You can only use one kind of structured outputs constraint but multiple are specified: {given}")


def missing_constraint_error(constraints: dict[str, Any]) -> ApiError:
    """Return the error of `structured_outputs` without a constraint."""
    given = _all_constraints(constraints)
    return ApiError(f"You must use one kind of structured outputs constraint but none are specified: {given}")


def _all_constraints(constraints: dict[str, Any]) -> dict[str, Any]:
    """Return the given constraints among all that exist, as vLLM shows them."""
    given: dict[str, Any] = dict.fromkeys((*CONSTRAINTS, "grammar", "json_object"))
    given |= {"disable_any_whitespace": False, "disable_additional_properties": False}
    given |= {"whitespace_pattern": None, "structural_tag": None, "_backend": None, "_backend_was_auto": False}
    return given | {name: value for name, value in constraints.items() if name in given}


def _refuse_bad_format(body: dict[str, Any]) -> None:
    requested = body.get("response_format")
    if not isinstance(requested, dict):
        return
    if requested.get("type") == "json_schema" and requested.get("json_schema") is None:
        message = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        raise bad_value(message, "response_format")
    refuse_bad_tag(body)


def refuse_bad_tag(body: dict[str, Any]) -> None:
    """Raise ApiError for a `response_format` that is a structural tag without its fields."""
    requested = body.get("response_format")
    if not isinstance(requested, dict) or requested.get("type") != "structural_tag":
        return
    if not ("format" in requested or "structures" in requested):
        raise bad_value("Invalid response_format structural_tag specification.", "response_format")


def refuse_bad_salt(salt: Any) -> None:
    """Raise ApiError for a `cache_salt` that vLLM refuses."""
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise bad_value("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(salt) > MAX_CACHE_SALT_CHARS or any(each in salt for each in "@/\\\0"):
        message = (
            f"Parameter 'cache_salt' must be at most {MAX_CACHE_SALT_CHARS} characters "
            "and must not contain '@', '/', '\\\\', or NUL."
        )
        raise bad_value(message, "cache_salt")


def refuse_bad_thinking_budget(budget: Any) -> None:
    """Raise ApiError for a budget that is neither a number of tokens nor -1."""
    if budget is not None and (type(budget) is not int or budget < -1):
        message = "`thinking_token_budget` must be a non-negative integer or -1 for unlimited."
        raise bad_value(message, "thinking_token_budget", budget)


def _refuse_tool_contradictions(body: dict[str, Any]) -> None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools == []:
        message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise bad_value(message, "tools")
    if choice is None or choice == "none":
        return
    if tools is None:
        raise bad_value("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if not isinstance(choice, dict) and choice not in ("auto", "required"):
        message = (
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.'
        )
        raise bad_value(message, "tool_choice")
    if isinstance(choice, dict):
        _refuse_unknown_tool(choice, tools)


def _refuse_unknown_tool(choice: dict[str, Any], tools: Any) -> None:
    usage = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
    function = choice.get("function")
    if not isinstance(function, dict):
        message = f"Invalid value for `function`: `{function}` in `tool_choice`! {usage}"
        raise bad_value(message, "tool_choice.function")
    if "name" not in function:
        message = f"Expected field `name` in `function` in `tool_choice`! {usage}"
        raise bad_value(message, "tool_choice.function.name")
    if not isinstance(tools, list | str | dict):
        raise ApiError(f"{type(tools).__name__!r} object is not iterable")
    name = function["name"]
    if not isinstance(name, str) or not name:
        message = f"Invalid `name` in `function`: `{name}` in `tool_choice`! {usage}"
        raise bad_value(message, "tool_choice.function.name")
    if not _offers(tools, name):
        message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
        raise bad_value(message, "tool_choice")


def _offers(tools: Any, name: str) -> bool:
    """Whether a function has the name `name`. Raises ApiError, as vLLM does, if an earlier tool has no name."""
    try:
        return any(tool["function"]["name"] == name for tool in tools)
    except KeyError as error:
        raise unhandled_error(str(error)) from None
    except TypeError as error:
        raise ApiError(str(error)) from None


def _function_name(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def refuse_unavailable(body: dict[str, Any], calls_tools: bool) -> None:
    """Raise ApiError for a request that requires a flag which the server was started without."""
    refuse_media_arguments(body)
    choice = "none" if calls_tools else body.get("tool_choice", "auto")
    if body.get("tools") and choice == "auto":
        raise ApiError('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    if body.get("tools") and choice not in (None, "none"):
        named = f'function "{_function_name(choice)}"' if isinstance(choice, dict) else f'"{choice}"'
        raise ApiError(f"tool_choice={named} requires --tool-call-parser to be set")


def refuse_media_arguments(body: dict[str, Any]) -> None:
    """Raise ApiError for arguments of media loading and processing, which servers do not allow by default."""
    for name, effect in (
        ("mm_processor_kwargs", "multimodal preprocessing resource usage"),
        ("media_io_kwargs", "multimodal media loading resource usage"),
    ):
        if body.get(name):
            message = (
                f"Per-request {name} are disabled by default because they can change {effect}. "
                "Start the server with --trust-request-mm-kwargs only when clients are trusted."
            )
            raise bad_value(message, name)


def refuse_thinking_budget(budget: Any, reasons: bool) -> None:
    """Raise ApiError for a reasoning budget on a server without a reasoning parser."""
    if not reasons and budget not in (None, -1):
        message = (
            "thinking_token_budget is set but reasoning_config is not configured. "
            "Please set --reasoning-parser and/or --reasoning-config to use thinking_token_budget."
        )
        raise mark_late(ApiError(message))


REQUEST_CLASS = "SageMakerRegisterLoRAAdapterRequest"
_TYPES: Mapping[str, FieldType] = {"name": Text(), "src": Text(), "preload": Flag(), "pin": Flag()}
_REQUIRED = ("name", "src")


def registration_problems(given: Any, shown: Any) -> list[dict[str, Any]]:
    """Return the problems of `given`; errors about missing fields show `shown`."""
    if not isinstance(given, dict):
        message = f"Input should be a valid dictionary or instance of {REQUEST_CLASS}"
        return [{"type": "model_type", "loc": [], "msg": message, "input": given, "ctx": {"class_name": REQUEST_CLASS}}]
    found: list[dict[str, Any]] = []
    for name, kind in _TYPES.items():
        if name not in given:
            if name in _REQUIRED:
                found.append({"type": "missing", "loc": [name], "msg": "Field required", "input": shown})
            continue
        value = given[name]
        if name in _REQUIRED and value == "":
            reason = f"The parameter {name} cannot be an empty string"
            problem = {"type": "value_error", "loc": [name], "msg": f"Value error, {reason}", "input": value}
            found.append({**problem, "ctx": {"error": reason}})
            continue
        problems = kind.problems(value, name)
        found += [{"type": each.kind, "loc": [name], "msg": each.message, "input": value} for each in problems]
    return found
