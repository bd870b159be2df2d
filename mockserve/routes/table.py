"""Every route of the server, and what opens it. A new route is a function beside this file and one row here."""

from dataclasses import dataclass

from mockserve.routes.adapters import load_lora_adapter, register_adapter, unload_lora_adapter, unregister_adapter
from mockserve.routes.audio import transcribe, translate
from mockserve.routes.completions import batch_chat, chat_completions, completions, generate
from mockserve.routes.control import (
    add_instance,
    change_faults,
    drain_instance,
    end_faults,
    is_scaling_elastic_ep,
    kill_instance,
    list_instances,
    query,
    scale_elastic_ep,
    scale_out_disabled,
    show_faults,
)
from mockserve.routes.documentation import dashboard, documentation, oauth2_redirect, openapi
from mockserve.routes.invocations import invocations
from mockserve.routes.messages import count_tokens, messages, render_messages
from mockserve.routes.pooling import classify, cohere_embed, create_embedding, create_token_embedding, pooling
from mockserve.routes.render import derender_chat, derender_completion, render_chat, render_completion
from mockserve.routes.responses import cancel_response, create_response, get_response, render_response
from mockserve.routes.scoring import decide, decide_structured, generative_scoring, rerank, score
from mockserve.routes.server import (
    abort_named_requests,
    abort_requests,
    health,
    kv_event_sources,
    load,
    metrics,
    models,
    mounted_metrics,
    reset_other_cache,
    reset_prefix_cache,
    server_info,
    version,
)
from mockserve.routes.shared import Handler
from mockserve.routes.suspension import (
    is_paused,
    is_sleeping,
    pause,
    release_kv_cache_memory,
    resume,
    sleep,
    wake_up,
)
from mockserve.routes.tokenization import detokenize, show_tokenizer_info, tokenize
from mockserve.routes.weights import (
    collective_rpc,
    finish_weight_update,
    init_weight_transfer_engine,
    shutdown_weight_transfer_engine,
    start_draft_weight_update,
    start_weight_update,
    update_weight_version,
    update_weights,
    weight_checker,
    weight_info,
    world_size,
)
from mockserve.serving.gates import Gate


