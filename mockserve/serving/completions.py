"""Planning of replies to completion requests, and to token ids of POST /inference/v1/generate."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from blis_sim.engine.request import Request
from mockserve.generation.writing import completion_output_spec
from mockserve.kv_events.naming import Scope
from mockserve.protocol.completions import CompletionBodies, Prompt, TextRequest, check_prompts, has_plain_prompt
from mockserve.protocol.sampling import Delivery, SamplingParams
from mockserve.protocol.server_info import check_decodable
from mockserve.realtime.driver import unix_time
from mockserve.reply.choice_writer import CompletionShape
from mockserve.reply.frames import OTHER_ERRORS
from mockserve.reply.reply import Accounting, PlannedPrompt, ReplyJob
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.planner import draft_request, given_ids, is_long_reply, scope_of, text_ids
from mockserve.serving.prompts import (
    check_with_model,
    delivery_of,
    empty_prompt_last,
    extra_args_of,
    interval_of,
    new_scorers,
    num_top,
    prompt_scores,
    read_beams,
    returns_tokens_as_ids,
    with_extra_arguments,
)


class CompletionSettings(NamedTuple):
    """Results of planning a checked request that do not depend on its prompts."""

    sampling: SamplingParams
    is_empty: bool
    draft: Request
    """The request to the engine, without its id, prompt and answer."""
    delivery: Delivery
    shape: CompletionShape
    accounting: Accounting
    stream_interval: int
    extra_args: Mapping[str, Any] | None


async def plan_completion(
    model: ServedModel,
    request: TextRequest,
    reply_id: str,
    adapter: Adapter | None = None,
    priority: int | None = None,
) -> ReplyJob:
    """Plan the reply. Raises ApiError for refusals that depend on the model. `priority` overrides that of the body."""
    queue, common, shape = model.queue, request.common, request.shape
    if queue.limits_anything or queue.driver.failure is not None:
        queue.check(request.sampling.n)
    known = None if shape is None else shape.settings
    if isinstance(known, CompletionSettings):
        settings = known
        request = request._replace(sampling=settings.sampling)
        ids = [_prompt_ids(model, each, request) for each in request.prompts]
    else:
        request, settings, ids = _checked(model, request)
        depends_on_length = common.routed_experts_prompt_start or common.kv_transfer_params is not None
        if shape is not None and has_plain_prompt(request.body) and not depends_on_length:
            shape.settings = settings
    sampling, options = settings.sampling, request.response_options
    if queue.limits_anything:
        queue.check_each(map(len, ids), sampling.n)
    urgency, adapter_name = common.priority if priority is None else priority, "" if adapter is None else adapter.name
    draft = settings.draft._replace(id=reply_id, adapter=adapter_name, priority=urgency)
    scope = scope_of(common.cache_salt, adapter)
    prompts = [
        await _planned_prompt(model, request, prompt, prompt_ids, draft, scope, len(ids))
        for prompt, prompt_ids in zip(request.prompts, ids, strict=True)
    ]
    shows_version = options.weight_versions and not sampling.use_beam_search
    return ReplyJob(
        bodies=CompletionBodies(
            id=reply_id,
            created=unix_time(),
            model=model.reply_name(adapter),
            fingerprint=model.fingerprint,
            ends_with_usage=settings.delivery.include_usage,
            shows_prompt_ids=options.token_ids,
            weight_version=model.weight_version if shows_version else None,
        ),
        new_writer=settings.shape.writer,
        text_pieces=settings.shape.text_pieces,
        delivery=settings.delivery,
        prompts=prompts,
        accounting=settings.accounting,
        templates=model.templates,
        stream_interval=settings.stream_interval,
        kv_transfer_params=None
        if model.transfer is None
        else model.handover(common.kv_transfer_params, prompts[0].choices),
        errors=OTHER_ERRORS,
        is_empty=settings.is_empty,
        is_long=is_long_reply(sampling, prompts, repeats_prompts=request.echo or options.token_ids),
        sampling=sampling,
        extra_args=settings.extra_args,
    )


def _checked(model: ServedModel, request: TextRequest) -> tuple[TextRequest, CompletionSettings, list[list[int]]]:
    """Return a request with the sampling in force, its settings and the ids of its prompts. Raises ApiError, in vLLM's
    order."""
    planner, body, response_options, replies = (
        model.planner,
        request.body,
        request.response_options,
        model.options.replies,
    )
    sampling = planner.defaults.applied(request.sampling, body)
    beams = read_beams(sampling, replies.max_logprobs) if sampling.use_beam_search else None
    sampling = sampling if beams is None else beams.sampling
    request = request._replace(sampling=sampling)
    check_prompts(request, sampling, planner.max_model_len)
    with empty_prompt_last(model, body, sampling, request.common, searches_beams=beams is not None):
        ids = [_prompt_ids(model, each, request) for each in request.prompts]
    check_with_model(model, body, sampling, request.common, list(map(len, ids)), searches_beams=beams is not None)
    for prompt, each in zip(request.prompts, ids, strict=True):
        if not isinstance(prompt, str):
            if request.echo:
                check_decodable(each)
            planner.check_ids(each)
    settings = CompletionSettings(
        sampling=sampling,
        is_empty=beams is not None and beams.is_empty,
        draft=with_extra_arguments(draft_request(""), body),
        delivery=delivery_of(model, request.delivery),
        shape=CompletionShape(
            new_scorer=new_scorers(model, sampling),
            num_top=num_top(sampling, extra=1),
            tokens_as_ids=returns_tokens_as_ids(model, response_options),
            shows_token_ids=response_options.token_ids,
            echo=request.echo,
            only_echoes=request.only_echoes,
        ),
        accounting=Accounting(
            shows_prompt_details=replies.enable_prompt_tokens_details and not sampling.use_beam_search,
            shows_metrics=replies.enable_per_request_metrics,
        ),
        stream_interval=interval_of(model, sampling, response_options),
        extra_args=extra_args_of(body) or None,
    )
    return request, settings, ids


def _prompt_ids(model: ServedModel, prompt: Prompt, request: TextRequest) -> list[int]:
    if isinstance(prompt, str):
        return text_ids(model.planner, prompt, request.add_special_tokens, request.sampling)
    return given_ids(model.planner, prompt, request.sampling)


async def _planned_prompt(
    model: ServedModel,
    request: TextRequest,
    prompt: Prompt,
    ids: list[int],
    draft: Request,
    scope: Scope,
    num_prompts: int,
) -> PlannedPrompt:
    planner = model.planner
    text = prompt if isinstance(prompt, str) else None
    form = completion_output_spec(request.body, text, model.answers)
    if request.sampling.use_beam_search:
        form = form._replace(constraint=None)
    if model.transfer is not None:
        external = model.external_prompt(request.common.kv_transfer_params, len(ids))
        draft = draft._replace(external=external)
    choices = await planner.plan(ids, request.sampling, draft, scope, form, num_prompts=num_prompts)
    decodes = text is None and request.echo
    requested = request.sampling.num_prompt_logprobs
    scores = None if requested is None else prompt_scores(model, request.sampling, ids, choices)
    return PlannedPrompt(
        token_ids=ids,
        text=planner.tokenizer.decode(ids) if decodes else text or "",
        choices=choices,
        scores=scores,
        first_token_text="" if scores is None else planner.tokenizer.decode(ids[:1]),
    )
