"""The deployment of a plan: the command line of `vllm serve` for each pool, and Kubernetes manifests."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_sim.bench.capacity.search import Trial
from blis_sim.engine.latency.catalogue.entries import has_model, model_entry, short_name
from traces.text_file import naming_write_errors, write_text

_PORT = 8000
_IMAGE = "vllm/vllm-openai:v0.33.0"
_STARTUP_S = 1800
"""Seconds that weights may take to load before Kubernetes restarts a pod."""
_CONNECTOR = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal instances of the deployment: their number, the GPUs of each, and the arguments of `vllm serve`."""

    name: str
    count: int
    gpus: int
    arguments: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command line of one instance, for a shell."""
        return "vllm serve " + " ".join(f"'{each}'" if "{" in each else each for each in self.arguments)


def pools_of(winner: Trial, model: str) -> list[Pool]:
    """Return the pools of a deployment."""
    candidate = winner.candidate
    if not candidate.is_split:
        arguments = _arguments(candidate.settings, model, candidate.settings["tp"])
        return [Pool("server", winner.counts[0], candidate.gpus_per_instance[0], arguments)]
    return [
        Pool(
            role,
            winner.counts[number],
            candidate.gpus_per_instance[number],
            (
                *_arguments(candidate.settings, model, candidate.settings[f"{role}_tp"]),
                "--kv-transfer-config",
                _CONNECTOR,
            ),
        )
        for number, role in enumerate(("prefill", "decode"))
    ]


_PROPAGATED_ERRORS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "block_size",
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "quantization",
    "dtype",
    "cpu_offload_gb",
    "long_prefill_token_threshold",
    "scheduling_policy",
    "speculative_config",
)
"""Settings of a simulation that are flags of `vllm serve` with the same value."""
_SWITCHES = ("enable_expert_parallel", "enforce_eager")


def _arguments(settings: Mapping[str, Any], model: str, tp: int) -> tuple[str, ...]:
    found = [served_name(model), "--tensor-parallel-size", str(tp)]
    if settings.get("pp", 1) > 1:
        found += ["--pipeline-parallel-size", str(settings["pp"])]
    for name in _PROPAGATED_ERRORS:
        if settings.get(name):
            found += [f"--{name.replace('_', '-')}", str(settings[name])]
    found += [f"--{name.replace('_', '-')}" for name in _SWITCHES if settings.get(name)]
    for name in ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling"):
        if settings.get(name) is False:
            found.append(f"--no-{name.replace('_', '-')}")
    return tuple(found)


def served_name(model: str) -> str:
    """Return the name under which vLLM finds the model."""
    if not has_model(model):
        return model
    entry, short = model_entry(model), short_name(model)
    if short not in {entry.name, *(each.lower() for each in entry.aliases)}:
        return f"{entry.organisation}/{short}-instruct"  # a family that has no base model of this name
    return f"{entry.organisation}/{model}" if entry.organisation and "/" not in model else model


def write_manifests(folder: str, winner: Trial, model: str) -> None:
    """Write a Deployment and a Service for each pool, as JSON documents that `kubectl apply -f DIR` takes.

    Raises TraceError when a file cannot be written.
    """
    path = Path(folder)
    with naming_write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    for pool in pools_of(winner, model):
        for kind, document in _documents(pool, winner.candidate.gpu):
            write_text(path / f"{pool.name}-{kind}.json", json.dumps(document, indent=2) + "\n")


def _documents(pool: Pool, gpu: str) -> Iterator[tuple[str, dict[str, Any]]]:
    name = f"vllm-{pool.name}"
    labels = {"app": name}
    probe = {"httpGet": {"path": "/health", "port": _PORT}}
    container = {
        "name": "vllm",
        "image": _IMAGE,
        "args": [*pool.arguments, "--port", str(_PORT)],
        "ports": [{"containerPort": _PORT, "name": "http"}],
        "resources": {"limits": {"nvidia.com/gpu": str(pool.gpus)}},
        "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": _STARTUP_S // 10},
        "readinessProbe": {**probe, "periodSeconds": 5},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 3},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    pod = {
        "metadata": {"labels": labels, "annotations": {"blis/planned-gpu": gpu}},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}],
        },
    }
    yield (
        "deployment",
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {"replicas": pool.count, "selector": {"matchLabels": labels}, "template": pod},
        },
    )
    ports = [{"name": "http", "port": _PORT, "targetPort": "http"}]
    yield (
        "service",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": labels},
            "spec": {"selector": labels, "ports": ports},
        },
    )
