"""Rendering of prompts without generation, and derendering of token ids into replies."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeAlias

from aiohttp import web

from mockserve.generation.answer import END, START
from mockserve.generation.tokenizer import Tokenizer
from mockserve.generation.tool_calls import ToolConstraint, listed_schema, shown_tools
from mockserve.options.content import ToolOptions
from mockserve.protocol.bodies import Choice, Usage, read_as
from mockserve.protocol.chat_messages import template_arguments
from mockserve.protocol.completions import (
    ChatBodies,
    ChatCompletionRequest,
    CompletionBodies,
    CompletionRequest,
    Prompt,
    TextRequest,
    check_prompts,
    parse_chat,
    parse_completion,
)
from mockserve.protocol.errors import ApiError, EmptyPromptError
from mockserve.protocol.generate import (
    SKIPS_SPECIAL_TOKENS,
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    GenerateTokensResponse,
    GenerateTokensStreamResponse,
    RenderedRequest,
    as_read,
    parse_context,
    read_derendered_chat,
    read_derendered_completion,
    sampling_object,
)
from mockserve.protocol.sampling import check_logit_bias_keys, check_max_tokens, check_sampling, refuse_unavailable
from mockserve.realtime.driver import unix_time
from mockserve.realtime.in_flight import new_id
from mockserve.reply.stream import json_body
from mockserve.routes.shared import is_long, offload, read_body, reply_id
from mockserve.serving.chat import conversation_ids, forced_calls_schema, media_in, tool_constraint_of_chat
from mockserve.serving.derendering import (
    ChatReader,
    DerenderedChoice,
    StreamState,
    TextReader,
    chat_chunk,
    chat_reader,
    check_lengths,
    completion_chunk,
    read_choice,
    text_reader,
)
from mockserve.serving.model import ServedModel
from mockserve.serving.planner import given_ids, text_ids
from mockserve.serving.service import SERVICE


async def render_chat(request: web.Request) -> web.StreamResponse:
    """A conversation as a request for token ids."""
    service = request.app[SERVICE]
    body = await read_body(request)
    name = (await offload(request, parse_chat, body)).common.request_id
    rendered = await offload(request, rendered_chat, service.model, body, reply_id(request, "chatcmpl", name))
    return await json_body(request, rendered.as_json, is_long(request))


async def render_completion(request: web.Request) -> web.StreamResponse:
    """Prompts as requests for token ids, one for each."""
    service = request.app[SERVICE]
    body = await read_body(request)
    api_request = await offload(request, parse_completion, body)
    service.model.check_model(api_request.model)
    _refuse_beams(api_request.sampling.use_beam_search)
    name = reply_id(request, "cmpl", api_request.common.request_id)
    rendered = await offload(request, _rendered_prompts, service.model, api_request, name)
    return await json_body(request, lambda: [each.as_json() for each in rendered], is_long(request))


def _rendered_prompts(model: ServedModel, api_request: TextRequest, name: str) -> list[RenderedRequest]:
    sampling = model.planner.defaults.applied(api_request.sampling, api_request.body)
    check_prompts(api_request, sampling, model.planner.max_model_len)
    check_logit_bias_keys(api_request.body.get("logit_bias"))
    api_request = api_request._replace(
        sampling=sampling, body=as_read(read_as(CompletionRequest, api_request.body), api_request.body)
    )
    if len(api_request.prompts) == 1:
        return [_rendered_prompt(model, api_request, api_request.prompts[0], name)]
    prompts = enumerate(api_request.prompts)
    return [_rendered_prompt(model, api_request, prompt, f"{name}-{index}") for index, prompt in prompts]


def keeps_special_tokens(tools: ToolOptions) -> bool:
    """Return whether the tool parser needs special tokens in the text."""
    return tools.calls_tools and tools.tool_call_parser not in SKIPS_SPECIAL_TOKENS


def rendered_chat(model: ServedModel, body: dict[str, Any], name: str, is_response: bool = False) -> RenderedRequest:
    """The prompt of a chat request with everything around it. Raises ApiError for a request that is refused.

    Tools are also refused if the server has no tool parser, except for those of a response.
    """
    chat = parse_chat(body, is_typed=False)
    model.check_model(chat.model)
    _refuse_beams(chat.sampling.use_beam_search)
    planner, options = model.planner, model.options
    body = as_read(read_as(ChatCompletionRequest, body), body)
    refuse_unavailable(body, options.content.tools.calls_tools or is_response)
    check_max_tokens(chat.sampling, planner.max_model_len)
    text = planner.conversations.prompt(body)
    media = media_in(model, chat.messages)
    with _empty_prompt_message():
        ids = conversation_ids(
            planner, text, media, options.replies.tokens_per_medium, chat.add_special_tokens, chat.sampling
        )
    sampling = planner.defaults.applied(chat.sampling, body)
    budget = planner.defaults.output_budget(sampling, len(ids), planner.max_model_len)
    check_logit_bias_keys(body.get("logit_bias"))
    check_sampling(sampling, budget)
    has_tools = bool(body.get("tools")) and body.get("tool_choice") != "none"
    parses_calls = has_tools and keeps_special_tokens(options.content.tools)
    arguments = template_arguments(body, planner.conversations.default_arguments)
    schema, tool_constraint = forced_calls_schema(model, body), tool_constraint_of_chat(model, body)
    held, shown = body, body
    if tool_constraint is ToolConstraint.TAG:
        held = {**body, "structured_outputs": None, "response_format": None}
    elif tool_constraint is ToolConstraint.LIST:
        held = {**body, "structured_outputs": {"json": listed_schema(body)}, "response_format": None}
    elif schema is not None:
        held = {**body, "structured_outputs": {"json": schema}, "response_format": None}
        shown = {**body, "tools": shown_tools(body["tools"], schema)}
    return RenderedRequest(
        request_id=name,
        token_ids=ids,
        token_offsets=_token_offsets(planner.tokenizer, text) if body.get("return_token_offsets") else None,
        sampling=sampling_object(sampling, held, budget, chat.delivery.stream, parses_calls, is_response),
        body=body,
        streams=chat.delivery.stream,
        reasoning_ended=_reasoning_ended(model, ids) if chat.includes_reasoning else True,
        reasoning_parser_kwargs={"chat_template_kwargs": arguments}
        if options.content.reasoning.reasoning_parser is not None
        else None,
        parse_context=parse_context(shown, arguments),
    )


def _rendered_prompt(model: ServedModel, api_request: TextRequest, prompt: Prompt, name: str) -> RenderedRequest:
    planner, sampling, body = model.planner, api_request.sampling, api_request.body
    with _empty_prompt_message():
        if isinstance(prompt, str):
            ids = text_ids(planner, prompt, api_request.add_special_tokens, sampling)
        else:
            ids = given_ids(planner, prompt, sampling)
            planner.check_ids(ids)
    budget = planner.defaults.output_budget(sampling, len(ids), planner.max_model_len)
    check_sampling(sampling, budget)
    needs_offsets = body.get("return_token_offsets") and isinstance(prompt, str)
    return RenderedRequest(
        request_id=name,
        token_ids=ids,
        token_offsets=_token_offsets(planner.tokenizer, str(prompt)) if needs_offsets else None,
        sampling=sampling_object(sampling, body, budget, api_request.delivery.stream),
        body=body,
        streams=api_request.delivery.stream,
    )


@contextmanager
def _empty_prompt_message() -> Iterator[None]:
    """Replace the error message for an empty prompt: rendering has a message other than generation."""
    try:
        yield
    except EmptyPromptError:
        raise ApiError("No token_ids rendered") from None


def _reasoning_ended(model: ServedModel, prompt: Sequence[int]) -> bool | None:
    """Whether the prompt already ends the reasoning of the answer; None without a reasoning parser."""
    if model.options.content.reasoning.reasoning_parser is None:
        return None
    start, end = (model.planner.tokenizer.marker_id(each) for each in (START, END))
    last = next((each for each in reversed(prompt) if each in (start, end)), None)
    return last is not None and last == end


def _token_offsets(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Return the start and end of each token in the text."""
    ends = list(accumulate(len(each) for each in tokenizer.split(text).pieces))
    return list(zip([0, *ends], ends, strict=False))


