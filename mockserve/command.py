"""`blis serve`: what the command line needs to know of it."""

from mockserve.config import ServeOptions

__all__ = ["ServeOptions", "run"]


def run(options: ServeOptions) -> int:
    """Serve until told to stop. Returns the exit code."""
    from mockserve.server import serve

    return serve(options)
