"""Every route of the server with its condition. A new route needs a handler in this folder and a row here."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from aiohttp import web

from mockserve.options.server import POOLING_FAMILY, ROUTE_FAMILIES
from mockserve.routes.control import SETTINGS_PATH
from mockserve.routes.shared import Handler
from mockserve.serving.model import PLAYBACK_FAMILY, RouteCondition

_COMMON = frozenset(f"mockserve.routes.{name}" for name in ("completions", "control", "server", "states"))
"""Modules that a server loads before it listens. The others define many types of bodies, and most servers use few."""


@dataclass(frozen=True, slots=True)
class Route:
    """One route. A handler gets the `web.Request` only; shared state is under `SERVICE` of its application.

    `place` is the module of the handler and its name: `module.name` in this folder, or `package.module:name`.
    """

    method: str
    path: str
    place: str
    condition: RouteCondition = RouteCondition.ALWAYS

    @property
    def handler(self) -> Handler:
        """The handler, whose module is loaded."""
        return _loaded_handler(self.place)

    @property
    def responder(self) -> Handler:
        """A handler of an equal name; a rare one loads its module on a thread for its first request."""
        module, name = _module_and_name(self.place)
        return self.handler if module in _COMMON else _loading_handler(self.place, name)


def _module_and_name(place: str) -> tuple[str, str]:
    module, colon, name = place.rpartition(":")
    if colon:
        return module, name
    module, _, name = place.partition(".")
    return f"mockserve.routes.{module}", name


@cache
def _loaded_handler(place: str) -> Handler:
    module, name = _module_and_name(place)
    found: Handler = getattr(import_module(module), name)
    return found


def _loading_handler(place: str, name: str) -> Handler:
    handler: Handler | None = None

    async def load_and_handle(request: web.Request) -> web.StreamResponse:
        nonlocal handler
        if handler is None:
            handler = await asyncio.to_thread(_loaded_handler, place)
        return await handler(request)

    load_and_handle.__name__ = name
    return load_and_handle


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/chat/completions", "completions.chat_completions", RouteCondition.GENERATION),
    Route("POST", "/v1/completions", "completions.completions", RouteCondition.GENERATION),
    Route("POST", "/v1/chat/completions/batch", "completions.batch_chat", RouteCondition.GENERATION),
    Route("POST", "/invocations", "invocations.invocations"),
    Route("POST", "/v1/responses", "responses.create_response", RouteCondition.GENERATION),
    Route("GET", "/v1/responses/{response_id}", "responses.get_response", RouteCondition.GENERATION),
    Route("POST", "/v1/responses/{response_id}/cancel", "responses.cancel_response", RouteCondition.GENERATION),
    Route("POST", "/v1/messages", "messages.messages", RouteCondition.GENERATION),
    Route("POST", "/v1/messages/count_tokens", "messages.count_tokens", RouteCondition.GENERATION),
    Route("GET", "/v1/models", "server.models"),
    Route("POST", "/tokenize", "server.tokenize"),
    Route("POST", "/detokenize", "server.detokenize"),
    Route("GET", "/tokenizer_info", "server.show_tokenizer_info", RouteCondition.TOKENIZER_INFO),
    Route("GET", "/health", "server.health"),
    Route("GET", "/ping", "server.health"),
    Route("POST", "/ping", "server.health"),
    Route("GET", "/health/ready", "server.health", RouteCondition.READY_ROUTE),
    Route("GET", "/version", "server.version"),
    Route("GET", "/load", "server.load"),
    Route("GET", "/metrics", "server.metrics"),
    Route("*", "/metrics{rest:.*}", "server.mounted_metrics"),
    Route("GET", "/dashboard", "control.dashboard"),
    Route("GET", "/dashboard/figures", "control.dashboard_figures"),
    Route("GET", SETTINGS_PATH, "server.engine_settings"),
    Route("GET", "/openapi.json", "control.openapi"),
    Route("HEAD", "/openapi.json", "control.openapi"),
    Route("GET", "/docs", "control.documentation"),
    Route("HEAD", "/docs", "control.documentation"),
    Route("GET", "/docs/oauth2-redirect", "control.oauth2_redirect"),
    Route("HEAD", "/docs/oauth2-redirect", "control.oauth2_redirect"),
    Route("GET", "/redoc", "control.documentation"),
    Route("HEAD", "/redoc", "control.documentation"),
    Route("GET", "/kv_event_sources", "server.kv_event_sources"),
    Route("POST", "/v1/load_lora_adapter", "weights.load_lora_adapter", RouteCondition.RUNTIME_LORA),
    Route("POST", "/v1/unload_lora_adapter", "weights.unload_lora_adapter", RouteCondition.RUNTIME_LORA),
    Route("POST", "/adapters", "weights.register_adapter", RouteCondition.RUNTIME_LORA),
    Route("DELETE", "/adapters/{adapter_name}", "weights.unregister_adapter", RouteCondition.RUNTIME_LORA),
    Route("POST", "/generative_scoring", "scoring.generative_scoring", RouteCondition.GENERATION),
    Route("POST", "/v1/decisions", "scoring.decide"),
    Route("POST", "/v1/systemone", "scoring.decide_structured"),
    Route("POST", "/scale_elastic_ep", "control.scale_elastic_ep", RouteCondition.GENERATION),
    Route("POST", "/is_scaling_elastic_ep", "control.is_scaling_elastic_ep", RouteCondition.GENERATION),
    Route("POST", "/v1/chat/completions/render", "render.render_chat", RouteCondition.SCALE_OUT),
    Route("POST", "/v1/chat/completions/render", "control.scale_out_disabled", RouteCondition.GENERATION),
    Route("POST", "/v1/completions/render", "render.render_completion", RouteCondition.SCALE_OUT),
    Route("POST", "/v1/completions/render", "control.scale_out_disabled", RouteCondition.GENERATION),
    Route("POST", "/v1/messages/render", "messages.render_messages", RouteCondition.SCALE_OUT),
    Route("POST", "/v1/messages/render", "control.scale_out_disabled", RouteCondition.GENERATION),
    Route("POST", "/v1/responses/render", "responses.render_response", RouteCondition.SCALE_OUT),
    Route("POST", "/v1/responses/render", "control.scale_out_disabled", RouteCondition.GENERATION),
    Route("POST", "/inference/v1/generate", "generate.generate", RouteCondition.SCALE_OUT),
    Route("POST", "/inference/v1/generate", "control.scale_out_disabled", RouteCondition.GENERATION),
    Route("POST", "/v1/chat/completions/derender", "render.derender_chat", RouteCondition.SCALE_OUT),
    Route("POST", "/v1/chat/completions/derender", "control.scale_out_disabled", RouteCondition.GENERATION),
    Route("POST", "/v1/completions/derender", "render.derender_completion", RouteCondition.SCALE_OUT),
    Route("POST", "/v1/completions/derender", "control.scale_out_disabled", RouteCondition.GENERATION),
    Route("POST", "/inference/v1/abort_requests", "server.abort_named_requests", RouteCondition.SCALE_OUT),
    Route("POST", "/inference/v1/abort_requests", "control.scale_out_disabled", RouteCondition.GENERATION),
    Route("POST", "/abort_requests", "server.abort_requests", RouteCondition.DEV_MODE),
    Route("POST", "/abort_requests", "server.abort_named_requests", RouteCondition.TOKENS_ONLY),
    Route("POST", "/pause", "server.pause", RouteCondition.DEV_MODE),
    Route("POST", "/resume", "server.resume", RouteCondition.DEV_MODE),
    Route("GET", "/is_paused", "server.is_paused", RouteCondition.DEV_MODE),
    Route("POST", "/sleep", "server.sleep", RouteCondition.DEV_MODE),
    Route("POST", "/wake_up", "server.wake_up", RouteCondition.DEV_MODE),
    Route("GET", "/is_sleeping", "server.is_sleeping", RouteCondition.DEV_MODE),
    Route("POST", "/release_kv_cache_memory", "server.release_kv_cache_memory", RouteCondition.DEV_MODE),
    Route("POST", "/reset_prefix_cache", "server.reset_prefix_cache", RouteCondition.DEV_MODE),
    Route("POST", "/reset_mm_cache", "server.reset_other_cache", RouteCondition.DEV_MODE),
    Route("POST", "/reset_encoder_cache", "server.reset_other_cache", RouteCondition.DEV_MODE),
    Route("GET", "/server_info", "server.server_info", RouteCondition.DEV_MODE),
    Route("GET", "/get_world_size", "weights.world_size", RouteCondition.DEV_MODE),
    Route("GET", "/weight_info", "weights.weight_info", RouteCondition.DEV_MODE),
    Route("POST", "/init_weight_transfer_engine", "weights.init_weight_transfer_engine", RouteCondition.DEV_MODE),
    Route(
        "POST", "/shutdown_weight_transfer_engine", "weights.shutdown_weight_transfer_engine", RouteCondition.DEV_MODE
    ),
    Route("POST", "/start_weight_update", "weights.start_weight_update", RouteCondition.DEV_MODE),
    Route("POST", "/start_draft_weight_update", "weights.start_draft_weight_update", RouteCondition.DEV_MODE),
    Route("POST", "/update_weights", "weights.update_weights", RouteCondition.DEV_MODE),
    Route("POST", "/finish_weight_update", "weights.finish_weight_update", RouteCondition.DEV_MODE),
    Route("POST", "/update_weight_version", "weights.update_weight_version", RouteCondition.DEV_MODE),
    Route("POST", "/weight_checker", "weights.weight_checker", RouteCondition.DEV_MODE),
    Route("POST", "/collective_rpc", "weights.collective_rpc", RouteCondition.DEV_MODE),
    Route("GET", "/query", "control.query", RouteCondition.KV_TRANSFER),
    Route("GET", "/blis/faults", "control.show_faults", RouteCondition.FAULT_CONTROL),
    Route("POST", "/blis/faults", "control.change_faults", RouteCondition.FAULT_CONTROL),
    Route("DELETE", "/blis/faults", "control.end_faults", RouteCondition.FAULT_CONTROL),
    Route("GET", "/blis/metrics", "states.show_pins", RouteCondition.STATE_CONTROL),
    Route("POST", "/blis/metrics", "states.pin_metrics", RouteCondition.STATE_CONTROL),
    Route("DELETE", "/blis/metrics", "states.release_metrics", RouteCondition.STATE_CONTROL),
    Route("GET", "/blis/load", "states.show_load", RouteCondition.STATE_CONTROL),
    Route("POST", "/blis/load", "states.set_load", RouteCondition.STATE_CONTROL),
    Route("DELETE", "/blis/load", "states.end_load", RouteCondition.STATE_CONTROL),
    Route("POST", "/fake_metrics", "states.set_fake_metrics", RouteCondition.READY_ROUTE),
    Route("GET", "/admin/config", "states.show_admin_config", RouteCondition.READY_ROUTE),
    Route("POST", "/admin/config", "states.change_admin_config", RouteCondition.READY_ROUTE),
    Route("GET", "/blis/instances", "control.list_instances", RouteCondition.CLUSTER),
    Route("POST", "/blis/instances", "control.add_instance", RouteCondition.INSTANCE_CONTROL),
    Route("POST", "/blis/instances/{instance}/drain", "control.drain_instance", RouteCondition.INSTANCE_CONTROL),
    Route("DELETE", "/blis/instances/{instance}", "control.kill_instance", RouteCondition.INSTANCE_CONTROL),
)
"""The routes; of two enabled rows with equal paths, the first row answers."""

_FAMILIES = {
    RouteCondition.TRANSCRIPTION: "speech",
    RouteCondition.REALTIME: "speech",
    RouteCondition.POOLING: POOLING_FAMILY,
    RouteCondition.PLAYBACK_CONTROL: PLAYBACK_FAMILY,
}
"""Names in `ROUTE_FAMILIES` of further routes, by their condition."""


def routes_under(conditions: Collection[RouteCondition]) -> Sequence[Route]:
    """Return the routes, and the routes of the families that the conditions ask for."""
    names = dict.fromkeys(name for condition, name in _FAMILIES.items() if condition in conditions)
    return (*ROUTES, *(route for name in names for route in ROUTE_FAMILIES[name].ROUTES))


def summaries(routes: Sequence[Route]) -> dict[str, str]:
    """Return what each handler does, by its name. It loads the modules of all handlers."""
    return {each.handler.__name__: (each.handler.__doc__ or "").strip().partition("\n")[0] for each in routes}
