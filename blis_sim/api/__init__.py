"""The Python interface: functions that act as the commands do, return typed results and print nothing.

`commands.py` has the functions and makes options of their keyword arguments. `settings.py` is generated and lists these
arguments, one for each setting of the command. `import blis_sim` offers the names in `__all__`.
"""

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
from blis_sim.cli.search_path import load_own_packages
from blis_sim.options import BlisError, OptionError
from blis_sim.testing import Server, ServerError

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
    "calibrate",
    "fit",
    "plan",
    "replay",
    "run",
    "server",
    "sweep",
]

load_own_packages()
