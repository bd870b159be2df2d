"""Develop and test around vLLM without a GPU: a simulated vLLM engine, a server timed by it, and the tools around both.

`run`, `replay`, `sweep`, `plan`, `calibrate`, `fit` and `server` do what the commands of `blis` do; see docs/api.md.
Importing this package loads nothing else: each name is loaded when it is named.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blis_sim.api.commands import (
        CalibrationResult,
        Coefficient,
        FitResult,
        Latency,
        MetricError,
        MissingExtraError,
        PlannedDeployment,
        PlanResult,
        RunResult,
        SweepPoint,
        SweepResult,
        Table,
        calibrate,
        fit,
        plan,
        replay,
        run,
        server,
        sweep,
    )
    from blis_sim.options import BlisError, OptionError
    from blis_sim.testing import Server, ServerError

    __version__: str

__all__ = [
    "BlisError",
    "CalibrationResult",
    "Coefficient",
    "FitResult",
    "Latency",
    "MetricError",
    "MissingExtraError",
    "OptionError",
    "PlanResult",
    "PlannedDeployment",
    "RunResult",
    "Server",
    "ServerError",
    "SweepPoint",
    "SweepResult",
    "Table",
    "__version__",
    "calibrate",
    "fit",
    "plan",
    "replay",
    "run",
    "server",
    "sweep",
]
"""The stable names. All others may change in any version."""

_SUBPACKAGES = ("api", "bench", "cli", "engine", "options", "report")


def __getattr__(name: str) -> Any:
    """Return `__version__`, the version of the installed distribution, a name of the interface, or a subpackage."""
    if name == "__version__":
        from importlib.metadata import version

        return version("blis-mockserve")
    from importlib import import_module

    if name in _SUBPACKAGES:
        return import_module(f"{__name__}.{name}")
    if name in __all__:
        home = "testing" if name == "ServerError" else "api.commands"
        return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBPACKAGES})
