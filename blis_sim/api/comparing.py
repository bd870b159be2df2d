"""`calibrate` and `fit`: recordings against simulations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from blis_sim.api.given import options_from_kwargs, signature_of
from blis_sim.api.settings import CalibrateSettings, FitSettings
from blis_sim.api.simulating import RunResult
from blis_sim.api.tables import Table, table_of

if TYPE_CHECKING:
    from calibrate.calibration import Calibration
    from calibrate.compare import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricError:
    """One latency of a recording against its simulation, over all requests that have it on both sides.

    `mape` is the mean absolute error of a request as a fraction, `mean_error` that of the mean and `p99_error` that of
    the 99th percentile, both signed. `pearson_r` is None where nothing correlates.
    """

    count: int
    mape: float
    pearson_r: float | None
    mean_error: float
    p99_error: float
    grade: str


@dataclass(frozen=True, kw_only=True)
class CalibrationResult:
    """The result of a calibration. `metrics` has ttft and e2e, and itl where token times are known."""

    metrics: Mapping[str, MetricError]
    noise_floor: Mapping[str, MetricError]
    """Errors of a second recording as a prediction of the first; empty without a second recording."""
    in_words: tuple[str, ...]
    """Findings as sentences."""
    notes: tuple[str, ...]
    document: Mapping[str, Any] = field(repr=False)
    calibration: "Calibration" = field(repr=False)
    """The comparison with all of its parts. Its attributes are not stable."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command writes with --report."""
        return dict(self.document)

    @cached_property
    def requests(self) -> Table:
        """Each request that both sides have: recorded and simulated latencies."""
        return _pairs(self.calibration)

    def to_pandas(self) -> Any:
        """Return the requests as a pandas.DataFrame. Raises MissingExtraError without pandas."""
        return self.requests.to_pandas()

    def to_arrow(self) -> Any:
        """Return the requests as a pyarrow.Table. Raises MissingExtraError without pyarrow."""
        return self.requests.to_arrow()

    def __str__(self) -> str:
        return "; ".join(
            f"{name.upper()}: MAPE {each.mape:.1%}, mean {each.mean_error:+.1%}, {each.grade} ({each.count} requests)"
            for name, each in self.metrics.items()
        )


def calibrate(
    trace: str | PathLike[str], simulated: RunResult | None = None, **settings: Unpack[CalibrateSettings]
) -> CalibrationResult:
    """Compare a recording with a simulation of it, as `blis calibrate` does.

    The simulation is the result of `replay`, or the file of results that `sim_results` names. Files that settings name
    are written; nothing is printed. Raises BlisError for bad input.
    """
    from calibrate.command import CalibrateOptions, compare_runs
    from calibrate.report import json_content

    if simulated is not None and "sim_results" in settings:
        raise TypeError("calibrate() takes either the result of replay() or sim_results, got both")
    more = {} if simulated is None else {"sim_results": "the simulation"}
    options = options_from_kwargs(CalibrateOptions, settings, "calibrate", trace=fspath(trace), **more)
    notes: list[str] = []
    found, floor = compare_runs(options, None if simulated is None else _results(simulated), notes.append)
    document = json_content(found, floor, compat=False)
    return CalibrationResult(
        metrics={name: _error(each) for name, each in found.metrics.items()},
        noise_floor={name: _error(each) for name, each in (floor or {}).items()},
        in_words=tuple(document["in_words"]),
        notes=tuple(notes),
        document=document,
        calibration=found,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """One learned coefficient, with the standard deviation of what is known of it."""

    name: str
    value: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """The result of `fit`: coefficients of a latency model, and their errors on requests that were not learned from."""

    latency_model: str
    coefficients: tuple[Coefficient, ...]
    held_out: tuple[Mapping[str, Any], ...]
    """Errors on the last fifth of each recording, predicted by what the rest teaches."""
    notes: tuple[str, ...]
    content: Mapping[str, Any] = field(repr=False)
    """The content of the file of coefficients."""

    def save(self, path: str | PathLike[str]) -> str:
        """Write the file that the setting `coefficients` takes, and return its path. Raises BlisError."""
        from calibrate.fit.coefficients_file import text_of
        from traces.text_file import write_text

        write_text(Path(path), text_of(dict(self.content)))
        return fspath(path)

    @property
    def table(self) -> Table:
        """A row for each coefficient."""
        return table_of([{"name": each.name, "value": each.value, "spread": each.spread} for each in self.coefficients])

    def to_pandas(self) -> Any:
        """Return the coefficients as a pandas.DataFrame. Raises MissingExtraError without pandas."""
        return self.table.to_pandas()

    def to_arrow(self) -> Any:
        """Return the coefficients as a pyarrow.Table. Raises MissingExtraError without pyarrow."""
        return self.table.to_arrow()


def fit(traces: str | PathLike[str] | Sequence[str | PathLike[str]], **settings: Unpack[FitSettings]) -> FitResult:
    """Learn the coefficients of a latency model from recordings of one server, as `blis fit` does.

    A file is written only where `output` names one. Raises BlisError for bad input.
    """
    from blis_sim.options.progress import no_progress
    from calibrate.fit.command import FitOptions, learn_coefficients

    given = [traces] if isinstance(traces, str | PathLike) else traces
    options = options_from_kwargs(FitOptions, settings, "fit", traces=tuple(map(fspath, given)))
    notes: list[str] = []
    fitted = learn_coefficients(options, notes.append, no_progress)
    terms, estimate = fitted.deployed.terms, fitted.learned.estimate
    values = zip(terms.names, estimate.values.tolist(), estimate.spreads.tolist(), strict=True)
    result = FitResult(
        latency_model=fitted.deployed.latency_model,
        coefficients=tuple(Coefficient(name=name, value=value, spread=spread) for name, value, spread in values),
        held_out=tuple(fitted.content["held_out"]),
        notes=tuple(notes),
        content=fitted.content,
    )
    if "output" in settings:
        result.save(options.output)
    return result


calibrate.__signature__ = signature_of(CalibrateSettings, calibrate)  # type: ignore[attr-defined]
fit.__signature__ = signature_of(FitSettings, fit)  # type: ignore[attr-defined]


def _results(simulated: RunResult) -> list[Any]:
    from replay.output.metrics import result_rows

    outcome = simulated.outcome
    return list(result_rows(outcome.simulated.requests, outcome.sending.is_chosen_by_run))


def _error(found: "Comparison") -> MetricError:
    return MetricError(
        count=found.count,
        mape=found.mape,
        pearson_r=found.pearson_r,
        mean_error=_relative(found.real.mean, found.sim.mean),
        p99_error=_relative(found.real.p99, found.sim.p99),
        grade=found.quality,
    )


def _relative(real: float, simulated: float) -> float:
    return simulated / real - 1 if real else 0.0


def _pairs(found: "Calibration") -> Table:
    numbers = [row.request_id for row in found.pairing.rows]
    columns: dict[str, list[Any]] = {"request_id": numbers}
    for name, values in found.values.items():
        times = zip(values.real_us.tolist(), values.sim_us.tolist(), strict=True)
        by_number = dict(zip((row.request_id for row in values.rows), times, strict=True))
        for place, side in enumerate(("recorded", found.other)):
            columns[f"{side}_{name}_ms"] = [
                by_number[number][place] / 1000 if number in by_number else None for number in numbers
            ]
    return Table(columns)
