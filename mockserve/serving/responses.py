"""Planning of replies to requests of the Responses API, in terms of chat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mockserve.generation.tool_calls import ToolConstraint, shown_tools
from mockserve.metrics.counters import RESPONSES
from mockserve.protocol.bodies import Choice, Usage
from mockserve.protocol.completions import ChatRequest, parse_chat
from mockserve.protocol.errors import ApiError
from mockserve.protocol.responses import (
    ResponseObject,
    ResponseRequest,
    chat_body,
    chat_messages,
    output_items,
    raw_message,
)
from mockserve.realtime.driver import unix_time
from mockserve.realtime.in_flight import new_id
from mockserve.reply.reply import ReplyJob
from mockserve.serving.chat import conversation_ids, forced_calls_schema, media_in, plan_chat, tool_constraint_of_chat
from mockserve.serving.model import ServedModel
from mockserve.serving.response_store import ResponseStore

OUTPUT_PARAM = "max_output_tokens"


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """A planned response: its object, the job for the engine, and the conversation that it continues."""

    response: ResponseObject
    job: ReplyJob
    messages: Sequence[dict[str, Any]]
    has_parser: bool
    raw: tuple[Any, Any] | None

    def whole(self, choice: Choice, usage: Usage, metrics: dict[str, Any] | None) -> dict[str, Any]:
        """Return the complete response."""
        is_cut = choice.ending.finish_reason == "length"
        items = output_items(choice.content, choice.logprobs, is_cut, self.has_parser, new_id, self.response.tool_names)
        return self.response.body("incomplete" if is_cut else "completed", items, usage, metrics, self.raw)


class RefusedStreamError(Exception):
    """The engine refuses a streamed response: vLLM's stream has begun by then, and is cut."""

    def __init__(self, response: ResponseObject) -> None:
        super().__init__(response.id)
        self.response = response


async def plan_response(
    model: ServedModel, responses: ResponseStore, api_request: ResponseRequest, priority: int | None
) -> ResponsePlan:
    """Plan a response. Raises ApiError for refusals that depend on the model.

    Raises RefusedStreamError for refusals of the engine in a stream.
    """
    adapter = model.check_model(api_request.model)
    messages = conversation(responses, api_request)
    body = chat_body(api_request, messages)
    chat = parse_chat(body, is_typed=False)
    chat = chat._replace(sampling=model.planner.defaults.applied(chat.sampling, body))
    if chat.sampling.max_tokens_param == "max_completion_tokens":
        chat = chat._replace(sampling=replace(chat.sampling, max_tokens_param=OUTPUT_PARAM))
    name = response_id(api_request)
    schema = forced_calls_schema(model, body)
    response = ResponseObject(
        id=name,
        created=unix_time(),
        model=model.reply_name(adapter),
        api_request=replace(api_request, body={**api_request.body, "text": None})
        if tool_constraint_of_chat(model, body) is ToolConstraint.TAG
        else _with_forced_form(api_request, schema),
        sampling=chat.sampling,
        budget=0,
    )
    planned = plan_chat(model, chat, name, adapter, priority, refuses_unavailable=False, request_type=RESPONSES)
    try:
        job = await planned
    except ApiError as error:
        if not (error.is_late and api_request.streams) or api_request.in_background:
            raise
        raise RefusedStreamError(replace(response, budget=_token_budget(model, chat))) from error
    accounting = job.accounting._replace(shows_prompt_details=True, counts_reasoning=True)
    prompt = job.prompts[0]
    answer = prompt.choices[0].answer
    raw = None
    if api_request.shows_messages:
        text = "".join(answer.texts)
        raw = [raw_message(prompt.text, prompt.token_ids)], [raw_message(text, answer.token_ids)]
    budget = prompt.choices[0].request.max_output_tokens or 0
    response = replace(response, budget=budget, kv_transfer_params=job.kv_transfer_params)
    has_parser = model.answers.parses_answers
    return ResponsePlan(response, job._replace(accounting=accounting), messages, has_parser, raw)


def _token_budget(model: ServedModel, chat: ChatRequest) -> int:
    """Return the token budget of an answer that the engine refuses to begin."""
    planner = model.planner
    per_medium = model.options.replies.tokens_per_medium
    text = planner.conversations.prompt(chat.body)
    media = media_in(model, chat.messages)
    ids = conversation_ids(planner, text, media, per_medium, chat.add_special_tokens, chat.sampling)
    return planner.defaults.output_budget(chat.sampling, len(ids), planner.max_model_len)


def _with_forced_form(api_request: ResponseRequest, schema: Mapping[str, Any] | None) -> ResponseRequest:
    """Return the request with the text format by which vLLM replaces the requested one for calls forced as JSON."""
    if schema is None:
        return api_request
    form = {"type": "json_schema", "name": "tool_calling_response", "schema": schema, "strict": True}
    tools = shown_tools(api_request.body["tools"], schema)
    return replace(api_request, body={**api_request.body, "tools": tools, "text": {"format": form}})


def response_id(api_request: ResponseRequest) -> str:
    """Return the id of a response: the request's, even if it is empty, else a new one."""
    given = api_request.body.get("request_id")
    return f"resp_{new_id()}" if given is None else str(given)


def conversation(responses: ResponseStore, api_request: ResponseRequest) -> list[dict[str, Any]]:
    """Return the messages to answer, with the messages of the response that the request continues."""
    body = api_request.body
    earlier_id = body.get("previous_response_id")
    if earlier_id is None:
        return chat_messages(body.get("instructions"), body["input"], (), ())
    earlier = responses.find(earlier_id)
    return chat_messages(body.get("instructions"), body["input"], earlier.messages, earlier.body["output"])
