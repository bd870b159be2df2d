"""The file of `--kv-offload-config`: CPU memory behind the KV cache, and devices behind that."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.file_parts import given, problem_in, read_part
from blis_sim.options import ExclusionError, OptionError, check_options, option
from blis_sim.options.kv_offload import DEVICE_CLASSES, KVOffload, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blis_sim.engine.deployment import Deployment
    from blis_sim.engine.offloading import Device

Options = TypeVar("Options", bound=ClusterOptions)


class OffloadFileKeys(TypedDict, total=False):
    """The keys of the file."""

    kv_offload: KVOffload


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadFileOptions:
    """CPU memory and devices behind the KV cache."""

    kv_offload_config: str | None = option(
        None,
        "CPU memory to which KV blocks are copied, and devices behind it (YAML, kv_offload). How they act "
        "depends on --engine.",
        metavar="FILE",
        heading="KV cache on devices",
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True)
class OffloadFile:
    """The content of a file: CPU memory and devices."""

    cpu_bytes: int
    prompt_only: bool
    devices: "tuple[Device, ...]"
    content: "Mapping[str, Any]"
    """The section itself, for the headers of traces."""


def read_offload(options: OffloadFileOptions, cluster: Options) -> tuple[Options, OffloadFile | None, list[str]]:
    """Return the options of a cluster with CPU memory and devices of the file, the file, and notes.

    Raises EngineError or OptionError.
    """
    if options.kv_offload_config is None:
        return cluster, None, []
    from blis_sim.engine.latency.catalogue import read_mapping

    path = Path(options.kv_offload_config)
    return with_offload(_offload_file(path, read_mapping(path)), cluster, f"{path}")


def with_offload(file: OffloadFile, cluster: Options, source: str) -> tuple[Options, OffloadFile, list[str]]:
    """Return what `read_offload` returns for a file that has been read from `source`."""
    deployment = cluster.deployment
    if deployment.kv_cpu_blocks or deployment.kv_offloading_size is not None:
        raise OptionError("--kv-offload-config excludes --kv-cpu-blocks and --kv-offloading-size, give one of them")
    if deployment.engine == "blis":
        return cluster, file, []
    if deployment.engine != "vllm":
        raise OptionError(f"--kv-offload-config needs --engine vllm or blis, got {deployment.engine}")
    notes = []
    if not file.prompt_only:
        notes.append(f"warning: offload_prompt_only of {source} is not modelled: KV blocks of replies stay on the GPU")
    size = file.cpu_bytes / 2**30
    deployment = replace(deployment, kv_offloading_size=size, kv_devices=file.devices)
    return replace(cluster, deployment=deployment), file, notes


def with_chain(file: OffloadFile | None, deployment: "Deployment", seed: int) -> "Deployment":
    """Return a deployment with BLIS's chain of CPU memory and devices, or with the seed of vLLM's devices.

    Raises EngineError.
    """
    if file is None:
        return deployment
    if deployment.config.offload is not None:
        config = replace(deployment.config, offload=replace(deployment.config.offload, seed=seed))
        return replace(deployment, config=config)
    from blis_sim.engine.memory.planner import kv_bytes_per_token
    from blis_sim.engine.offloading import OffloadChain

    config = deployment.config
    if config.lora is not None:
        raise ExclusionError("--kv-offload-config", "--lora-config", " with --engine blis")
    block_bytes = int(kv_bytes_per_token(deployment.model, deployment.tp, "blis") * config.block_size_tokens)
    chain = OffloadChain(
        num_blocks=file.cpu_bytes // block_bytes,
        block_bytes=block_bytes,
        prompt_only=file.prompt_only,
        devices=file.devices,
        seed=seed,
    )
    return replace(deployment, config=replace(config, offload_chain=chain))


def offload_of_header(path: Path, content: "Mapping[str, Any]") -> OffloadFile:
    """Return the chain that the header of a simulated trace describes. Raises EngineError."""
    return _offload_file(path, {"kv_offload": content})


def _offload_file(path: Path, content: "Mapping[str, Any]") -> OffloadFile:
    section: KVOffload = read_part(path, OffloadFileKeys, content).get("kv_offload", {})
    if "cpu_bytes_to_use" not in section:
        raise problem_in(path, "kv_offload", "cpu_bytes_to_use must be given")
    if section.get("blocks_per_chunk", 1) != 1:
        raise problem_in(path, "kv_offload", "blocks_per_chunk must be 1")
    devices = tuple(_device_of(path, *each) for each in enumerate(section.get("secondary_tiers", [])))
    prompt_only = section.get("offload_prompt_only", True)
    return OffloadFile(section["cpu_bytes_to_use"], prompt_only, devices, content["kv_offload"])


def _device_of(path: Path, number: int, keys: Tier) -> "Device":
    within = f"kv_offload.secondary_tiers[{number}]"
    for key, allowed in (("type", "fs"), ("direct_io", "true or false")):
        if key not in keys:
            raise problem_in(path, within, f"{key} must be given, {allowed}")
    device = device_of(keys)
    if device is None:
        needed = "device_class, or read_bandwidth, write_bandwidth and base_latency, must be given"
        raise problem_in(path, within, needed)
    return device


def device_of(keys: Tier) -> "Device | None":
    """Return the device that a tier describes; None where something of its speed is missing."""
    from blis_sim.engine.offloading import Device

    read, write, base_us = DEVICE_CLASSES[keys["device_class"]] if "device_class" in keys else (None, None, None)
    read, write = keys.get("read_bandwidth", read), keys.get("write_bandwidth", write)
    base_us = round(keys["base_latency"]) if "base_latency" in keys else base_us
    if read is None or write is None or base_us is None:
        return None
    own = given(
        keys,
        num_readers="n_read_threads",
        num_writers="n_write_threads",
        saturation_depth="saturation_queue_depth",
        single_fraction="single_transfer_fraction",
        jitter_stdev="latency_jitter_stddev",
        reports_writes="enable_kv_events",
        locality="locality",
    )
    return Device(read_bytes_us=read, write_bytes_us=write, base_us=base_us, **own)
