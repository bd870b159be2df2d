"""`sweep` and `plan`: many simulations."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from blis_sim.api.given import find_setting, signature_of, value_from_python, values_from_kwargs
from blis_sim.api.settings import PlanSettings, SweepSettings
from blis_sim.api.tables import Table, table_of
from blis_sim.options import OptionError, options_from

if TYPE_CHECKING:
    from blis_sim.bench.capacity.answer import CapacityPlan
    from blis_sim.bench.runner.commands import Simulation
    from blis_sim.bench.sweep.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One simulation of a sweep: the settings that vary, and its figures, or the reason why it has none."""

    settings: Mapping[str, Any]
    figures: Mapping[str, float | int | None]
    error: str


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """The result of a sweep: its points in order, and their Pareto frontier."""

    points: tuple[SweepPoint, ...]
    frontier: tuple[SweepPoint, ...]
    notes: tuple[str, ...]

    @property
    def table(self) -> Table:
        """A row for each point: the settings that vary, the figures, the error."""
        return table_of([{**each.settings, **each.figures, "error": each.error} for each in self.points])

    def to_pandas(self) -> Any:
        """Return the points as a pandas.DataFrame. Raises MissingExtraError without pandas."""
        return self.table.to_pandas()

    def to_arrow(self) -> Any:
        """Return the points as a pyarrow.Table. Raises MissingExtraError without pyarrow."""
        return self.table.to_arrow()

    def __str__(self) -> str:
        failed = sum(bool(each.error) for each in self.points)
        return f"{len(self.points)} points, {failed} of them failed, {len(self.frontier)} on the Pareto frontier"


