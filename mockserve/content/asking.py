"""From the body of a request to the form its answer must have."""

from collections.abc import Mapping
from typing import Any

from mockserve.content.constraint import read_constraint
from mockserve.content.form import AnswerForm
from mockserve.protocol.messages import read_messages


def completion_form(body: Mapping[str, Any], prompt: str | None) -> AnswerForm:
    """The form of an answer to POST /v1/completions; `prompt` is None for token ids.

    Raises ApiError for a form that is none.
    """
    return AnswerForm(
        stop_token_ids=_token_ids(body.get("stop_token_ids")),
        constraint=read_constraint(body),
        asked=() if prompt is None else (prompt,),
    )


def chat_form(body: Mapping[str, Any], prompt: str, model_name: str) -> AnswerForm:
    """The form of an answer in a conversation; `prompt` is the whole of it as the template put it.

    Raises ApiError for a form that is none.
    """
    return AnswerForm(
        stop_token_ids=_token_ids(body.get("stop_token_ids")),
        constraint=read_constraint(body),
        asked=(_last_words(body, model_name), prompt),
    )


def _last_words(body: Mapping[str, Any], model_name: str) -> str:
    """What the user said last; what anyone said last if no user did."""
    messages = read_messages(body.get("messages") or [], model_name)
    return next((each.content for each in reversed(messages) if each.role == "user"), messages[-1].content)


def _token_ids(value: Any) -> tuple[int, ...]:
    return tuple(each for each in value if type(each) is int) if isinstance(value, list) else ()
