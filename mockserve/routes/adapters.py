"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""

from aiohttp import web

from mockserve.protocol.reading.body import Fields
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