def sweep(
    vary: Mapping[str | tuple[str, ...], Sequence[Any]],
    *,
    trace: str | PathLike[str] | None = None,
    **settings: Unpack[SweepSettings],
) -> SweepResult:
    """Simulate every combination of the values in `vary`, as `blis sweep` does, on all cores.

    Settings that vary together are a tuple of names, with a tuple of values for each point.
    With `trace` a recording is replayed, else a workload is generated. Points are kept in a file only where `output`
    names one. A point that cannot be computed has its error. Raises BlisError for bad input.
    """
    from blis_sim.bench.runner.plan import Plan
    from blis_sim.bench.sweep.command import SweepOptions, compute_sweep
    from blis_sim.bench.sweep.report import frontier
    from blis_sim.options.progress import no_progress

    found, (own, shared) = _simulation(SweepOptions, settings, trace, "sweep")
    varied, coupled = _varied(found.options, vary)
    together = {*varied, *(name for names in coupled for name in names)}
    plan = Plan(found, {name: each for name, each in shared.items() if name not in together}, varied, (), coupled)
    notes: list[str] = []
    with _kept(own):
        rows = compute_sweep(options_from(SweepOptions, **own), plan, notes.append, no_progress).rows
    points = {row.key: _point(row) for row in rows}
    return SweepResult(
        points=tuple(points.values()), frontier=tuple(points[row.key] for row in frontier(rows)), notes=tuple(notes)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDeployment:
    """A deployment that meets the targets: instances by pool, costs, what binds, and the figures of its simulation.

    `counts` has one number of instances, or those of the prefill and the decode pool. `headroom` is the share of the
    limit of `binds` that is left.
    """

    gpu: str
    shape: str
    label: str
    counts: tuple[int, ...]
    num_gpus: int
    dollars_per_hour: float
    dollars_per_month: float
    dollars_per_million_tokens: float
    binds: str
    headroom: float
    settings: Mapping[str, Any]
    figures: Mapping[str, float | int | None]


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """The result of a plan: the cheapest deployment of each GPU type and shape, and the cheapest of all."""

    cheapest: PlannedDeployment | None
    """None where no deployment that was tried meets the targets."""
    deployments: tuple[PlannedDeployment, ...]
    """The cheapest of each GPU type and shape that meets the targets, the cheapest first."""
    commands: tuple[str, ...]
    """The command line of `vllm serve` of each pool of the cheapest deployment."""
    document: Mapping[str, Any] = field(repr=False)
    notes: tuple[str, ...] = ()
    answer: "CapacityPlan" = field(repr=False)
    """The answer with all of its parts. Its attributes are not stable."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with --format json."""
        return dict(self.document)

    @property
    def table(self) -> Table:
        """A row for each deployment: GPU, shape, counts, costs, what binds, the figures."""
        names = [each.name for each in fields(PlannedDeployment) if each.name not in ("counts", "settings", "figures")]
        return table_of(
            [
                {**{name: getattr(each, name) for name in names}, "counts": list(each.counts), **each.figures}
                for each in self.deployments
            ]
        )

    def to_pandas(self) -> Any:
        """Return the deployments as a pandas.DataFrame. Raises MissingExtraError without pandas."""
        return self.table.to_pandas()

    def to_arrow(self) -> Any:
        """Return the deployments as a pyarrow.Table. Raises MissingExtraError without pyarrow."""
        return self.table.to_arrow()

    def __str__(self) -> str:
        from blis_sim.bench.capacity.report import as_text

        return as_text(self.answer).rstrip("\n")


def plan(*, trace: str | PathLike[str] | None = None, **settings: Unpack[PlanSettings]) -> PlanResult:
    """Find the cheapest deployment that meets latency targets under a load, as `blis plan` does, on all cores.

    The load is a generated workload, or with `trace` a recording. Raises BlisError for bad input.
    """
    from blis_sim.bench.capacity.command import PlanOptions, find_plan
    from blis_sim.bench.capacity.report import as_json
    from blis_sim.bench.runner.plan import Plan

    found, (own, shared) = _simulation(PlanOptions, settings, trace, "plan")
    notes: list[str] = []
    answer = find_plan(options_from(PlanOptions, **own), Plan(found, shared, {}), notes.append)
    document = json.loads(as_json(answer))
    met = [_deployment(each) for each in document["answers"] if each["met"]]
    cheapest = document["cheapest"]
    return PlanResult(
        cheapest=None if cheapest is None else _deployment(cheapest),
        deployments=tuple(sorted(met, key=lambda each: each.dollars_per_hour)),
        commands=() if cheapest is None else tuple(each["command"] for each in cheapest["commands"]),
        document=document,
        notes=tuple(notes),
        answer=answer,
    )


sweep.__signature__ = signature_of(SweepSettings, sweep)  # type: ignore[attr-defined]
plan.__signature__ = signature_of(PlanSettings, plan)  # type: ignore[attr-defined]


def _simulation(
    options_class: type, given: Mapping[str, Any], trace: str | PathLike[str] | None, function: str
) -> "tuple[Simulation, Sequence[dict[str, Any]]]":
    """Return the simulated command, and the values of the options class and of that command."""
    from blis_sim.bench.runner.commands import simulation

    found = simulation("run" if trace is None else "replay")
    own, shared = values_from_kwargs([options_class, found.options], given, function)
    return found, (own, shared if trace is None else {**shared, "trace": fspath(trace)})


@contextmanager
def _kept(own: dict[str, Any]) -> Iterator[None]:
    """Yield the file for the points of a sweep: the given one, else a temporary one."""
    if "output" in own:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        own["output"] = str(Path(folder) / "sweep.csv")
        yield


def _varied(
    options_class: type, vary: Mapping[str | tuple[str, ...], Sequence[Any]]
) -> tuple[dict[str, Sequence[Any]], dict[tuple[str, ...], Sequence[tuple[Any, ...]]]]:
    """The values of settings that vary alone, and of those that vary together."""
    alone: dict[str, Sequence[Any]] = {}
    together: dict[tuple[str, ...], Sequence[tuple[Any, ...]]] = {}
    for names, values in vary.items():
        if isinstance(names, str):
            setting = find_setting(options_class, names, "sweep")
            alone[setting.name] = _distinct(names, [value_from_python(setting, each) for each in values])
            continue
        settings = [find_setting(options_class, name, "sweep") for name in names]
        rows = [tuple(map(value_from_python, settings, each)) for each in values]
        if any(len(each) != len(names) for each in rows):
            raise OptionError(f"vary must have {len(names)} values for each point of {names}")
        together[tuple(each.name for each in settings)] = _distinct(str(names), rows)
    return alone, together


def _distinct(name: str, values: list[Any]) -> list[Any]:
    if not values or len(set(values)) < len(values):
        raise OptionError(f"vary must have values for {name}, and each once, got {values!r}")
    return values


def _point(row: "Row") -> SweepPoint:
    return SweepPoint(settings=row.point.varied, figures=row.outcome.figures, error=row.outcome.error)


def _deployment(found: Mapping[str, Any]) -> PlannedDeployment:
    names = ("gpu", "shape", "label", "binds", "headroom", "settings", "figures")
    costs = ("dollars_per_hour", "dollars_per_month", "dollars_per_million_tokens")
    return PlannedDeployment(
        counts=tuple(found["counts"]), num_gpus=found["gpus"], **{name: found[name] for name in (*names, *costs)}
    )
