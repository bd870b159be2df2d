"""CPU memory for KV blocks and the devices behind it, as the header of a trace and `--kv-offload-config` have them."""

from typing import Annotated, TypeAlias, TypedDict

from blis_sim.options.file_fields import Amount, AtLeastOne, Bounds, Count, Positive, Share

DEVICE_CLASSES = {
    "nvme_gen4": (7000.0, 5000.0, 80),
    "nvme_gen3": (3500.0, 3000.0, 100),
    "sata_ssd": (550.0, 500.0, 150),
    "cpu_dram": (20000.0, 20000.0, 1),
    "s3": (1000.0, 1000.0, 30000),
}
"""Bytes read and written in a microsecond, and the least time of a transfer in microseconds, as BLIS has them."""
Workers: TypeAlias = Annotated[int, Bounds(at_least=1, at_most=10_000)]


class Tier(TypedDict, total=False):
    """A device behind the CPU memory for KV blocks."""

    type: Annotated[str, Bounds(choices=("fs",))]
    root_dir: str
    n_read_threads: Workers
    n_write_threads: Workers
    locality: Annotated[str, Bounds(choices=("LOCAL", "REMOTE"))]
    enable_kv_events: bool
    direct_io: bool
    device_class: Annotated[str, Bounds(choices=DEVICE_CLASSES)]
    read_bandwidth: Positive
    write_bandwidth: Positive
    base_latency: Amount
    saturation_queue_depth: Workers
    single_transfer_fraction: Share
    latency_jitter_stddev: Amount


class KVOffload(TypedDict, total=False):
    """CPU memory for KV blocks, and the devices behind it."""

    cpu_bytes_to_use: Annotated[int, Bounds(at_least=1, at_most=2**60)]
    per_block_bytes: Count
    block_size: Count
    blocks_per_chunk: AtLeastOne
    tokens_per_hash: Count
    eviction_policy: Annotated[str, Bounds(choices=("lru",))]
    offload_prompt_only: bool
    self_describing_kv_events: bool
    secondary_tiers: list[Tier]
