"""Routes about the server: health, models, metrics, settings, caches, pausing and sleeping, its tokenizer."""

import gzip
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs

from aiohttp import HttpVersion11, web
from prometheus_client.exposition import choose_encoder, gzip_accepted

from mockserve.generation.tokenizer import Tokenizer, read_json_object
from mockserve.metrics.counters import SLEEP
from mockserve.metrics.page import CONTENT_TYPE
from mockserve.protocol.chat_messages import check_calls, check_parts
from mockserve.protocol.errors import ApiError, bad_request
from mockserve.protocol.forms import QueryFields
from mockserve.protocol.json_text import compact_json, json_array
from mockserve.protocol.server_info import (
    ConfigSummary,
    DetokenizeRequest,
    ModelCard,
    TokenizeCompletionRequest,
    TokenizeRequest,
    check_decodable,
    config_as_objects,
    config_as_text,
    conversation_fields,
    model_list,
    parse_tokenize,
    tokenizer_info,
)
from mockserve.realtime.driver import Driver, unix_time
from mockserve.realtime.in_flight import new_id
from mockserve.realtime.suspension import PauseMode
from mockserve.reply.stream import json_body
from mockserve.routes.shared import (
    addressed_service,
    is_long,
    json_reply,
    offload,
    read_body,
    read_fields,
    read_model,
    read_object,
    reply_id,
    untyped_reply,
)
from mockserve.serving.chat import media_in
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.planner import check_unicode
from mockserve.serving.published_settings import published_settings
from mockserve.serving.service import SERVICE, VLLM_VERSION

TOKENS_AT_ONCE = 4096


async def tokenize(request: web.Request) -> web.StreamResponse:
    """The token ids of a text or conversation, equal to the prompt of a completion or chat."""
    service = request.app[SERVICE]
    body = await read_body(request, num_kinds=2)
    api_request = await offload(request, parse_tokenize, body)
    adapter = service.model.check_model(api_request.model or "")
    text, ids = await offload(request, _tokenized_prompt, service.model, api_request, body)
    _observe_tokens(request, text, ids, adapter)
    tokenizer, limit = service.model.planner.tokenizer, service.model.planner.max_model_len

    def shown() -> dict[str, Any]:
        count = len(ids)
        if count <= TOKENS_AT_ONCE:
            strings = tokenizer.token_strings(ids) if api_request.return_token_strs else None
            return {"count": count, "max_model_len": limit, "tokens": ids, "token_strs": strings}
        all_strings = (
            json_array(lambda: _vocabulary_strings(tokenizer, ids), TOKENS_AT_ONCE)
            if api_request.return_token_strs
            else None
        )
        tokens = json_array(lambda: ids, TOKENS_AT_ONCE)
        return {"count": count, "max_model_len": limit, "tokens": tokens, "token_strs": all_strings}

    return await json_body(request, shown, is_long(request))


async def detokenize(request: web.Request) -> web.StreamResponse:
    """The text of token ids."""
    service = request.app[SERVICE]
    api_request = await read_model(request, DetokenizeRequest)
    ids = api_request.tokens
    adapter = service.model.check_model(api_request.model or "")
    _observe_tokens(request, None, ids, adapter)
    await offload(request, check_decodable, ids)
    return await json_body(request, lambda: {"prompt": service.model.planner.tokenizer.decode(ids)}, is_long(request))


async def show_tokenizer_info(request: web.Request) -> web.StreamResponse:
    """The configuration of the tokenizer."""
    service = request.app[SERVICE]
    path = service.options.content.tokenizer
    settings = {} if path is None else read_json_object(_tokenizer_folder(Path(path)) / "tokenizer_config.json")
    class_name = type(service.model.planner.tokenizer).__name__
    return json_reply(tokenizer_info(settings, class_name, path, service.model.planner.max_model_len))


def _tokenizer_folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _tokenized_prompt(model: ServedModel, api_request: TokenizeRequest, body: dict[str, Any]) -> tuple[str, list[int]]:
    """Return the text of a prompt, and its token ids."""
    text = _prompt_text(model, api_request, body)
    check_unicode(text)
    return text, model.planner.tokenizer.encode(text, api_request.add_special_tokens)


