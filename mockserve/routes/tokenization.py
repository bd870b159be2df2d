"""POST /tokenize and /detokenize; GET /tokenizer_info."""

from pathlib import Path
from typing import Any

from aiohttp import web

from mockserve.content.tokens.aside import encode_aside
from mockserve.content.tokens.file import read_json_object
from mockserve.planning.prompts import check_unicode
from mockserve.protocol.completions.messages import media_of
from mockserve.protocol.errors import ApiError
from mockserve.protocol.server.tokenization import (
    TokenizeRequest,
    check_decodable,
    conversation_fields,
    parse_detokenize,
    parse_tokenize,
)
from mockserve.protocol.server.tokenizer_info import tokenizer_info
from mockserve.routes.shared import json_reply, read_body
from mockserve.serving.service import SERVICE, Service


async def tokenize(request: web.Request) -> web.StreamResponse:
    """The token ids of a text or of a conversation, as a completion or a chat would have them."""
    service = request.app[SERVICE]
    body = await read_body(request, num_kinds=2)
    asked = parse_tokenize(body)
    service.check_model(asked.model)
    tokenizer = service.planner.tokenizer
    text = _text(service, asked, body)
    check_unicode(text)
    ids = await encode_aside(tokenizer, text, asked.add_special_tokens)
    strings = tokenizer.token_strings(ids) if asked.returns_strings else None
    return json_reply(
        {"count": len(ids), "max_model_len": service.planner.max_model_len, "tokens": ids, "token_strs": strings}
    )


async def detokenize(request: web.Request) -> web.StreamResponse:
    """The text of token ids."""
    service = request.app[SERVICE]
    model, ids = parse_detokenize(await read_body(request))
    service.check_model(model)
    check_decodable(ids)
    return json_reply({"prompt": service.planner.tokenizer.decode(ids)})


async def show_tokenizer_info(request: web.Request) -> web.StreamResponse:
    """The configuration of the tokenizer."""
    service = request.app[SERVICE]
    path = service.options.tokenizer
    settings = {} if path is None else read_json_object(_folder(Path(path)) / "tokenizer_config.json")
    class_name = type(service.planner.tokenizer).__name__
    return json_reply(tokenizer_info(settings, class_name, path, service.planner.max_model_len))


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _text(service: Service, asked: TokenizeRequest, body: dict[str, Any]) -> str:
    if asked.messages is None:
        return asked.prompt or ""
    if asked.continue_final_message and asked.add_generation_prompt:
        raise ApiError(
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you "
            "want the model to continue the final message, and add_generation_prompt when you want to add a header "
            "that will prompt it to start a new assistant message instead."
        )
    if media_of(asked.messages) and not service.options.tokens_per_medium:
        raise ApiError(f"{service.model_names[0]} is not a multimodal model")
    return service.planner.conversations.prompt(conversation_fields(body))
