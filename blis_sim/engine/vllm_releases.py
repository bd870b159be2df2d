"""Defaults in which releases of vLLM differ, of those that change when tokens come."""

from typing import NamedTuple


class VllmRelease(NamedTuple):
    """The defaults of one release for an API server; those that no release changed are in `engine_defaults.py`."""

    async_scheduling: bool
    reserves_full_prompt: bool
    """Whether a request is admitted only when all of its prompt fits in the KV cache."""
    gpu_memory_utilization: float
    has_largest_limits: bool
    """Whether GPUs of at least 160 GiB have larger limits of a step than others."""


LATEST = "0.33"
VLLM_RELEASES = {
    "0.11": VllmRelease(
        async_scheduling=False, reserves_full_prompt=False, gpu_memory_utilization=0.9, has_largest_limits=False
    ),
    "0.15": VllmRelease(
        async_scheduling=True, reserves_full_prompt=False, gpu_memory_utilization=0.9, has_largest_limits=False
    ),
    "0.19": VllmRelease(
        async_scheduling=True, reserves_full_prompt=True, gpu_memory_utilization=0.9, has_largest_limits=False
    ),
    "0.23": VllmRelease(
        async_scheduling=True, reserves_full_prompt=True, gpu_memory_utilization=0.92, has_largest_limits=False
    ),
    LATEST: VllmRelease(
        async_scheduling=True, reserves_full_prompt=True, gpu_memory_utilization=0.92, has_largest_limits=True
    ),
}
"""Read in the source of each release, and for 0.15 in those of 0.14.1 and 0.16.0, which agree."""


def flag_or(given: bool | None, default: bool) -> bool:
    """Return the value of a flag, or the release's default where it was not given."""
    return default if given is None else given
