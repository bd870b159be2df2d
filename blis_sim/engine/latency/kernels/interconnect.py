"""Time of exchanges between GPUs over links that were not measured: PCIe without peer access, and networks."""

import numpy as np

from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.kernels.grids import Times

STAGED_SHARE = 0.25
"""Share of a PCIe link's rate that an all-reduce reaches where the memory of the host stands between two GPUs: each
value is written to it and read from it. With this value two RTX PRO 6000 are predicted closest in a recording of
Qwen3-32B."""
STAGED_START_US = 30.0
NETWORK_SHARE = 0.8
NETWORK_START_US = 15.0
"""To start one of the steps of an exchange between nodes."""


def has_nvlink(gpu: GpuSpec, num_gpus: int) -> bool:
    """Whether NVLink joins so many of the GPUs."""
    return gpu.nvlink_gb_s > 0 and num_gpus <= gpu.nvlink_gpus


def staged_all_reduce_us(gpu: GpuSpec, num_gpus: int, message_bytes: Times) -> Times:
    """Return the time of a ring of GPUs on PCIe, whose data pass through the memory of the host."""
    rounds = 2 * (num_gpus - 1) / num_gpus
    rate = gpu.pcie_gb_s * STAGED_SHARE * 1e3  # bytes per microsecond
    times: Times = STAGED_START_US + rounds * message_bytes / rate
    return times


def between_nodes_us(gpu: GpuSpec, num_nodes: int, message_bytes: Times) -> Times:
    """Return the time of rings between nodes, after each node has summed up: each GPU carries a part of the message."""
    rounds = 2 * (num_nodes - 1) / num_nodes
    rate = gpu.network_gb_s * NETWORK_SHARE * 1e3
    starts = 2 * (num_nodes - 1) * NETWORK_START_US
    times: Times = starts + rounds * message_bytes / gpu.gpus_per_node / rate
    return times


def message_bytes(width: int, tokens: tuple[int, ...]) -> Times:
    """Return the bytes that are summed for so many tokens, in 16 bits."""
    return 2.0 * width * np.array(tokens, dtype=np.float64)
