"""POST /v1/completions."""

from aiohttp import web

from mockserve.answering import answer
from mockserve.connection import arrived_at
from mockserve.content.asking import completion_form
from mockserve.generation import Planner
from mockserve.protocol.completion_bodies import CompletionBodies
from mockserve.protocol.completions import Prompt, parse_completion
from mockserve.protocol.refusals import refuse_bad_bias
from mockserve.routes.shared import SERVICE, read_body, reply_id
from mockserve.service import unix_time


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue one or several prompts."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    asked = parse_completion(body)
    service.check_model(asked.model)
    refuse_bad_bias(body, service.planner.tokenizer.vocabulary_size)
    framed = body.get("add_special_tokens") is not False
    prompts = [_token_ids(service.planner, prompt, framed) for prompt in asked.prompts]
    bodies = CompletionBodies(
        id=reply_id(request, "cmpl", asked.request_id),
        created=unix_time(),
        model=service.model_names[0],
        fingerprint=service.fingerprint,
        ends_with_usage=asked.delivery.include_usage,
    )
    forms = [completion_form(body, prompt if isinstance(prompt, str) else None) for prompt in asked.prompts]
    choices = [
        service.planner.plan(prompt, asked.sampling, bodies.id, asked.cache_salt, form)
        for prompt, form in zip(prompts, forms, strict=True)
    ]
    return await answer(request, service, bodies, asked.delivery, choices, arrived)


def _token_ids(planner: Planner, prompt: Prompt, framed: bool) -> list[int]:
    if isinstance(prompt, str):
        return planner.encode(prompt, framed)
    planner.check_ids(prompt)
    return prompt
