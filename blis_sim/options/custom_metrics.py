"""Metrics of other packages: functions of a finished run, or of a live engine, that return a number."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from blis_sim.options.option import OptionError, option
from blis_sim.options.registry import Registry

METRICS: Registry[Callable[[Any], float]] = Registry("blis.metrics")
"""Metrics by name. None is built in."""

COLUMN_PREFIX = "custom_metrics_"
"""Begins the names of columns, so that no metric takes the name of a figure or a setting."""


@dataclass(frozen=True, slots=True)
class CustomMetric:
    """A metric that `--metric` names."""

    reference: str
    function: Callable[[Any], float]

    @property
    def name(self) -> str:
        """The last part of the reference: the function's name, or that of its entry point."""
        return self.reference.replace(":", ".").rpartition(".")[2]

    @property
    def help(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or self.reference).strip().partition("\n")[0]

    def value(self, measured: Any) -> float:
        """Return the number for a run or an engine. Raises OptionError where the function returns none or raises."""
        try:
            found = self.function(measured)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise OptionError(f"--metric {self.reference} failed{_line_of(error)}: {reason}") from error
        if not isinstance(found, Real) or not math.isfinite(found):
            raise OptionError(f"--metric {self.reference} must return a finite number, got {found!r}")
        return int(found) if isinstance(found, Integral) else float(found)


def metric_option(measured: str) -> Any:
    """Return the option of a command that measures `measured`."""
    return option(
        (),
        f"Function of your own that gets {measured} and returns a number. Several are separated by commas.",
        metavar="MODULE:FUNCTION,...",
        open_to=lambda: METRICS,
        suggested=METRICS.names,
    )


def custom_metrics(references: Sequence[str]) -> tuple[CustomMetric, ...]:
    """Return the metrics of these names. Raises OptionError for an unknown one and for two of one name."""
    found: dict[str, CustomMetric] = {}
    for reference in references:
        if reference not in METRICS:
            known = ", ".join(METRICS.names())
            raise OptionError(
                f"--metric must be MODULE:FUNCTION{f' or one of {known}' if known else ''}, got {reference!r}"
            )
        function = METRICS[reference]
        if not callable(function):
            raise OptionError(f"--metric {reference} must be a function, got {function!r}")
        metric = CustomMetric(reference, function)
        if metric.name in found:
            raise OptionError(f"--metric names {metric.name} twice: {found[metric.name].reference} and {reference}")
        found[metric.name] = metric
    return tuple(found.values())


def values_of(metrics: Sequence[CustomMetric], measured: Any) -> Mapping[str, float]:
    """Return the value of each metric by its name. Raises OptionError."""
    return {metric.name: metric.value(measured) for metric in metrics}


def _line_of(error: Exception) -> str:
    """Return file and line of the innermost call, in words."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" in {Path(trace.tb_frame.f_code.co_filename).name} line {trace.tb_lineno}"
