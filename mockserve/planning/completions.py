"""From a parsed completion request to the reply to write."""

from typing import Any

from mockserve.generation.writing import completion_form
from mockserve.in_flight_request import unix_time
from mockserve.planning.prompts import (
    check_with_model,
    delivery_of,
    given_ids,
    interval_of,
    is_long_reply,
    named_by_ids,
    new_scorers,
    num_top,
    prompt_scores,
    read_beams,
    text_ids,
    with_wishes,
)
from mockserve.protocol.completions.bodies import CompletionBodies
from mockserve.protocol.completions.requests import CompletionRequest, Prompt
from mockserve.protocol.sampling.sampling import check_max_tokens
from mockserve.replies.choice_writer import CompletionShape
from mockserve.replies.frames import OTHER_ERRORS
from mockserve.replies.generation import PlannedPrompt
from mockserve.replies.reply_set import Accounting, ReplyJob
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.planner import RequestContext


async def plan_completion(
    model: ServedModel,
    asked: CompletionRequest,
    body: dict[str, Any],
    reply_id: str,
    adapter: Adapter | None = None,
    priority: int | None = None,
) -> ReplyJob:
    """Plan the reply. Raises ApiError for refusals that depend on the model. `priority` overrides that of the body."""
    model.queue.check(asked.sampling.n)
    planner, response_options = model.planner, asked.response_options
    sampling = planner.defaults.applied(asked.sampling, body)
    beams = read_beams(sampling, model.options.replies.max_logprobs) if sampling.use_beam_search else None
    sampling = sampling if beams is None else beams.sampling
    asked = asked._replace(sampling=sampling)
    check_max_tokens(sampling, model.planner.max_model_len)
    ids = [_ids(model, each, asked) for each in asked.prompts]
    check_with_model(model, body, sampling, asked.common, list(map(len, ids)), searches_beams=beams is not None)
    urgency = asked.common.priority if priority is None else priority
    terms = with_wishes(RequestContext(reply_id, asked.common.cache_salt, adapter, urgency), body)
    prompts = [
        await _planned(model, asked, body, prompt, prompt_ids, terms, len(ids))
        for prompt, prompt_ids in zip(asked.prompts, ids, strict=True)
    ]
    delivery = delivery_of(model, asked.delivery)
    shape = CompletionShape(
        new_scorer=new_scorers(model, sampling),
        num_top=num_top(sampling, extra=1),
        tokens_as_ids=named_by_ids(model, response_options),
        shows_token_ids=response_options.token_ids,
        echo=asked.echo,
        only_echoes=asked.only_echoes,
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
        delivery=delivery,
        prompts=prompts,
        accounting=Accounting(
            shows_prompt_details=model.options.replies.enable_prompt_tokens_details and not sampling.use_beam_search,
            shows_metrics=model.options.replies.enable_per_request_metrics,
        ),
        templates=model.templates,
        stream_interval=interval_of(model, sampling, response_options),
        kv_transfer_params=model.handover(asked.common.kv_transfer_params, prompts[0].generations),
        errors=OTHER_ERRORS,
        is_empty=beams is not None and beams.is_empty,
        is_long=is_long_reply(sampling, prompts, repeats_prompts=asked.echo or response_options.token_ids),
        sampling=sampling,
    )


def _ids(model: ServedModel, prompt: Prompt, asked: CompletionRequest) -> list[int]:
    if isinstance(prompt, str):
        return text_ids(model.planner, prompt, asked.add_special_tokens, asked.sampling)
    return given_ids(model.planner, prompt, asked.sampling)


async def _planned(
    model: ServedModel,
    asked: CompletionRequest,
    body: dict[str, Any],
    prompt: Prompt,
    ids: list[int],
    terms: RequestContext,
    num_prompts: int,
) -> PlannedPrompt:
    planner = model.planner
    text = prompt if isinstance(prompt, str) else None
    form = completion_form(body, text, model.answers)
    if asked.sampling.use_beam_search:
        form = form._replace(constraint=None)
    external = model.external_prompt(asked.common.kv_transfer_params, len(ids))
    if external is not None:
        terms = terms._replace(external=external)
    generations = await planner.plan(ids, asked.sampling, terms, form, num_prompts=num_prompts)
    decodes = text is None and asked.echo
    scores = prompt_scores(model, asked.sampling, ids, generations)
    return PlannedPrompt(
        token_ids=ids,
        text=planner.tokenizer.decode(ids) if decodes else text or "",
        generations=generations,
        scores=scores,
        first_token_text="" if scores is None else planner.tokenizer.decode(ids[:1]),
    )