def _observe_tokens(request: web.Request, text: str | None, ids: Sequence[int], adapter: Adapter | None) -> None:
    observers = request.app[SERVICE].delivery.observers
    name = reply_id(request, "tokenize", None) if observers else ""
    for observer in observers:
        observer.tokenized(name, text, ids, "" if adapter is None else adapter.name)


def _vocabulary_strings(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[str]:
    """Yield the vocabulary entry of each token, some at a time."""
    for start in range(0, len(ids), TOKENS_AT_ONCE):
        yield from tokenizer.token_strings(ids[start : start + TOKENS_AT_ONCE])


def _prompt_text(model: ServedModel, api_request: TokenizeRequest, body: dict[str, Any]) -> str:
    if isinstance(api_request, TokenizeCompletionRequest):
        return api_request.prompt
    if api_request.continue_final_message and api_request.add_generation_prompt:
        raise ApiError(
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you "
            "want the model to continue the final message, and add_generation_prompt when you want to add a header "
            "that will prompt it to start a new assistant message instead."
        )
    model.planner.conversations.refuse_untrusted(body)
    check_calls(body["messages"], pydantic_class="ValidatorIterator")
    check_parts(body["messages"])
    media_in(model, body["messages"])
    return model.planner.conversations.prompt(conversation_fields(body))


PLATFORM = platform.platform()
"""Computed at import: Python starts a process to find it, which must not happen during a request."""


async def server_info(request: web.Request) -> web.StreamResponse:
    """The configuration of the server and its environment, as text or as JSON objects."""
    query = QueryFields(request.query)
    as_json = query.choice("config_format", "text", ("text", "json")) == "json"
    query.check()
    model = request.app[SERVICE].model
    options, deployment = model.options, model.deployment
    config = deployment.config
    facts = ConfigSummary(
        model=model.root,
        served_model_names=tuple(model.names),
        tokenizer=options.content.tokenizer or model.root,
        runner=options.routes.runner,
        convert=options.routes.convert,
        seed=options.content.seed,
        max_model_len=model.planner.max_model_len,
        block_size=config.block_size_tokens,
        gpu_memory_utilization=options.deployment.memory_utilization,
        num_gpu_blocks=config.total_kv_blocks,
        enable_prefix_caching=config.enable_prefix_caching,
        tensor_parallel_size=deployment.tp,
        pipeline_parallel_size=deployment.pp,
        data_parallel_size=deployment.dp,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_chunked_prefill=config.enable_chunked_prefill,
        async_scheduling=config.async_scheduling,
        scheduler_policy="priority" if config.preemption_policy == "priority" else "fcfs",
        device=deployment.gpu.name,
    )
    return json_reply(
        {
            "vllm_config": config_as_objects(facts) if as_json else config_as_text(facts),
            "vllm_env": {
                name: value
                for name, value in sorted(os.environ.items())
                if name.startswith("VLLM_") and "KEY" not in name
            },
            "system_env": {
                "os": PLATFORM,
                "python_version": platform.python_version(),
                "python_platform": PLATFORM,
                "is_cuda_available": "False",
                "vllm_version": VLLM_VERSION,
            },
        }
    )


async def engine_settings(request: web.Request) -> web.StreamResponse:
    """The settings of the simulated engine and its cluster that are not defaults, by the names that a replay takes."""
    service = request.app[SERVICE]
    deployment = service.model.deployment
    found = published_settings(service.options, deployment.gpu.name, deployment.tp)
    interruptions = [list(each) for each in service.delivery.suspension.history]
    if deployment.config.timer_us and found["speed"] is not None:  # steps depend on where the ticks of its timer are
        since_us = service.delivery.driver.clock() / found["speed"]
        found = {**found, "clock_origin_us": time.time_ns() // 1000 - round(since_us)}
    return json_reply({**found, "interruptions": interruptions})


async def kv_event_sources(request: web.Request) -> web.StreamResponse:
    """Publishers of KV-cache events, by data-parallel rank."""
    service = request.app[SERVICE]
    config = service.options.kv_sharing.events
    ranks = (service.engines or range(service.num_engines)) if config.publishes else ()
    return json_reply({str(rank): asdict(config.of_rank(rank)) for rank in ranks})


async def health(request: web.Request) -> web.StreamResponse:
    """Empty: 200, or 503 once the engine has failed, no instance takes requests, or the server stops."""
    service = request.app[SERVICE]
    return web.Response(status=200 if service.lifecycle.is_ready else 503)


async def version(_request: web.Request) -> web.StreamResponse:
    """The emulated vLLM release."""
    return web.Response(body=compact_json({"version": VLLM_VERSION}), content_type="application/json")


async def load(request: web.Request) -> web.StreamResponse:
    """Number of requests in progress, if load tracking is enabled."""
    service = request.app[SERVICE]
    number = service.delivery.open_replies.number if service.options.enable_server_load_tracking else 0
    return web.Response(body=compact_json({"server_load": number}), content_type="application/json")


async def models(request: web.Request) -> web.StreamResponse:
    """A card for each served name and each adapter."""
    service = request.app[SERVICE]
    limit = service.model.planner.max_model_len
    served = [ModelCard(name, service.model.root, max_model_len=limit) for name in service.model.names]
    served += [ModelCard(each.name, each.path, parent=each.parent) for each in service.model.adapters]
    return json_reply(model_list(served, unix_time(), [new_id() for _ in served]))


GZIP_LEVEL = 6
"""Python's default of 9 takes three times as long for 2 % fewer bytes."""


async def metrics(request: web.Request) -> web.StreamResponse:
    """Return the metrics as Prometheus text. The query is ignored, as in vLLM on this path."""
    service = request.app[SERVICE]
    page = await service.metrics_source.page(in_thread=service.delivery.executor.in_thread)
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})