def _refuse_beams(use_beam_search: bool) -> None:
    if use_beam_search:
        raise ApiError("Beam search is not supported by the render endpoint")


STOP_STRINGS = (
    "stop strings are not supported by streaming derender because text already sent cannot be cut. Use non-streaming "
    "derender or output_mode=text on /inference/v1/generate which holds stop strings back."
)
NO_REQUEST = (
    "chat_request is required when a tool or reasoning parser is configured because plain detokenization would leak "
    "raw parser markup into content."
)
NO_PROMPT = (
    "prompt_token_ids is required when a tool or reasoning parser is configured. Without it parse_delta cannot tell "
    "whether the prompt left reasoning open (e.g. a chat template that pre-opens <think>) and would misclassify "
    "reasoning content as plain content."
)


async def derender_chat(request: web.Request) -> web.StreamResponse:
    """A chat reply, or a chunk of one, from the token ids of a reply that was generated elsewhere."""
    service = request.app[SERVICE]
    body = await read_body(request, num_kinds=2)
    return await json_body(request, await offload(request, _derendered_chat, service.model, body), is_long(request))


def _derendered_chat(model: ServedModel, given: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    body = read_derendered_chat(given)
    model.check_model(body.model or "")
    chat = body.chat_request
    if isinstance(body, DerenderChatRequest):
        check_lengths(
            model.planner.max_model_len, _read_choices(model, body.generate_response), [body.prompt_token_ids]
        )
    elif chat and chat.get("stop"):
        raise ApiError(STOP_STRINGS)
    if model.answers.parses_answers and chat is None:
        raise ApiError(NO_REQUEST)
    found = _whole_chat(model, body) if isinstance(body, DerenderChatRequest) else _chat_chunk(model, body)
    return lambda: found


async def derender_completion(request: web.Request) -> web.StreamResponse:
    """A completion, or a chunk of one, from the token ids of replies that were generated elsewhere."""
    service = request.app[SERVICE]
    body = await read_body(request, num_kinds=2)
    return await json_body(
        request, await offload(request, _derendered_completion, service.model, body), is_long(request)
    )


def _derendered_completion(model: ServedModel, given: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    body = read_derendered_completion(given)
    model.check_model(body.model or "")
    if isinstance(body, DerenderCompletionRequest):
        found = _whole_completion(model, body)
    elif (body.completion_request or {}).get("stop"):
        raise ApiError(STOP_STRINGS)
    else:
        generated, prompt = body.generate_chunk, body.prompt_token_ids
        check_lengths(model.planner.max_model_len, (), [prompt])
        choice = _only_choice(model, generated, "derender_completion_stream")
        state = StreamState.read(body.stream_state)
        reader = text_reader(model, body.completion_request, prompt or generated.prompt_token_ids or ())
        found = completion_chunk(_chunk_head(model, body, generated), reader, choice, state, generated)
    return lambda: found


def _whole_chat(model: ServedModel, body: DerenderChatRequest) -> dict[str, Any]:
    generated = body.generate_response
    choices = _read_choices(model, generated)
    reader = chat_reader(model, body.chat_request, body.prompt_token_ids or generated.prompt_token_ids or ())
    for each in choices:
        if not each.token_ids:
            raise ApiError(f"choice {each.index} has empty or null token_ids")
    bodies = ChatBodies(id=_reply_name(generated), created=unix_time(), model=_model_name(model, body), fingerprint="")
    usage = Usage(body.prompt_tokens or 0, sum(len(each.token_ids) for each in choices))
    metrics = None if generated.metrics is None else generated.metrics.model_dump()
    whole = bodies.whole([_chat_choice(reader, each) for each in choices], usage, metrics)
    whole["choices"] = [body | {"index": each.index} for body, each in zip(whole["choices"], choices, strict=True)]
    about = {
        "prompt_logprobs": generated.model_dump(mode="json", include={"prompt_logprobs"})["prompt_logprobs"],
        "system_fingerprint": None,
        "kv_transfer_params": generated.kv_transfer_params,
    }
    shows_ids = (body.chat_request or {}).get("return_token_ids")
    return whole | about | ({"prompt_token_ids": generated.prompt_token_ids} if shows_ids else {})


def _chat_choice(reader: ChatReader, given: DerenderedChoice) -> Choice:
    message, ending = reader.message(given)
    ids = reader.token_ids(given)
    return Choice(message, ending, len(given.token_ids), token_ids=ids, logprobs=reader.logprobs(given))


def _chat_chunk(model: ServedModel, body: DerenderChatStreamRequest) -> dict[str, Any]:
    generated, prompt = body.generate_chunk, body.prompt_token_ids
    if model.answers.parses_answers and prompt is None:
        raise ApiError(NO_PROMPT)
    choice = _only_choice(model, generated, "derender_chat_stream")
    state = StreamState.read(body.stream_state)
    reader = chat_reader(model, body.chat_request, prompt or generated.prompt_token_ids or ())
    lengths = len(prompt or ()), len(state.token_ids), len(choice.token_ids) if choice is not None else 0
    limit = model.planner.max_model_len
    if sum(lengths) > limit:
        raise ApiError(
            f"prompt_token_ids length ({lengths[0]}) plus output_token_ids length ({lengths[1]}) plus delta "
            f"({lengths[2]}) exceeds max_model_len ({limit})."
        )
    return chat_chunk(_chunk_head(model, body, generated), reader, choice, state, generated)


_Chunk: TypeAlias = DerenderChatStreamRequest | DerenderCompletionStreamRequest


def _chunk_head(
    model: ServedModel,
    body: _Chunk,
    generated: GenerateTokensStreamResponse,
) -> dict[str, Any]:
    """The fields of a chunk that come before its choices, and the tokens of the prompt for its usage."""
    return {
        "id": _reply_name(generated),
        "created": unix_time(),
        "model": _model_name(model, body),
        "prompt_tokens": body.prompt_tokens,
    }


def _whole_completion(model: ServedModel, body: DerenderCompletionRequest) -> dict[str, Any]:
    responses = body.generate_responses
    if not responses:
        raise ApiError("generate_responses must not be empty")
    prompts = body.prompt_token_ids or [None] * len(responses)
    check_lengths(
        model.planner.max_model_len, [each for one in responses for each in _read_choices(model, one)], prompts
    )
    choices: list[Choice] = []
    for generated, prompt in zip(responses, prompts, strict=True):
        reader = text_reader(model, body.completion_request, prompt or generated.prompt_token_ids or ())
        choices += [_text_choice(reader, each, _reply_name(generated)) for each in _read_choices(model, generated)]
    first = responses[0]
    bodies = CompletionBodies(
        id=_reply_name(first), created=unix_time(), model=_model_name(model, body), fingerprint=""
    )
    usage = Usage(sum(body.prompt_tokens or ()), sum(each.num_tokens for each in choices))
    params = first.kv_transfer_params
    agreed = params if all(each.kv_transfer_params == params for each in responses) else None
    metrics = first.metrics.model_dump() if first.metrics and len(responses) == 1 else None
    whole = bodies.whole(choices, usage, metrics)
    reasons = [each.finish_reason for one in responses for each in one.choices]
    whole["choices"] = [each | {"finish_reason": why} for each, why in zip(whole["choices"], reasons, strict=True)]
    return whole | {"system_fingerprint": None, "kv_transfer_params": agreed}


def _text_choice(reader: TextReader, given: DerenderedChoice, name: str) -> Choice:
    if not given.token_ids:
        raise ApiError(f"choice {given.index} in response {name} has empty or null token_ids")
    text, ending = reader.text(given)
    ids, logprobs = reader.token_ids(given), reader.logprobs(given, 0)
    return Choice(text, ending, len(given.token_ids), token_ids=ids, logprobs=logprobs)


def _read_choices(model: ServedModel, generated: GenerateTokensResponse) -> list[DerenderedChoice]:
    return [read_choice(each, model.planner.tokenizer) for each in generated.choices]


def _only_choice(model: ServedModel, generated: GenerateTokensStreamResponse, name: str) -> DerenderedChoice | None:
    given = generated.choices
    if len(given) > 1:
        raise ApiError(f"{name} expects at most one choice per chunk (got {len(given)}).")
    return read_choice(given[0], model.planner.tokenizer) if given else None


def _reply_name(generated: GenerateTokensResponse | GenerateTokensStreamResponse) -> str:
    return generated.request_id or new_id()


def _model_name(model: ServedModel, body: DerenderChatRequest | DerenderCompletionRequest | _Chunk) -> str:
    return body.model or model.names[0]
