"""POST /tokenize and /detokenize; GET /tokenizer_info."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from mockserve.generation.tokenizer.file import read_json_object
from mockserve.generation.tokenizer.tokenizer import Tokenizer
from mockserve.planning.prompts import check_unicode
from mockserve.protocol.completions.messages import has_media
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import json_array
from mockserve.protocol.server.tokenization import (
    TokenizeRequest,
    check_decodable,
    conversation_fields,
    parse_detokenize,
    parse_tokenize,
    tokenizer_info,
)
from mockserve.responding.answer import json_body
from mockserve.routes.shared import aside, is_long, json_reply, read_body
from mockserve.serving.model import ServedModel
from mockserve.serving.service import SERVICE

TOKENS_AT_ONCE = 4096


async def tokenize(request: web.Request) -> web.StreamResponse:
    """The token ids of a text or of a conversation, as a completion or a chat would have them."""
    service = request.app[SERVICE]
    body = await read_body(request, num_kinds=2)
    asked = await aside(request, parse_tokenize, body)
    service.model.check_model(asked.model)
    ids = await aside(request, _token_ids, service.model, asked, body)
    tokenizer, limit = service.model.planner.tokenizer, service.model.planner.max_model_len

    def shown() -> dict[str, Any]:
        count = len(ids)
        if count <= TOKENS_AT_ONCE:
            strings = tokenizer.token_strings(ids) if asked.returns_strings else None
            return {"count": count, "max_model_len": limit, "tokens": ids, "token_strs": strings}
        all_strings = json_array(lambda: _strings(tokenizer, ids), TOKENS_AT_ONCE) if asked.returns_strings else None
        tokens = json_array(lambda: ids, TOKENS_AT_ONCE)
        return {"count": count, "max_model_len": limit, "tokens": tokens, "token_strs": all_strings}

    return await json_body(request, shown, is_long(request))


async def detokenize(request: web.Request) -> web.StreamResponse:
    """The text of token ids."""
    service = request.app[SERVICE]
    model, ids = await aside(request, parse_detokenize, await read_body(request))
    service.model.check_model(model)
    await aside(request, check_decodable, ids)
    return await json_body(request, lambda: {"prompt": service.model.planner.tokenizer.decode(ids)}, is_long(request))


async def show_tokenizer_info(request: web.Request) -> web.StreamResponse:
    """The configuration of the tokenizer."""
    service = request.app[SERVICE]
    path = service.options.content.tokenizer
    settings = {} if path is None else read_json_object(_folder(Path(path)) / "tokenizer_config.json")
    class_name = type(service.model.planner.tokenizer).__name__
    return json_reply(tokenizer_info(settings, class_name, path, service.model.planner.max_model_len))


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _token_ids(model: ServedModel, asked: TokenizeRequest, body: dict[str, Any]) -> list[int]:
    text = _text(model, asked, body)
    check_unicode(text)
    return model.planner.tokenizer.encode(text, asked.add_special_tokens)


def _strings(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[str]:
    """Each token as the vocabulary spells it, some at a time."""
    for start in range(0, len(ids), TOKENS_AT_ONCE):
        yield from tokenizer.token_strings(ids[start : start + TOKENS_AT_ONCE])


def _text(model: ServedModel, asked: TokenizeRequest, body: dict[str, Any]) -> str:
    if asked.messages is None:
        return asked.prompt or ""
    if asked.continue_final_message and asked.add_generation_prompt:
        raise ApiError(
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you "
            "want the model to continue the final message, and add_generation_prompt when you want to add a header "
            "that will prompt it to start a new assistant message instead."
        )
    if not model.options.replies.tokens_per_medium and has_media(asked.messages):
        raise ApiError(f"{model.names[0]} is not a multimodal model")
    return model.planner.conversations.prompt(conversation_fields(body))
