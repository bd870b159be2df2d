"""ServeGen as the reference converts it."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from blis_sim.wings.trace_formats.servegen import (
    PERIODS,
    ClassAssignment,
    PeriodTiming,
    active_at,
    cohorts_of,
    read_chunks,
)
from tests.traces.importers.test_reference_conversions import golden
from traces.importers.registry import ConvertOptions, import_from
from traces.workload.spec import Cohort

_CLASSES = ("critical", "standard", "batch", "sheddable", "background")
_WINDOW_S = 1200


@pytest.mark.parametrize(
    ("name", "timing", "periods"),
    [
        ("servegen_tiny.converted.yaml", PeriodTiming(window_s=600, drain_s=180), tuple(PERIODS)),
        ("servegen_tiny.morning.yaml", PeriodTiming(window_s=60, drain_s=10), ("morning",)),
    ],
)
def test_servegen_dealt_as_the_reference_dealt(
    name: str, timing: PeriodTiming, periods: tuple[str, ...], reference: Path
) -> None:
    expected = golden(reference, name)
    chunks = read_chunks(reference / "golden/tools/convert/servegen_tiny", Counter())
    every = golden(reference, "servegen_tiny.converted.yaml").cohorts
    assignment: ClassAssignment = {
        period: [clients_of(chunks, every, period, each) for each in _CLASSES] for period in PERIODS
    }
    found = [cohort for cohort in cohorts_of(assignment, timing) if cohort.id.split("-")[0] in periods]
    assert [cohort.id for cohort in found] == [cohort.id for cohort in expected.cohorts]
    for cohort, theirs in zip(found, expected.cohorts, strict=True):
        assert numbers(cohort) == pytest.approx(numbers(theirs), rel=1e-9)
        assert words(cohort) == words(theirs)


def test_servegen_takes_every_active_client_once_and_notes_what_it_leaves_out(reference: Path) -> None:
    options = ConvertOptions(format="servegen", file=str(reference / "golden/tools/convert/servegen_tiny"))
    imported = import_from(options)
    assert imported.spec is not None
    assert sum(cohort.population for cohort in imported.spec.cohorts) == 18
    assert imported.left_out["moments outside the three windows taken"] == 6 * 9 - 18
    assert import_from(options) == imported


def clients_of(chunks: Any, cohorts: tuple[Cohort, ...], period: str, slo_class: str) -> list[Any]:
    """The clients whose rates and coefficients of variation add up to what the reference's cohort has."""
    (cohort,) = [each for each in cohorts if each.id == f"{period}-{slo_class}"]
    active = active_at(chunks, PERIODS[period] + _WINDOW_S)
    assert cohort.spike is not None
    if cohort.population == 1:
        return [each for each in active if each[1].rate == pytest.approx(cohort.spike.trace_rate)]
    pairs = [[one, other] for one in active for other in active if one[1].rate < other[1].rate]
    singles = {
        each.spike.trace_rate for each in cohorts if each.population == 1 and each.id.startswith(period) and each.spike
    }
    return next(
        pair
        for pair in pairs
        if sum(moment.rate for _, moment in pair) == pytest.approx(cohort.spike.trace_rate)
        and not singles & {moment.rate for _, moment in pair}
    )


def numbers(cohort: Cohort) -> list[float]:
    assert cohort.spike is not None
    arrival = [cohort.arrival.cv, cohort.arrival.shape, cohort.arrival.scale]
    lengths = [*cohort.input_distribution.params.values(), *cohort.output_distribution.params.values()]
    spike = [cohort.spike.start_time_us, cohort.spike.duration_us, cohort.spike.trace_rate]
    return [float(each or 0) for each in [*arrival, *lengths, *spike, cohort.rate_fraction, cohort.population]]


def words(cohort: Cohort) -> tuple[object, ...]:
    return cohort.id, cohort.slo_class, cohort.streaming, cohort.arrival.process, cohort.prefix_sharing
