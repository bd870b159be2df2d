"""POST /v2/embed."""

from aiohttp import web

from mockserve.answering.prefilling import prefill
from mockserve.connections.stamped import arrived_at
from mockserve.planning.prompt_fitting import fitted
from mockserve.protocol.pooling.cohere import check_lengths, check_max_tokens, cohere_embeddings, parse_cohere_embed
from mockserve.routes.pooling import known_adapter, pooling_service
from mockserve.routes.shared import json_reply, read_body, reply_id
from mockserve.serving.planner import Terms


async def cohere_embed(request: web.Request) -> web.StreamResponse:
    """Vectors of texts, as Cohere asks for them."""
    service, pooler = pooling_service(request)
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    asked = parse_cohere_embed(body)
    adapter = known_adapter(service, asked.model)
    check_max_tokens(asked, service.planner.max_model_len)
    keeps_end = asked.truncate == "START"
    prompts = [fitted(service.planner, each, asked.truncate_to, keeps_end, True) for each in asked.texts]
    pooler.check_dimensions(asked.dimensions, service.model_names[0])
    check_lengths(asked, [len(each) for each in prompts])
    id = reply_id(request, "embd", None)
    await prefill(service, [service.planner.prompt_only(each, Terms(id, lora=adapter)) for each in prompts], arrived)
    vectors = [pooler.embedding(each, asked.dimensions) for each in prompts]
    return json_reply(cohere_embeddings(id, asked, vectors, sum(map(len, prompts))))
