"""Planning of replies to completion requests, and to token ids of POST /inference/v1/generate."""

from mockserve.generation.writing import completion_output_spec
from mockserve.protocol.completions import CompletionBodies, Prompt, TextRequest, check_prompts
from mockserve.protocol.server_info import check_decodable
from mockserve.realtime.in_flight import unix_time
from mockserve.reply.choice_writer import CompletionShape
from mockserve.reply.frames import OTHER_ERRORS
from mockserve.reply.plan import Accounting, PlannedPrompt, ReplyJob
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.planner import RequestContext, given_ids, is_long_reply, text_ids
from mockserve.serving.prompts import (
    check_with_model,
    delivery_of,
    extra_args_of,
    interval_of,
    new_scorers,
    num_top,
    prompt_scores,
    read_beams,
    returns_tokens_as_ids,
    with_extra_arguments,
)


async def plan_completion(
    model: ServedModel,
    request: TextRequest,
    reply_id: str,
    adapter: Adapter | None = None,
    priority: int | None = None,
) -> ReplyJob:
    """Plan the reply. Raises ApiError for refusals that depend on the model. `priority` overrides that of the body."""
    model.queue.check(request.sampling.n)
    planner, body, response_options = model.planner, request.body, request.response_options
    sampling = planner.defaults.applied(request.sampling, body)
    beams = read_beams(sampling, model.options.replies.max_logprobs) if sampling.use_beam_search else None
    sampling = sampling if beams is None else beams.sampling
    request = request._replace(sampling=sampling)
    check_prompts(request, sampling, model.planner.max_model_len)
    ids = [_prompt_ids(model, each, request) for each in request.prompts]
    check_with_model(model, body, sampling, request.common, list(map(len, ids)), searches_beams=beams is not None)
    for prompt, each in zip(request.prompts, ids, strict=True):
        if not isinstance(prompt, str):
            if request.echo:
                check_decodable(each)
            model.planner.check_ids(each)
    model.queue.check_each(map(len, ids), sampling.n)
    urgency = request.common.priority if priority is None else priority
    request_context = with_extra_arguments(RequestContext(reply_id, request.common.cache_salt, adapter, urgency), body)
    prompts = [
        await _planned_prompt(model, request, prompt, prompt_ids, request_context, len(ids))
        for prompt, prompt_ids in zip(request.prompts, ids, strict=True)
    ]
    delivery = delivery_of(model, request.delivery)
    shape = CompletionShape(
        new_scorer=new_scorers(model, sampling),
        num_top=num_top(sampling, extra=1),
        tokens_as_ids=returns_tokens_as_ids(model, response_options),
        shows_token_ids=response_options.token_ids,
        echo=request.echo,
        only_echoes=request.only_echoes,
    )
    return ReplyJob(
        bodies=CompletionBodies(
            id=reply_id,
            created=unix_time(),
            model=model.reply_name(adapter),
            fingerprint=model.fingerprint,
            ends_with_usage=delivery.include_usage,
            shows_prompt_ids=response_options.token_ids,
            weight_version=model.weight_version
            if response_options.weight_versions and not sampling.use_beam_search
            else None,
        ),
        new_writer=shape.writer,
        text_pieces=shape.text_pieces,
        delivery=delivery,
        prompts=prompts,
        accounting=Accounting(
            shows_prompt_details=model.options.replies.enable_prompt_tokens_details and not sampling.use_beam_search,
            shows_metrics=model.options.replies.enable_per_request_metrics,
        ),
        templates=model.templates,
        stream_interval=interval_of(model, sampling, response_options),
        kv_transfer_params=model.handover(request.common.kv_transfer_params, prompts[0].generations),
        errors=OTHER_ERRORS,
        is_empty=beams is not None and beams.is_empty,
        is_long=is_long_reply(sampling, prompts, repeats_prompts=request.echo or response_options.token_ids),
        sampling=sampling,
        extra_args=extra_args_of(body) or None,
    )


def _prompt_ids(model: ServedModel, prompt: Prompt, request: TextRequest) -> list[int]:
    if isinstance(prompt, str):
        return text_ids(model.planner, prompt, request.add_special_tokens, request.sampling)
    return given_ids(model.planner, prompt, request.sampling)


async def _planned_prompt(
    model: ServedModel,
    request: TextRequest,
    prompt: Prompt,
    ids: list[int],
    request_context: RequestContext,
    num_prompts: int,
) -> PlannedPrompt:
    planner = model.planner
    text = prompt if isinstance(prompt, str) else None
    form = completion_output_spec(request.body, text, model.answers)
    if request.sampling.use_beam_search:
        form = form._replace(constraint=None)
    external = model.external_prompt(request.common.kv_transfer_params, len(ids))
    if external is not None:
        request_context = request_context._replace(external=external)
    generations = await planner.plan(ids, request.sampling, request_context, form, num_prompts=num_prompts)
    decodes = text is None and request.echo
    scores = prompt_scores(model, request.sampling, ids, generations)
    return PlannedPrompt(
        token_ids=ids,
        text=planner.tokenizer.decode(ids) if decodes else text or "",
        generations=generations,
        scores=scores,
        first_token_text="" if scores is None else planner.tokenizer.decode(ids[:1]),
    )
