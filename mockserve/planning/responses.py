"""From a parsed request for a response to the reply to write."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mockserve.metrics.operations import RESPONSES
from mockserve.planning.chat import plan_chat
from mockserve.protocol.bodies import Choice, Usage
from mockserve.protocol.completions.chat import parse_chat
from mockserve.protocol.responses.bodies import ResponseObject, raw_message
from mockserve.protocol.responses.input import chat_messages
from mockserve.protocol.responses.items import output_items
from mockserve.protocol.responses.requests import ResponseRequest, chat_body
from mockserve.replies.identity import new_id, unix_time
from mockserve.replies.reply_set import ReplyJob
from mockserve.serving.service import Service

OUTPUT_PARAM = "max_output_tokens"


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """A response to make: what is known of it, what the engine is asked, and the conversation it belongs to."""

    response: ResponseObject
    job: ReplyJob
    messages: Sequence[dict[str, Any]]
    has_parser: bool
    raw: tuple[Any, Any] | None

    def whole(self, choice: Choice, usage: Usage, metrics: dict[str, Any] | None) -> dict[str, Any]:
        """The complete response."""
        is_cut = choice.ending.finish_reason == "length"
        items = output_items(choice.content, choice.logprobs, is_cut, self.has_parser, new_id, self.response.tool_names)
        return self.response.body("incomplete" if is_cut else "completed", items, usage, metrics, self.raw)


async def plan_response(service: Service, asked: ResponseRequest, priority: int | None) -> ResponsePlan:
    """Raises ApiError for whatever vLLM refuses once it knows the model."""
    adapter = service.check_model(asked.model)
    messages = conversation(service, asked)
    body = chat_body(asked, messages)
    chat = parse_chat(body)
    chat = chat._replace(sampling=service.planner.defaults.applied(chat.sampling, body))
    if chat.sampling.max_tokens_param == "max_completion_tokens":
        chat = chat._replace(sampling=replace(chat.sampling, max_tokens_param=OUTPUT_PARAM))
    name = response_id(asked)
    job = await plan_chat(
        service, chat, body, name, adapter, priority, refuses_unavailable=False, request_type=RESPONSES
    )
    accounting = job.accounting._replace(shows_prompt_details=True, counts_reasoning=True)
    prompt = job.prompts[0]
    answer = prompt.generations[0].answer
    raw = None
    if asked.shows_messages:
        prompt_text = service.planner.tokenizer.decode(prompt.token_ids)
        text = "".join(answer.texts)
        raw = [raw_message(prompt_text, prompt.token_ids)], [raw_message(text, answer.token_ids)]
    response = ResponseObject(
        id=name,
        created=unix_time(),
        model=service.reply_name(adapter),
        asked=asked,
        sampling=chat.sampling,
        budget=prompt.generations[0].request.max_output_tokens or 0,
        kv_transfer_params=job.kv_transfer_params,
    )
    has_parser = service.options.content.parses_answers
    return ResponsePlan(response, job._replace(accounting=accounting), messages, has_parser, raw)


def response_id(asked: ResponseRequest) -> str:
    """The id of a response: the request's, even if that is empty, else a new one."""
    given = asked.body.get("request_id")
    return f"resp_{new_id()}" if given is None else str(given)


def conversation(service: Service, asked: ResponseRequest) -> list[dict[str, Any]]:
    """The messages to answer, with those of the response that this one continues."""
    body = asked.body
    earlier_id = body.get("previous_response_id")
    if earlier_id is None:
        return chat_messages(body.get("instructions"), body["input"], (), ())
    earlier = service.responses.find(earlier_id)
    return chat_messages(body.get("instructions"), body["input"], earlier.messages, earlier.body["output"])
