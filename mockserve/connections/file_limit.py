"""How many connections the operating system lets a server have: each is an open file."""

import logging

WANTED_OPEN_FILES = 65_535
"""What vLLM asks for."""

_logger = logging.getLogger(__name__)


def raise_file_limit(wanted: int = WANTED_OPEN_FILES) -> int | None:
    """Let this process have `wanted` files open, or as many as it may. Returns how many; None where nobody knows."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= possible:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    except (OSError, ValueError) as error:
        _logger.warning("only %d files may be open, connections included: %s; see ulimit -n", soft, error)
        return soft
    return possible
