"""POST /v1/chat/completions/batch: several conversations, answered together in one reply."""

from typing import Any

from aiohttp import web

from mockserve.answering.answer import answer
from mockserve.connections.stamped import arrived_at
from mockserve.planning.chat import plan_chat
from mockserve.protocol.completions.chat import parse_chat
from mockserve.protocol.errors import Problem, bad_fields, bad_value
from mockserve.routes.shared import check_rank, read_body, reply_id, wanted_priority
from mockserve.serving.service import SERVICE


async def batch_chat(request: web.Request) -> web.StreamResponse:
    """Answer each conversation with one choice."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    _refuse_several_answers(body)
    asked = [{**body, "messages": each} for each in _conversations(body)]
    for each in asked:
        each.pop("stream", None)
        each.pop("stream_options", None)
    chats = [parse_chat(each) for each in asked]
    adapter = service.check_model(chats[0].model)
    name = reply_id(request, "chatcmpl", chats[0].common.request_id)
    priority = wanted_priority(request)
    jobs = [
        await plan_chat(service, chat, each, name, adapter, priority, refuses_unavailable=False)
        for chat, each in zip(chats, asked, strict=True)
    ]
    check_rank(request, service)
    accounting = jobs[0].accounting._replace(counts_reasoning=False, shows_prompt_details=False)
    job = jobs[0]._replace(prompts=[each.prompts[0] for each in jobs], accounting=accounting)
    return await answer(request, service, job, arrived)


def _refuse_several_answers(body: dict[str, Any]) -> None:
    if body.get("use_beam_search"):
        message = "Batch chat completions do not support beam search. Please set `use_beam_search` to False."
        raise bad_value(message, "use_beam_search")
    if body.get("n", 1) not in (None, 1):
        raise bad_value("Batch chat completions do not support `n > 1`. Please set `n` to 1.", "n", body["n"])


def _conversations(body: dict[str, Any]) -> list[list[Any]]:
    """The conversations of a body. Raises ApiError when there are none."""
    location = "body.messages"
    if "messages" not in body:
        raise bad_fields([Problem("missing", location, "Field required", body)])
    given = body["messages"]
    if not isinstance(given, list):
        raise bad_fields([Problem("list_type", location, "Input should be a valid list", given)])
    if not given:
        context = {"field_type": "List", "min_length": 1, "actual_length": 0}
        message = "List should have at least 1 item after validation, not 0"
        raise bad_fields([Problem("too_short", location, message, given, context)])
    problems = [
        Problem("list_type", f"{location}.{index}", "Input should be a valid list", each)
        for index, each in enumerate(given)
        if not isinstance(each, list)
    ]
    if problems:
        raise bad_fields(problems)
    return given
