"""The Python interface: functions that act as the commands do, return typed results and print nothing.

`simulating.py` has `run`, `replay` and `server`, `searching.py` `sweep` and `plan`, `comparing.py` `calibrate` and
`fit`. `settings.py`, which is generated, has their keyword arguments, one for each setting of the command, and
`given.py` makes options of them. `import blis_sim` offers the names of `__all__`.
"""

from blis_sim.api.comparing import CalibrationResult, Coefficient, FitResult, MetricError, calibrate, fit
from blis_sim.api.searching import PlannedDeployment, PlanResult, SweepPoint, SweepResult, plan, sweep
from blis_sim.api.simulating import Latency, RunResult, replay, run, server
from blis_sim.api.tables import MissingExtraError, Table
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
