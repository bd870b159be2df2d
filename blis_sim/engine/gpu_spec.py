"""An accelerator, as far as time and memory depend on it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """Peak rates of one GPU and the fraction of the compute peak that inference reaches.

    `tflops` and its kin are 1e12 dense operations per second in 16, 8 and 4 bits (0: not in that width), without
    sparsity. `bandwidth_tb_s` is 1e12 bytes per second, `memory_gib` is 2**30 bytes as the GPU is sold and
    `cuda_memory_gib` as CUDA reports it. `compute_capability` is NVIDIA's, such as 9.0 for Hopper, or what ROCm reports
    in its place. A utilisation, a memory or a capability of 0 means it is not known.

    Links carry 1e9 bytes per second in each direction for one GPU: `nvlink_gb_s` among the `nvlink_gpus` that NVLink or
    another fabric of the maker joins (0: none), `pcie_gb_s` to the CPU and to GPUs that NVLink does not reach, and
    `network_gb_s` to another node. A node of the usual server has `gpus_per_node` GPUs.
    """

    name: str
    tflops: float
    bandwidth_tb_s: float
    tflops_fp8: float = 0.0
    tflops_fp4: float = 0.0
    tflops_int8: float = 0.0
    mfu_prefill: float = 0.0
    mfu_decode: float = 0.0
    memory_gib: float = 0.0
    compute_capability: float = 0.0
    cuda_memory_gib: float = 0.0
    nvlink_gb_s: float = 0.0
    nvlink_gpus: int = 1
    pcie_gb_s: float = 0.0
    network_gb_s: float = 0.0
    gpus_per_node: int = 8

    def peak_tflops(self, bytes_per_weight: float) -> float:
        """The peak for weights of that width: FP8 only for exactly one byte and where the GPU has it."""
        return self.tflops_fp8 if bytes_per_weight == 1.0 and self.tflops_fp8 > 0 else self.tflops

    def link_gb_s(self, num_gpus: int) -> float:
        """Return the rate of the slowest link, in each direction, that an exchange among `num_gpus` crosses.

        GPUs fill a node before the next one; 0 means it is not known.
        """
        if self.nvlink_gb_s and num_gpus <= self.nvlink_gpus:
            return self.nvlink_gb_s
        return self.pcie_gb_s if num_gpus <= self.gpus_per_node else self.network_gb_s
