"""POST /v2/embed."""

from typing import Any

from aiohttp import web

from mockserve.answering.json_reply import json_body
from mockserve.answering.prefilling import prefill
from mockserve.connections.stamped import arrived_at
from mockserve.planning.prompt_fitting import fitted
from mockserve.protocol.pooling.cohere import check_lengths, check_max_tokens, cohere_embeddings, parse_cohere_embed
from mockserve.routes.pooling import has_many, known_adapter, pooling_service
from mockserve.routes.shared import aside, read_body, reply_id
from mockserve.serving.planner import Terms


async def cohere_embed(request: web.Request) -> web.StreamResponse:
    """Vectors of texts, as Cohere asks for them."""
    service, pooler = pooling_service(request)
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    asked = await aside(request, parse_cohere_embed, body)
    adapter = known_adapter(service, asked.model)
    check_max_tokens(asked, service.planner.max_model_len)
    keeps_end = asked.truncate == "START"

    def token_ids() -> list[list[int]]:
        return [fitted(service.planner, each, asked.truncate_to, keeps_end, True) for each in asked.texts]

    prompts = await aside(request, token_ids)
    pooler.check_dimensions(asked.dimensions, service.model_names[0])
    check_lengths(asked, [len(each) for each in prompts])
    id = reply_id(request, "embd", None)
    num_tokens = sum(map(len, prompts))
    await prefill(service, prompts, num_tokens, Terms(id, lora=adapter), arrived)

    def reply() -> dict[str, Any]:
        vectors = [pooler.embedding(each, asked.dimensions) for each in prompts]
        return cohere_embeddings(id, asked, vectors, num_tokens)

    return await json_body(request, reply, has_many(len(prompts), num_tokens))
