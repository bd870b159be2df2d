"""A simulated vLLM engine, and what the commands of blis share. Importing this package loads nothing else."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Return `__version__`, the version of the installed distribution."""
    if name == "__version__":
        from importlib.metadata import version

        return version("blis-mockserve")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