async def mounted_metrics(request: web.Request) -> web.StreamResponse:
    """Return the metrics as prometheus_client's ASGI application does, which vLLM mounts.

    `name[]` selects samples, `Accept` the format and `Accept-Encoding` gzip. The reply has no Content-Length.
    """
    names = parse_qs(request.query_string).get("name[]", ())
    accept = ",".join(request.headers.getall("Accept", ()))
    service = request.app[SERVICE]
    page = await service.metrics_source.page(names, accept, service.delivery.executor.in_thread)
    _, content_type = choose_encoder(accept)
    response = web.StreamResponse(headers={"Content-Type": content_type})
    if gzip_accepted(",".join(request.headers.getall("Accept-Encoding", ()))):
        page = await service.delivery.executor.in_thread(gzip.compress, page, GZIP_LEVEL)
        response.headers["Content-Encoding"] = "gzip"
    if request.method != "HEAD" and request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    await response.prepare(request)
    if request.method != "HEAD":
        await response.write(page)
    await response.write_eof()
    return response


async def reset_prefix_cache(request: web.Request) -> web.StreamResponse:
    """Clear the prefix cache; fails while requests run, unless they may be preempted."""
    query = QueryFields(request.query)
    preempts_running = query.flag("reset_running_requests", False)
    query.flag("reset_external", False)
    query.check()
    return json_reply({"success": addressed_service(request).delivery.suspension.reset_prefix_cache(preempts_running)})


async def reset_other_cache(_request: web.Request) -> web.StreamResponse:
    """Succeed: the server has no multi-modal or encoder cache to clear."""
    return untyped_reply()


async def abort_requests(request: web.Request) -> web.StreamResponse:
    """Abort the named requests, or all; replies keep the tokens generated so far."""
    driver = addressed_service(request).delivery.driver
    named = (await read_object(request, "Invalid JSON format")).get("request_ids")
    if named:
        reason = _problem_of_names(named, driver)
        if reason is not None:
            return json_reply({"error": f"Failed to abort requests: {reason}"}, HTTPStatus.INTERNAL_SERVER_ERROR)
        _abort_named(driver, named)
        return json_reply({"status": "aborted", "aborted": len(named)})
    return json_reply({"status": "aborted", "aborted": driver.end_early()})


