"""Completions of text, chat or token ids, and POST /invocations, which chooses one of them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web
from multidict import istr

from mockserve.planning.chat import plan_chat
from mockserve.planning.completions import plan_completion, plan_generate
from mockserve.planning.prompts import is_long_reply
from mockserve.protocol.completions.requests import (
    PYDANTIC_CLASS,
    ChatRequest,
    chat_bodies_of,
    parse_chat,
    parse_completion,
)
from mockserve.protocol.errors import ApiError, BadFieldsError, wrong_media_type
from mockserve.protocol.generate import parse_generate
from mockserve.protocol.pooling.requests import parse_classify, parse_embeddings, parse_pooling
from mockserve.protocol.pooling.scoring import parse_rerank, parse_score
from mockserve.replies.frames import DONE, OTHER_ERRORS
from mockserve.replies.pictures import SEND_HEADER
from mockserve.replies.reply_set import ReplyJob
from mockserve.responding.answer import FORMAT_HEADER, answer, load_headers, refuse
from mockserve.routes.pooling import classify, create_embedding, pooling
from mockserve.routes.scoring import rerank, score
from mockserve.routes.shared import (
    PARSED_BODY,
    Handler,
    aside,
    check_rank,
    generates,
    parsed,
    read_body,
    read_json,
    reply_id,
    requested_priority,
    run_plan,
)
from mockserve.serving.model import Adapter, RouteCondition, ServedModel
from mockserve.serving.service import SERVICE
from mockserve.transport.clients import arrived_at


@generates
async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    chat = await parsed(request, service.chats, body)
    adapter = service.model.check_model(chat.model)
    name = reply_id(request, "chatcmpl", chat.common.request_id)
    try:
        priority = requested_priority(request)
        plan = plan_chat(service.model, chat, body, name, adapter, priority)
        job = await run_plan(request, chat.sampling, plan)
        check_rank(request, service, job)
    except ApiError as error:
        return await refuse(request, error, chat.delivery.stream)
    headers = load_headers(request.headers.get(FORMAT_HEADER), service.delivery.driver.engine)
    if not job.is_long and not job.is_empty and service.pictures.is_wanted(request.headers.get(SEND_HEADER)):
        job = service.pictures.job_of(job)
        with service.delivery.open_replies:
            await asyncio.sleep(service.pictures.time_s())
    return await answer(request, service.delivery, job, arrived, headers, chat.common.cache_hit_threshold)


@generates
async def completions(request: web.Request) -> web.StreamResponse:
    """Continue one or several prompts."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    api_request = await parsed(request, service.completions, body)
    adapter = service.model.check_model(api_request.model)
    name = reply_id(request, "cmpl", api_request.common.request_id)
    try:
        priority = requested_priority(request)
        plan = plan_completion(service.model, api_request, body, name, adapter, priority)
        job = await run_plan(request, api_request.sampling, plan, len(api_request.prompts))
        check_rank(request, service, job)
    except ApiError as error:
        return await refuse(request, error, api_request.delivery.stream, [OTHER_ERRORS.event(error), DONE])
    headers = load_headers(request.headers.get(FORMAT_HEADER), service.delivery.driver.engine)
    return await answer(request, service.delivery, job, arrived, headers, api_request.common.cache_hit_threshold)


@generates
async def batch_chat(request: web.Request) -> web.StreamResponse:
    """Answer several conversations, each with one choice."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    api_request = await aside(request, _chat_requests, body)
    adapter = service.model.check_model(api_request[0][0].model)
    name = reply_id(request, "chatcmpl", api_request[0][0].common.request_id)
    sampling = replace(api_request[0][0].sampling, n=len(api_request))  # one answer for each conversation
    plan = _planned(service.model, api_request, name, adapter, requested_priority(request))
    job = await run_plan(request, sampling, plan)
    check_rank(request, service, job)
    return await answer(request, service.delivery, job, arrived)


def _chat_requests(body: dict[str, Any]) -> list[tuple[ChatRequest, dict[str, Any]]]:
    """Return the parsed request of each conversation, with its body."""
    return [(parse_chat(each, pydantic_class=PYDANTIC_CLASS), each) for each in chat_bodies_of(body)]


async def _planned(
    model: ServedModel,
    api_request: Sequence[tuple[ChatRequest, dict[str, Any]]],
    name: str,
    adapter: Adapter | None,
    priority: int | None,
) -> ReplyJob:
    """Return one reply with a prompt for each conversation."""
    count = len(api_request)
    jobs = [
        await plan_chat(model, chat, body, name, adapter, priority, refuses_unavailable=False, num_prompts=count)
        for chat, body in api_request
    ]
    accounting = jobs[0].accounting._replace(counts_reasoning=False, shows_prompt_details=False)
    prompts = [each.prompts[0] for each in jobs]
    model.queue.check_each(len(each.token_ids) for each in prompts)
    is_long = is_long_reply(api_request[0][0].sampling, prompts, repeats_prompts=False)
    return jobs[0]._replace(prompts=prompts, accounting=accounting, is_long=is_long)


@generates
async def generate(request: web.Request) -> web.StreamResponse:
    """Continue a prompt of token ids; the reply has token ids."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    api_request = await aside(request, parse_generate, body)
    adapter = service.model.check_model(api_request.model)
    name = reply_id(request, "generate-tokens", api_request.common.request_id)
    try:
        plan = plan_generate(service.model, api_request, name, adapter, requested_priority(request))
        job = await run_plan(request, api_request.sampling, plan)
        check_rank(request, service, job)
    except ApiError as error:
        return await refuse(request, error, api_request.delivery.stream, [OTHER_ERRORS.event(error), DONE])
    return await answer(request, service.delivery, job, arrived)


