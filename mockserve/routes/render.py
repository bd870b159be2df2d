"""POST /v1/chat/completions/render and /v1/completions/render: prompts as token ids, and nothing generated."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from aiohttp import web

from mockserve.answering.json_reply import json_body
from mockserve.content.thinking import END, START
from mockserve.content.tokens.tokenizer import Tokenizer
from mockserve.planning.prompts import conversation_ids, given_ids, text_ids
from mockserve.protocol.asked.sampling import check_sampling
from mockserve.protocol.completions.chat import parse_chat
from mockserve.protocol.completions.messages import media_of
from mockserve.protocol.completions.template_arguments import template_arguments
from mockserve.protocol.completions.text import CompletionRequest, Prompt, parse_completion
from mockserve.protocol.errors import ApiError
from mockserve.protocol.refusals import refuse_unavailable
from mockserve.protocol.server.rendering import Rendered, parse_context, sampling_object
from mockserve.routes.shared import aside, is_long, read_body, reply_id
from mockserve.serving.service import SERVICE, Service


async def render_chat(request: web.Request) -> web.StreamResponse:
    """A conversation as a request for token ids."""
    service = request.app[SERVICE]
    body = await read_body(request)
    name = (await aside(request, parse_chat, body)).common.request_id
    rendered = await aside(request, rendered_chat, service, body, reply_id(request, "chatcmpl", name))
    return await json_body(request, rendered.as_json, is_long(request))


async def render_completion(request: web.Request) -> web.StreamResponse:
    """Prompts as requests for token ids, one for each."""
    service = request.app[SERVICE]
    body = await read_body(request)
    asked = await aside(request, parse_completion, body)
    service.check_model(asked.model)
    _refuse_beams(asked.sampling.use_beam_search)
    name = reply_id(request, "cmpl", asked.common.request_id)
    names = [name] if len(asked.prompts) == 1 else [f"{name}-{index}" for index in range(len(asked.prompts))]
    rendered = await aside(request, _rendered_prompts, service, asked, body, names)
    return await json_body(request, lambda: [each.as_json() for each in rendered], is_long(request))


def _rendered_prompts(
    service: Service, asked: CompletionRequest, body: dict[str, Any], names: Sequence[str]
) -> list[Rendered]:
    return [
        _rendered_prompt(service, asked, body, prompt, each) for prompt, each in zip(asked.prompts, names, strict=True)
    ]


def rendered_chat(service: Service, body: dict[str, Any], name: str, refuses_tools: bool = True) -> Rendered:
    """The prompt of a chat request with everything around it. Raises ApiError for a request that is refused.

    With `refuses_tools`, calls of tools that the server does not parse are refused, too.
    """
    chat = parse_chat(body)
    service.check_model(chat.model)
    _refuse_beams(chat.sampling.use_beam_search)
    planner, options = service.planner, service.options
    refuse_unavailable(body, options.calls_tools or not refuses_tools)
    text = planner.conversations.prompt(body)
    media = media_of(chat.messages)
    if media and not options.tokens_per_medium:
        raise ApiError(f"{service.model_names[0]} is not a multimodal model")
    ids = conversation_ids(planner, text, media, options.tokens_per_medium, chat.add_special_tokens, chat.sampling)
    sampling = planner.defaults.applied(chat.sampling, body)
    budget = planner.defaults.output_budget(sampling, len(ids), planner.max_model_len)
    check_sampling(sampling, budget)
    finds_calls = options.calls_tools and bool(body.get("tools")) and body.get("tool_choice") != "none"
    arguments = template_arguments(body, planner.conversations.default_arguments)
    return Rendered(
        request_id=name,
        token_ids=ids,
        token_offsets=_offsets(planner.tokenizer, text) if body.get("return_token_offsets") else None,
        sampling=sampling_object(sampling, body, budget, chat.delivery.stream, finds_calls),
        body=body,
        streams=chat.delivery.stream,
        reasoning_ended=_reasoning_ended(service, ids) if chat.includes_reasoning else True,
        reasoning_parser_kwargs={"chat_template_kwargs": arguments} if options.reasoning_parser is not None else None,
        parse_context=parse_context(body, arguments),
    )


def _rendered_prompt(
    service: Service, asked: CompletionRequest, body: dict[str, Any], prompt: Prompt, name: str
) -> Rendered:
    planner = service.planner
    sampling = planner.defaults.applied(asked.sampling, body)
    if isinstance(prompt, str):
        ids = text_ids(planner, prompt, asked.add_special_tokens, sampling)
    else:
        ids = given_ids(planner, prompt, sampling)
    budget = planner.defaults.output_budget(sampling, len(ids), planner.max_model_len)
    check_sampling(sampling, budget)
    wants_offsets = body.get("return_token_offsets") and isinstance(prompt, str)
    return Rendered(
        request_id=name,
        token_ids=ids,
        token_offsets=_offsets(planner.tokenizer, str(prompt)) if wants_offsets else None,
        sampling=sampling_object(sampling, body, budget, asked.delivery.stream),
        body=body,
        streams=asked.delivery.stream,
    )


def _reasoning_ended(service: Service, prompt: Sequence[int]) -> bool | None:
    """Whether the prompt has ended the reasoning of the answer already; None without a parser of reasoning."""
    if service.options.reasoning_parser is None:
        return None
    start, end = (service.planner.tokenizer.marker_id(each) for each in (START, END))
    last = next((each for each in reversed(prompt) if each in (start, end)), None)
    return last is not None and last == end


def _offsets(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Where each token begins and ends in the text."""
    ends = list(accumulate(len(each) for each in tokenizer.split(text).pieces))
    return list(zip([0, *ends], ends, strict=False))


def _refuse_beams(use_beam_search: bool) -> None:
    if use_beam_search:
        raise ApiError("Beam search is not supported by the render endpoint")