def _problem_of_names(named: Any, driver: Driver) -> str | None:
    """Return why vLLM cannot look for these names; it looks at each only while requests run."""
    if isinstance(named, bool | int | float):
        return f"'{type(named).__name__}' object is not iterable"
    unnamed = next((each for each in named if isinstance(each, list | dict)), None) if driver.request_ids else None
    return None if unnamed is None else f"unhashable type: '{type(unnamed).__name__}'"


async def abort_named_requests(request: web.Request) -> web.StreamResponse:
    """Abort the named requests; replies keep the tokens generated so far."""
    named = (await read_fields(request)).get("request_ids")
    if named is None:
        raise bad_request("Missing 'request_ids' in request body")
    if isinstance(named, list | str | dict):  # vLLM reports no other values
        _abort_named(addressed_service(request).delivery.driver, named)
    return untyped_reply()


def _abort_named(driver: Driver, named: Any) -> None:
    """Abort the requests with the client ids `named`; the engine appends a number to the id for each choice."""
    requested = {named} if isinstance(named, str) else {each for each in named if isinstance(each, str)}
    driver.end_early({each for each in driver.request_ids if each.rpartition("-")[0] in requested})


PAUSE_MODES = ("abort", "wait", "keep")
MAX_SLEEP_LEVEL = 2


async def pause(request: web.Request) -> web.StreamResponse:
    """Suspend generation: running requests are aborted, awaited or kept; new requests are refused or queued."""
    query = QueryFields(request.query)
    mode, clears_caches = _pause_mode(query), query.flag("clear_cache", True)
    query.check()
    await addressed_service(request).delivery.suspension.pause(mode, clears_caches)
    return json_reply({"status": "paused"})


async def resume(request: web.Request) -> web.StreamResponse:
    """Resume generation."""
    addressed_service(request).delivery.suspension.resume()
    return json_reply({"status": "resumed"})


async def is_paused(request: web.Request) -> web.StreamResponse:
    """Whether generation is suspended."""
    return json_reply({"is_paused": addressed_service(request).delivery.suspension.is_paused})


async def sleep(request: web.Request) -> web.StreamResponse:
    """Suspend generation and release memory from level 1 on."""
    query = QueryFields(request.query)
    level, mode = query.integer("level", 1, 0, MAX_SLEEP_LEVEL), _pause_mode(query)
    query.check()
    with _timed_operation(request, "sleep"):
        await addressed_service(request).delivery.suspension.sleep(level, mode)
    return json_reply({"status": "sleeping", "level": level})


async def wake_up(request: web.Request) -> web.StreamResponse:
    """Restore all memory, or the parts named by tags; generation resumes with the last part."""
    tags = request.query.getall("tags", None)
    with _timed_operation(request, "wake"):
        is_awake = addressed_service(request).delivery.suspension.wake_up(tags)
    return json_reply({"status": "awake" if is_awake else "sleeping", "tags": tags})


async def is_sleeping(request: web.Request) -> web.StreamResponse:
    """Whether the engine sleeps at any level or is paused."""
    return json_reply({"is_sleeping": addressed_service(request).delivery.suspension.is_sleeping})


async def release_kv_cache_memory(request: web.Request) -> web.StreamResponse:
    """Free the KV cache of a paused engine until it wakes up."""
    with _timed_operation(request, "release_kv_cache_memory"):
        addressed_service(request).delivery.suspension.release_kv_cache()
    return json_reply({"status": "kv_cache_released"})


def _timed_operation(request: web.Request, operation: str) -> AbstractContextManager[None]:
    return request.app[SERVICE].metrics_source.operations.timed(SLEEP, operation)


def _pause_mode(query: QueryFields) -> PauseMode:
    return cast(PauseMode, query.choice("mode", "abort", PAUSE_MODES))
