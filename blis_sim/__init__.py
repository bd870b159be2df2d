"""A simulated vLLM engine, and what the commands of blis share. Importing this package loads nothing else."""

from typing import Any

_SUBPACKAGES = ("bench", "cli", "engine", "options")


def __getattr__(name: str) -> Any:
    """Return `__version__`, the version of the installed distribution, or a subpackage, imported when it is named."""
    if name == "__version__":
        from importlib.metadata import version

        return version("blis-mockserve")
    if name in _SUBPACKAGES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "__version__", *_SUBPACKAGES])
