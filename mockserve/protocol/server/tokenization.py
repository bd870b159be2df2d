"""The bodies of POST /tokenize and /detokenize."""

from dataclasses import dataclass
from typing import Any

from mockserve.protocol.errors import ApiError, Problem, bad_fields
from mockserve.protocol.reading.body import Fields, integer_problem, list_problem

MAX_TOKEN_ID = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    """A text to tokenize, or a conversation. An empty `model` means the first served name."""

    model: str
    prompt: str | None
    messages: list[Any] | None
    add_special_tokens: bool
    add_generation_prompt: bool
    continue_final_message: bool
    returns_strings: bool


def parse_tokenize(body: dict[str, Any]) -> TokenizeRequest:
    """A conversation if the body describes one, else a text. Raises ApiError when it is neither."""
    _refuse_contradiction(body)
    chat = Fields(body)
    conversation = _read_conversation(chat)
    if not chat.problems:
        return conversation
    text = Fields(body)
    prompt = TokenizeRequest(
        model=text.text("model") or "",
        prompt=text.required_text("prompt"),
        messages=None,
        add_special_tokens=text.flag("add_special_tokens", True),
        add_generation_prompt=True,
        continue_final_message=False,
        returns_strings=text.flag("return_token_strs"),
    )
    if text.problems:
        raise bad_fields(text.problems + chat.problems)
    return prompt


def parse_detokenize(body: dict[str, Any]) -> tuple[str, list[int]]:
    """The model asked for and the token ids. Raises ApiError for anything else."""
    fields = Fields(body)
    model = fields.text("model") or ""
    tokens = read_token_ids(fields, "tokens")
    fields.check()
    return model, tokens


def read_token_ids(fields: Fields, name: str) -> list[int]:
    """A required list of token ids; problems are left in `fields`."""
    given = fields.require(name)
    if name not in fields.body:
        return []
    not_a_list = list_problem(given, f"body.{name}")
    problems = [not_a_list] if not_a_list else [_id_problem(each, f"body.{name}.{i}") for i, each in enumerate(given)]
    found = [problem for problem in problems if problem is not None]
    fields.problems += found
    return [] if found else [int(each) for each in given]


def _id_problem(value: Any, location: str) -> Problem | None:
    problem = integer_problem(value, location)
    if problem is not None:
        return problem
    if int(value) < 0:
        message = "Input should be greater than or equal to 0"
        return Problem("greater_than_equal", location, message, value, {"ge": 0})
    if int(value) > MAX_TOKEN_ID:
        message = f"Input should be less than or equal to {MAX_TOKEN_ID}"
        return Problem("less_than_equal", location, message, value, {"le": MAX_TOKEN_ID})
    return None


def _read_conversation(fields: Fields) -> TokenizeRequest:
    model = fields.text("model") or ""
    messages = fields.require("messages")
    if "messages" in fields.body:
        not_a_list = list_problem(messages, "body.messages")
        fields.problems += [not_a_list] if not_a_list else []
    generation = fields.flag("add_generation_prompt", True)
    returns_strings = fields.flag("return_token_strs")
    continues = fields.flag("continue_final_message")
    special = fields.flag("add_special_tokens")
    fields.text("chat_template")
    _check_tools(fields)
    return TokenizeRequest(
        model=model,
        prompt=None,
        messages=messages,
        add_special_tokens=special,
        add_generation_prompt=generation,
        continue_final_message=continues,
        returns_strings=returns_strings,
    )


def _check_tools(fields: Fields) -> None:
    tools = fields.body.get("tools")
    if tools is None:
        return
    not_a_list = list_problem(tools, "body.tools")
    if not_a_list is not None:
        fields.problems.append(not_a_list)
        return
    for index, tool in enumerate(tools):
        location = f"body.tools.{index}"
        if not isinstance(tool, dict):
            message = "Input should be a valid dictionary or object to extract fields from"
            fields.problems.append(Problem("model_attributes_type", location, message, tool))
        elif "function" not in tool:
            fields.problems.append(Problem("missing", f"{location}.function", "Field required", tool))


def _refuse_contradiction(body: dict[str, Any]) -> None:
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise ApiError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
