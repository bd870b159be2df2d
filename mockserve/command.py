"""`blis serve` for the command line."""

from blis_sim.options.text import flags_of
from mockserve.options.serve import ServeOptions

__all__ = ["ServeOptions", "rewritten", "run"]


def rewritten(arguments: list[str]) -> list[str]:
    """Convert a command line with vLLM's syntax to ours. Raises BlisError for arguments that vLLM would refuse."""
    from mockserve.vllm_arguments.rewrite import rewritten as from_vllm
    from mockserve.vllm_arguments.table import read_table

    return from_vllm(arguments, flags_of(ServeOptions), read_table())


def run(options: ServeOptions) -> int:
    """Serve until a signal ends it. Returns the exit code."""
    from mockserve.server import serve

    return serve(options.endpoints)
