"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter; the same on SageMaker's paths below /adapters."""

import json
from typing import Any

from aiohttp import web

from mockserve.protocol.errors import bad_request
from mockserve.protocol.json_text import compact_json
from mockserve.protocol.reading.body import Fields
from mockserve.protocol.server.sagemaker import registration_problems
from mockserve.routes.shared import read_body, untyped_reply
from mockserve.serving.service import SERVICE


async def load_lora_adapter(request: web.Request) -> web.StreamResponse:
    """Serve one adapter more, under its own name."""
    fields = Fields(await read_body(request))
    name, path = fields.required_text("lora_name"), fields.required_text("lora_path")
    replaces = fields.flag("load_inplace")
    fields.flag("is_3d_lora_weight")
    fields.check()
    request.app[SERVICE].adapters.load(name, path, replaces)
    return untyped_reply(f"Success: LoRA adapter '{name}' added successfully.")


async def unload_lora_adapter(request: web.Request) -> web.StreamResponse:
    """Serve an adapter no more."""
    fields = Fields(await read_body(request))
    name = fields.required_text("lora_name")
    fields.integer("lora_int_id")
    fields.check()
    request.app[SERVICE].adapters.unload(name)
    return untyped_reply(f"Success: LoRA adapter '{name}' removed successfully.")


async def register_adapter(request: web.Request) -> web.StreamResponse:
    """Serve one adapter more, as SageMaker asks for it: in a JSON body, or in the query if the body is none."""
    body: Any
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        body = None
    given = dict(request.query) if body is None else body
    problems = registration_problems(given, shown=request.query_string if body is None else given)
    if problems:
        raise bad_request(compact_json(problems).decode())
    request.app[SERVICE].adapters.load(given["name"], given["src"], given.get("load_inplace") is True)
    return untyped_reply(f"Adapter {given['name']} registered")


async def unregister_adapter(request: web.Request) -> web.StreamResponse:
    """Serve an adapter no more, as SageMaker asks for it."""
    name = request.match_info["adapter_name"]
    request.app[SERVICE].adapters.unload(name)
    return untyped_reply(f"Adapter {name} unregistered")
