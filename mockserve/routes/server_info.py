"""GET /server_info and /kv_event_sources."""

import os
import platform
from dataclasses import asdict

from aiohttp import web

from mockserve.protocol.reading.query import QueryFields
from mockserve.protocol.server.info import ConfigFacts, as_objects, as_text
from mockserve.routes.shared import json_reply
from mockserve.serving.service import SERVICE, VLLM_VERSION, Service

PLATFORM = platform.platform()
"""Found when the module is imported: Python starts a process for it, which no request shall do."""


async def server_info(request: web.Request) -> web.StreamResponse:
    """What is served and how, with the environment, as text or as JSON objects."""
    query = QueryFields(request.query)
    as_json = query.choice("config_format", "text", ("text", "json")) == "json"
    query.check()
    facts = _facts(request.app[SERVICE])
    return json_reply(
        {
            "vllm_config": as_objects(facts) if as_json else as_text(facts),
            "vllm_env": {
                name: value
                for name, value in sorted(os.environ.items())
                if name.startswith("VLLM_") and "KEY" not in name
            },
            "system_env": {
                "os": PLATFORM,
                "python_version": platform.python_version(),
                "python_platform": PLATFORM,
                "is_cuda_available": "False",
                "vllm_version": VLLM_VERSION,
            },
        }
    )


async def kv_event_sources(request: web.Request) -> web.StreamResponse:
    """Where KV-cache events are published, by data-parallel rank."""
    service = request.app[SERVICE]
    config = service.options.kv_events
    ranks = (service.engines or range(service.num_engines)) if config.publishes else ()
    return json_reply({str(rank): asdict(config.of_rank(rank)) for rank in ranks})


def _facts(service: Service) -> ConfigFacts:
    options, deployment = service.options, service.deployment
    config = deployment.config
    return ConfigFacts(
        model=service.root,
        served_model_names=tuple(service.model_names),
        tokenizer=options.tokenizer or service.root,
        runner=options.runner,
        convert=options.convert,
        seed=options.seed,
        max_model_len=service.planner.max_model_len,
        block_size=config.block_size_tokens,
        gpu_memory_utilization=options.memory_utilization,
        num_gpu_blocks=config.total_kv_blocks,
        enable_prefix_caching=config.enable_prefix_caching,
        tensor_parallel_size=deployment.tp,
        data_parallel_size=deployment.dp,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_chunked_prefill=config.enable_chunked_prefill,
        async_scheduling=config.async_scheduling,
        scheduler_policy="priority" if config.preemption_policy == "priority" else "fcfs",
        device=deployment.gpu.name,
    )
