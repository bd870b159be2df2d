"""What an accelerator can do, as far as time and memory depend on it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """Peak rates of one GPU and the fraction of the compute peak that inference reaches.

    `tflops` and `tflops_fp8` are 1e12 operations per second (0: no FP8), `bandwidth_tb_s` is 1e12 bytes per second,
    `memory_gib` is 2**30 bytes as the GPU is sold and `cuda_memory_gib` as CUDA reports it. `compute_capability` is
    NVIDIA's, such as 9.0 for Hopper. A utilisation, a memory or a capability of 0 means it is not known.
    """

    name: str
    tflops: float
    bandwidth_tb_s: float
    tflops_fp8: float = 0.0
    mfu_prefill: float = 0.0
    mfu_decode: float = 0.0
    memory_gib: float = 0.0
    compute_capability: float = 0.0
    cuda_memory_gib: float = 0.0

    def peak_tflops(self, bytes_per_weight: float) -> float:
        """The peak for weights of that width: FP8 only for exactly one byte and where the GPU has it."""
        return self.tflops_fp8 if bytes_per_weight == 1.0 and self.tflops_fp8 > 0 else self.tflops
