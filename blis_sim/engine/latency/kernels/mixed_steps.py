"""The extra cost of requests that decode in a step that has prompts, too, by the attention kernels of the GPU."""

from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.kernels.operations import HeadAttention, StepOperations

_AMPERE, _HOPPER, _BLACKWELL = 8, 9, 10
_ROWS_OF_FLASH_ATTENTION_2 = 64


def has_one_call(operations: StepOperations, gpu: GpuSpec) -> bool:
    """Return whether one kernel per layer computes the attention of prompts and of requests that decode.

    FlashAttention does: version 3 on Hopper, version 2 where `decode_rows` has rows. FlashInfer and latent attention
    have one call for each.
    """
    mixers = [attention for attention, _ in operations.attention]
    is_hopper = int(gpu.compute_capability) == _HOPPER
    has_version_3 = is_hopper and bool(mixers) and all(isinstance(each, HeadAttention) for each in mixers)
    return has_version_3 or decode_rows(operations, gpu) > 0


def decode_rows(operations: StepOperations, gpu: GpuSpec) -> int:
    """Return the prompt tokens that a request which decodes counts as in the attention of a step with prompts.

    0 where it costs what it costs without them. FlashAttention computes a whole batch in one call. Version 3, on
    Hopper, always packs the query heads that share KV into one tile; version 2, on all other GPUs but the first
    Blackwell, does so only where no request has more than one new token. Beside a prompt each query head gets a tile of
    64 rows, of which one is used. FlashInfer, which vLLM takes on Blackwell and for KV caches in FP8 beside version 2,
    and latent attention have one call for prompts and one for decodes.
    """
    mixers = [attention for attention, _ in operations.attention]
    uses_half = all(isinstance(each, HeadAttention) and each.kv_dtype == "bfloat16" for each in mixers)
    has_version_2 = int(gpu.compute_capability) >= _AMPERE and int(gpu.compute_capability) not in (_HOPPER, _BLACKWELL)
    return _ROWS_OF_FLASH_ATTENTION_2 if mixers and uses_half and has_version_2 else 0
