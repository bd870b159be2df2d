"""`blis serve`: what the command line needs to know of it."""

from blis_options import options_of
from mockserve.config import ServeOptions

__all__ = ["ServeOptions", "rewritten", "run"]

VLLM_SCHEDULING_FLAGS = frozenset(
    {
        "--no-async-scheduling",
        "--no-enable-chunked-prefill",
        "--no-enable-prefix-caching",
        "--no-scheduler-reserve-full-isl",
        "--prefill-schedule-interval",
        "--watermark",
    }
)
"""Flags that only work with vLLM's scheduling, and so choose it unless the user does."""


def rewritten(arguments: list[str]) -> list[str]:
    """A command line in vLLM's syntax, or ours, in ours. Raises BlisError for what vLLM would refuse."""
    from mockserve.vllm_arguments.rewrite import rewritten as from_vllm

    own = {flag for setting in options_of(ServeOptions) for flag in setting.flags}
    return from_vllm(arguments, own, VLLM_SCHEDULING_FLAGS)


def run(options: ServeOptions) -> int:
    """Serve until told to stop. Returns the exit code."""
    from mockserve.server import serve

    return serve(options)