@dataclass(frozen=True, slots=True)
class Route:
    """One route. `web.Request` is all a handler gets; what it shares with others is in `SERVICE`."""

    method: str
    path: str
    handler: Handler
    gate: Gate = Gate.ALWAYS


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/chat/completions", chat_completions, Gate.GENERATION),
    Route("POST", "/v1/completions", completions, Gate.GENERATION),
    Route("POST", "/v1/chat/completions/batch", batch_chat, Gate.GENERATION),
    Route("POST", "/invocations", invocations),
    Route("POST", "/v1/responses", create_response, Gate.GENERATION),
    Route("GET", "/v1/responses/{response_id}", get_response, Gate.GENERATION),
    Route("POST", "/v1/responses/{response_id}/cancel", cancel_response, Gate.GENERATION),
    Route("POST", "/v1/messages", messages, Gate.GENERATION),
    Route("POST", "/v1/messages/count_tokens", count_tokens, Gate.GENERATION),
    Route("POST", "/v1/audio/transcriptions", transcribe, Gate.TRANSCRIPTION),
    Route("POST", "/v1/audio/translations", translate, Gate.TRANSCRIPTION),
    Route("POST", "/v1/embeddings", create_embedding, Gate.EMBED),
    Route("POST", "/v1/embeddings", create_token_embedding, Gate.TOKEN_EMBED),
    Route("POST", "/v2/embed", cohere_embed, Gate.EMBED),
    Route("POST", "/pooling", pooling, Gate.POOLING),
    Route("POST", "/classify", classify, Gate.CLASSIFY),
    Route("POST", "/score", score, Gate.SCORE),
    Route("POST", "/v1/score", score, Gate.SCORE),
    Route("POST", "/rerank", rerank, Gate.SCORE),
    Route("POST", "/v1/rerank", rerank, Gate.SCORE),
    Route("POST", "/v2/rerank", rerank, Gate.SCORE),
    Route("GET", "/v1/models", models),
    Route("POST", "/tokenize", tokenize),
    Route("POST", "/detokenize", detokenize),
    Route("GET", "/tokenizer_info", show_tokenizer_info, Gate.TOKENIZER_INFO),
    Route("GET", "/health", health),
    Route("GET", "/ping", health),
    Route("POST", "/ping", health),
    Route("GET", "/health/ready", health, Gate.READY_ROUTE),
    Route("GET", "/version", version),
    Route("GET", "/load", load),
    Route("GET", "/metrics", metrics),
    Route("*", "/metrics{rest:.*}", mounted_metrics),
    Route("GET", "/dashboard", dashboard),
    Route("GET", "/openapi.json", openapi),
    Route("HEAD", "/openapi.json", openapi),
    Route("GET", "/docs", documentation),
    Route("HEAD", "/docs", documentation),
    Route("GET", "/docs/oauth2-redirect", oauth2_redirect),
    Route("HEAD", "/docs/oauth2-redirect", oauth2_redirect),
    Route("GET", "/redoc", documentation),
    Route("HEAD", "/redoc", documentation),
    Route("GET", "/kv_event_sources", kv_event_sources),
    Route("POST", "/v1/load_lora_adapter", load_lora_adapter, Gate.RUNTIME_LORA),
    Route("POST", "/v1/unload_lora_adapter", unload_lora_adapter, Gate.RUNTIME_LORA),
    Route("POST", "/adapters", register_adapter, Gate.RUNTIME_LORA),
    Route("DELETE", "/adapters/{adapter_name}", unregister_adapter, Gate.RUNTIME_LORA),
    Route("POST", "/generative_scoring", generative_scoring, Gate.GENERATION),
    Route("POST", "/v1/decisions", decide),
    Route("POST", "/v1/systemone", decide_structured),
    Route("POST", "/scale_elastic_ep", scale_elastic_ep, Gate.GENERATION),
    Route("POST", "/is_scaling_elastic_ep", is_scaling_elastic_ep, Gate.GENERATION),
    Route("POST", "/v1/chat/completions/render", render_chat, Gate.SCALE_OUT),
    Route("POST", "/v1/chat/completions/render", scale_out_disabled, Gate.GENERATION),
    Route("POST", "/v1/completions/render", render_completion, Gate.SCALE_OUT),
    Route("POST", "/v1/completions/render", scale_out_disabled, Gate.GENERATION),
    Route("POST", "/v1/messages/render", render_messages, Gate.SCALE_OUT),
    Route("POST", "/v1/messages/render", scale_out_disabled, Gate.GENERATION),
    Route("POST", "/v1/responses/render", render_response, Gate.SCALE_OUT),
    Route("POST", "/v1/responses/render", scale_out_disabled, Gate.GENERATION),
    Route("POST", "/inference/v1/generate", generate, Gate.SCALE_OUT),
    Route("POST", "/inference/v1/generate", scale_out_disabled, Gate.GENERATION),
    Route("POST", "/v1/chat/completions/derender", derender_chat, Gate.SCALE_OUT),
    Route("POST", "/v1/chat/completions/derender", scale_out_disabled, Gate.GENERATION),
    Route("POST", "/v1/completions/derender", derender_completion, Gate.SCALE_OUT),
    Route("POST", "/v1/completions/derender", scale_out_disabled, Gate.GENERATION),
    Route("POST", "/inference/v1/abort_requests", abort_named_requests, Gate.SCALE_OUT),
    Route("POST", "/inference/v1/abort_requests", scale_out_disabled, Gate.GENERATION),
    Route("POST", "/abort_requests", abort_requests, Gate.DEV_MODE),
    Route("POST", "/abort_requests", abort_named_requests, Gate.TOKENS_ONLY),
    Route("POST", "/pause", pause, Gate.DEV_MODE),
    Route("POST", "/resume", resume, Gate.DEV_MODE),
    Route("GET", "/is_paused", is_paused, Gate.DEV_MODE),
    Route("POST", "/sleep", sleep, Gate.DEV_MODE),
    Route("POST", "/wake_up", wake_up, Gate.DEV_MODE),
    Route("GET", "/is_sleeping", is_sleeping, Gate.DEV_MODE),
    Route("POST", "/release_kv_cache_memory", release_kv_cache_memory, Gate.DEV_MODE),
    Route("POST", "/reset_prefix_cache", reset_prefix_cache, Gate.DEV_MODE),
    Route("POST", "/reset_mm_cache", reset_other_cache, Gate.DEV_MODE),
    Route("POST", "/reset_encoder_cache", reset_other_cache, Gate.DEV_MODE),
    Route("GET", "/server_info", server_info, Gate.DEV_MODE),
    Route("GET", "/get_world_size", world_size, Gate.DEV_MODE),
    Route("GET", "/weight_info", weight_info, Gate.DEV_MODE),
    Route("POST", "/init_weight_transfer_engine", init_weight_transfer_engine, Gate.DEV_MODE),
    Route("POST", "/shutdown_weight_transfer_engine", shutdown_weight_transfer_engine, Gate.DEV_MODE),
    Route("POST", "/start_weight_update", start_weight_update, Gate.DEV_MODE),
    Route("POST", "/start_draft_weight_update", start_draft_weight_update, Gate.DEV_MODE),
    Route("POST", "/update_weights", update_weights, Gate.DEV_MODE),
    Route("POST", "/finish_weight_update", finish_weight_update, Gate.DEV_MODE),
    Route("POST", "/update_weight_version", update_weight_version, Gate.DEV_MODE),
    Route("POST", "/weight_checker", weight_checker, Gate.DEV_MODE),
    Route("POST", "/collective_rpc", collective_rpc, Gate.DEV_MODE),
    Route("GET", "/query", query, Gate.KV_TRANSFER),
    Route("GET", "/blis/faults", show_faults, Gate.FAULT_CONTROL),
    Route("POST", "/blis/faults", change_faults, Gate.FAULT_CONTROL),
    Route("DELETE", "/blis/faults", end_faults, Gate.FAULT_CONTROL),
    Route("GET", "/blis/instances", list_instances, Gate.CLUSTER),
    Route("POST", "/blis/instances", add_instance, Gate.INSTANCE_CONTROL),
    Route("POST", "/blis/instances/{instance}/drain", drain_instance, Gate.INSTANCE_CONTROL),
    Route("DELETE", "/blis/instances/{instance}", kill_instance, Gate.INSTANCE_CONTROL),
)
"""Where two open rows share a path, the first one answers."""
