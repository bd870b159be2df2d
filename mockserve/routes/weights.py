"""Routes about weights: LoRA adapters, and in development mode weight transfer, version, checksums and worker calls."""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from aiohttp import web

from mockserve.metrics.counters import WEIGHTS
from mockserve.protocol.bodies import BodyT, RequestObject
from mockserve.protocol.errors import ApiError, bad_request
from mockserve.protocol.forms import QueryFields
from mockserve.protocol.json_text import compact_json
from mockserve.protocol.weights import (
    FinishedUpdate,
    LoadLoRAAdapterRequest,
    UnloadLoRAAdapterRequest,
    WeightCheck,
    WeightTransferSettings,
    WeightUpdate,
    WeightVersion,
    read_embedded,
    registration_problems,
)
from mockserve.routes.shared import json_reply, read_model, read_object, untyped_reply
from mockserve.serving.model import ServedModel
from mockserve.serving.service import SERVICE


async def load_lora_adapter(request: web.Request) -> web.StreamResponse:
    """Load an adapter and serve it under its name."""
    body = await read_model(request, LoadLoRAAdapterRequest)
    adapters = request.app[SERVICE].model.adapters
    adapters.load(body.lora_name, body.lora_path, body.load_inplace, is_3d=body.is_3d_lora_weight)
    return untyped_reply(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_lora_adapter(request: web.Request) -> web.StreamResponse:
    """Unload an adapter."""
    name = (await read_model(request, UnloadLoRAAdapterRequest)).lora_name
    request.app[SERVICE].model.adapters.unload(name)
    return untyped_reply(f"Success: LoRA adapter '{name}' removed successfully.")


async def register_adapter(request: web.Request) -> web.StreamResponse:
    """Load an adapter through SageMaker's route, from a JSON body or else from the query."""
    given: Any
    try:
        given = shown = json.loads(await request.read())
    except (ValueError, RecursionError):
        given, shown = dict(request.query), request.query_string
    problems = registration_problems(given, shown)
    if problems:
        raise bad_request(compact_json(problems).decode())
    request.app[SERVICE].model.adapters.load(given["name"], given["src"], given.get("load_inplace") is True)
    return untyped_reply(f"Adapter {given['name']} registered")


async def unregister_adapter(request: web.Request) -> web.StreamResponse:
    """Unload an adapter through SageMaker's route."""
    name = request.match_info["adapter_name"]
    request.app[SERVICE].model.adapters.unload(name)
    return untyped_reply(f"Adapter {name} unregistered")


_EMBEDDING, _LAYER = "model.embed_tokens.weight", "model.layers.{}.self_attn.qkv_proj.weight"


async def init_weight_transfer_engine(request: web.Request) -> web.StreamResponse:
    """Accept the settings of a transfer of weights."""
    return await _report_success(request, "init", "Weight transfer initialized", WeightTransferSettings)


async def shutdown_weight_transfer_engine(request: web.Request) -> web.StreamResponse:
    """Accept the end of transfers."""
    return await _report_success(request, "shutdown", "Weight transfer shut down")


async def start_weight_update(request: web.Request) -> web.StreamResponse:
    """Accept the beginning of an update."""
    return await _report_success(request, "start", "Weight update started")


async def start_draft_weight_update(request: web.Request) -> web.StreamResponse:
    """Accept the beginning of an update of the draft model."""
    return await _report_success(request, "start_draft", "Draft weight update started")


async def update_weights(request: web.Request) -> web.StreamResponse:
    """Accept weights."""
    return await _report_success(request, "update", "Weights updated", WeightUpdate)


async def finish_weight_update(request: web.Request) -> web.StreamResponse:
    """Accept the end of an update, and name the new weights if a version is given."""
    version = (await _embedded_body(request, FinishedUpdate)).weight_version
    service = request.app[SERVICE]
    with service.metrics_source.operations.timed(WEIGHTS, "finish"):
        service.model.weight_version = service.model.weight_version if version is None else version
        service.model.has_reset_weights = False
    return json_reply({"message": "Weight update finished"})


async def weight_info(request: web.Request) -> web.StreamResponse:
    """Return the version of the weights, as it was last set."""
    return json_reply({"weight_version": request.app[SERVICE].model.weight_version})


async def update_weight_version(request: web.Request) -> web.StreamResponse:
    """Set the version of the present weights."""
    version = (await _embedded_body(request, WeightVersion)).new_version
    request.app[SERVICE].model.weight_version = version
    return json_reply({"success": True, "new_version": version})


async def weight_checker(request: web.Request) -> web.StreamResponse:
    """Return checksums of the weights, set the weights to zero, or compare checksums with given ones."""
    given = await _embedded_body(request, WeightCheck)
    service, baseline = request.app[SERVICE], given.baseline
    if given.action == "reset":
        service.model.has_reset_weights = True
        return json_reply({"status": "reset"})
    if given.action == "compare" and baseline is None:
        raise bad_request("action='compare' requires a 'baseline' object")
    checksums = dict(_weight_checksums(service.model))
    if given.action == "checksum" or baseline is None:
        return json_reply({"checksums": checksums})
    names = checksums.keys() | baseline.keys()
    mismatches = sorted(name for name in names if checksums.get(name) != baseline.get(name))
    return json_reply({"match": not mismatches, "mismatches": mismatches})


async def world_size(request: web.Request) -> web.StreamResponse:
    """Return the number of GPUs of the deployment, with or without data-parallel replicas."""
    deployment = request.app[SERVICE].model.deployment
    query = QueryFields(request.query)
    replicas = deployment.dp if query.flag("include_dp", True) else 1
    query.check()
    return json_reply({"world_size": deployment.tp * deployment.pp * replicas})


async def collective_rpc(request: web.Request) -> web.StreamResponse:
    """Accept the call; every worker returns null."""
    body = await read_object(request)
    if body.get("method") is None:
        raise bad_request("Missing 'method' in request body")
    arguments = body.get("args", [])
    if not isinstance(arguments, list | dict | str):
        raise ApiError(f"'{_TYPE_NAMES[type(arguments)]}' object is not iterable")
    for name in _RPC_MESSAGE_FIELDS:
        pending = [body.get(name)]
        while pending:
            found = pending.pop()
            if isinstance(found, dict):
                pending += [*found, *found.values()]
            elif isinstance(found, list):
                pending += found
            elif isinstance(found, str):
                try:
                    found.encode()
                except UnicodeEncodeError as error:
                    raise ApiError(str(error)) from None
    return json_reply({"results": [None] * request.app[SERVICE].model.deployment.tp})


_RPC_MESSAGE_FIELDS = ("method", "timeout", "args", "kwargs")
"""The message that vLLM sends to its workers, as UTF-8."""


_TYPE_NAMES: Mapping[type, str] = {int: "int", float: "float", bool: "bool", type(None): "NoneType"}
"""JSON types that Python cannot iterate over."""


async def _report_success(
    request: web.Request, operation: str, message: str, kind: type[RequestObject] | None = None
) -> web.StreamResponse:
    """Check the body and report success."""
    if kind is not None:
        await _embedded_body(request, kind)
    with request.app[SERVICE].metrics_source.operations.timed(WEIGHTS, operation):
        return json_reply({"message": message})


async def _embedded_body(request: web.Request, kind: type[BodyT]) -> BodyT:
    media_type = request.content_type
    is_json = media_type == "application/json" or (media_type[:12] == "application/" and media_type[-5:] == "+json")
    return read_embedded(await request.read(), is_json, kind)


def _weight_checksums(model: ServedModel) -> Iterator[tuple[str, str]]:
    """Yield the names of weights in vLLM's workers, each with a digest."""
    deployment, spec = model.deployment, model.deployment.model
    names = [_EMBEDDING, *(_LAYER.format(layer) for layer in range(spec.num_layers))]
    version = "zeros" if model.has_reset_weights else model.weight_version
    for replica in range(deployment.dp):
        for worker in range(deployment.tp):
            for name in names:
                digest = sha256(f"{spec.name} {version} {worker} {name}".encode("utf-8", "surrogatepass")).hexdigest()
                yield f"dp{replica}:pp0:pcp0:tp{worker}:{name}", digest