ADAPTER_HEADER = istr("X-Amzn-SageMaker-Adapter-Identifier")
_FOLDER = "vllm.entrypoints.pooling"
_CHECKED = (
    "BeforeValidator(func=<function reject_removed_pooling_parameters>, json_schema_input_type=PydanticUndefined)"
)


def _union(module: str, *names: str, is_checked: bool = True) -> str:
    """Return the text of a union of request types in Python's spelling."""
    joined = " | ".join(f"{_FOLDER}.{module}.protocol.{name}" for name in names)
    return f"typing.Annotated[{joined}, {_CHECKED}]" if is_checked else joined


@dataclass(frozen=True, slots=True)
class _Use:
    """One request type of POST /invocations, with the parser that recognises its bodies."""

    condition: RouteCondition
    parse: Callable[[dict[str, Any]], object]
    handler: Handler
    name: str


_EMBEDDING = _union(
    "embed",
    "EmbeddingCompletionRequest",
    "EmbeddingChatRequest",
    "EmbeddingBatchChatRequest",
    "EmbeddingChatInputRequest",
    "EmbeddingBatchChatInputRequest",
)
_SCORE = _union(
    "scoring",
    "ScoreQueriesDocumentsRequest",
    "ScoreQueriesItemsRequest",
    "ScoreDataRequest",
    "ScoreTextRequest",
    is_checked=False,
)
_USES = (
    _Use(RouteCondition.GENERATION, parse_chat, chat_completions, "ChatCompletionRequest"),
    _Use(RouteCondition.GENERATION, parse_completion, completions, "CompletionRequest"),
    _Use(RouteCondition.EMBED, parse_embeddings, create_embedding, _EMBEDDING),
    _Use(
        RouteCondition.CLASSIFY,
        parse_classify,
        classify,
        _union("classify", "ClassificationCompletionRequest", "ClassificationChatRequest"),
    ),
    _Use(RouteCondition.SCORE, parse_rerank, rerank, "RerankRequest"),
    _Use(RouteCondition.SCORE, parse_score, score, _SCORE),
    _Use(
        RouteCondition.POOLING,
        parse_pooling,
        pooling,
        _union("pooling", "PoolingCompletionRequest", "PoolingChatRequest", "IOProcessorRequest"),
    ),
)


async def invocations(request: web.Request) -> web.StreamResponse:
    """Answer with the handler of the first request type that the body is valid for."""
    if request.content_type != "application/json":
        raise wrong_media_type()
    body = _for_adapter(await read_json(request), request.headers.get(ADAPTER_HEADER, ""))
    open_uses = [each for each in _USES if each.condition in request.app[SERVICE].conditions]
    for use in open_uses:
        try:
            await aside(request, use.parse, dict(body))
        except BadFieldsError:
            continue
        request[PARSED_BODY] = body
        return await use.handler(request)
    names = [each.name for each in open_uses]
    raise ApiError(f"Cannot find suitable handler for request. Expected one of: {names}")


def _for_adapter(body: Any, adapter: str) -> dict[str, Any]:
    """Set the body's model to the adapter in a header or else the served model. Raises ApiError for a non-object."""
    if isinstance(body, dict):
        return {**body, "model": adapter}
    if isinstance(body, list):
        raise ApiError("list indices must be integers or slices, not str")
    if isinstance(body, str):
        raise ApiError("'str' object does not support item assignment")
    raise ApiError(f"argument of type {type(body).__name__!r} is not iterable")
