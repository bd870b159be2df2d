"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter; the same on SageMaker's paths below /adapters."""

import json
from typing import Any

from aiohttp import web

from mockserve.protocol.errors import bad_request
from mockserve.protocol.json_text import compact_json
from mockserve.protocol.reading.body import check_record
from mockserve.protocol.reading.containers import Nullable, Record
from mockserve.protocol.reading.types import Flag, Integer, Text, as_flag
from mockserve.protocol.server.sagemaker import registration_problems
from mockserve.routes.shared import read_body, untyped_reply
from mockserve.serving.service import SERVICE

_LOADING = Record(
    {"lora_name": Text(), "lora_path": Text(), "load_inplace": Flag(), "is_3d_lora_weight": Flag()},
    required=("lora_name", "lora_path"),
)
_UNLOADING = Record({"lora_name": Text(), "lora_int_id": Nullable(Integer())}, required=("lora_name",))


async def load_lora_adapter(request: web.Request) -> web.StreamResponse:
    """Serve one adapter more, under its own name."""
    body = await read_body(request)
    check_record(body, _LOADING)
    name = body["lora_name"]
    request.app[SERVICE].adapters.load(name, body["lora_path"], as_flag(body.get("load_inplace", False)))
    return untyped_reply(f"Success: LoRA adapter '{name}' added successfully.")


async def unload_lora_adapter(request: web.Request) -> web.StreamResponse:
    """Serve an adapter no more."""
    body = await read_body(request)
    check_record(body, _UNLOADING)
    name = body["lora_name"]
    request.app[SERVICE].adapters.unload(name)
    return untyped_reply(f"Success: LoRA adapter '{name}' removed successfully.")


async def register_adapter(request: web.Request) -> web.StreamResponse:
    """Serve one adapter more, as SageMaker asks for it: in a JSON body, or in the query if the body is none."""
    given: Any
    try:
        given = shown = json.loads(await request.read())
    except (ValueError, RecursionError):
        given, shown = dict(request.query), request.query_string
    problems = registration_problems(given, shown)
    if problems:
        raise bad_request(compact_json(problems).decode())
    request.app[SERVICE].adapters.load(given["name"], given["src"], given.get("load_inplace") is True)
    return untyped_reply(f"Adapter {given['name']} registered")


async def unregister_adapter(request: web.Request) -> web.StreamResponse:
    """Serve an adapter no more, as SageMaker asks for it."""
    name = request.match_info["adapter_name"]
    request.app[SERVICE].adapters.unload(name)
    return untyped_reply(f"Adapter {name} unregistered")
