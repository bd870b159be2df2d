"""Conversions equal the reference's own, field by field."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from traces.compose import merge_specs
from traces.importers import ConvertOptions, import_from
from traces.importers.servegen import PERIODS, ClassAssignment, PeriodTiming, active_at, cohorts_of, read_chunks
from traces.workload import PRESETS, WorkloadSpec, read_spec
from traces.workload.generate import generate
from traces.workload.spec import Client, Cohort

# Seconds into each period at which the reference's window lies in its samples.
_WINDOW_S = 1200
_CLASSES = ("critical", "standard", "batch", "sheddable", "background")


def converted(kind: str, source: Path | str, **more: Any) -> WorkloadSpec:
    spec = import_from(ConvertOptions(format=kind, file=str(source), **more)).spec
    assert spec is not None
    return spec


def golden(reference: Path, name: str) -> WorkloadSpec:
    spec = read_spec(reference / "golden/tools/convert" / name)
    # The reference writes false where nothing was said.
    clients = tuple(dataclasses.replace(each, streaming=each.streaming or None) for each in spec.clients)
    return dataclasses.replace(spec, clients=clients, notes=())


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_those_of_the_reference(name: str, reference: Path) -> None:
    assert converted("preset", name, rate=10.0, num_requests=100) == golden(reference, f"preset_{name}.yaml")


def test_specs_are_composed_as_the_reference_composes_them(reference: Path) -> None:
    specs = reference / "golden/tools/specs"
    sources = [specs / "s1_poisson_basic.yaml", specs / "s2_multiclient_prefix_slo.yaml"]
    spec, notes = merge_specs([(str(source), read_spec(source)) for source in sources])
    expected = golden(reference, "compose_s1_s2.yaml")
    assert tuple(dataclasses.replace(each, streaming=each.streaming or None) for each in spec.clients) == (
        expected.clients
    )
    assert (spec.aggregate_rate, spec.category) == (expected.aggregate_rate, expected.category)
    # The reference drops these.
    assert spec.goodput_slo_targets == read_spec(sources[1]).goodput_slo_targets
    assert any("seeds" in note for note in notes)


def test_several_stages_of_inference_perf_but_for_the_rates_that_the_reference_loses(reference: Path) -> None:
    source = reference / "golden/tools/specs/s5_inference_perf.yaml"
    spec, expected = converted("inference-perf", source), golden(reference, "s5_inference_perf.converted.yaml")
    rates = [1e6 / (client.arrival.scale or 1) for client in spec.clients]
    assert rates == pytest.approx([4 / 6] * 6 + [8 / 6] * 6)
    assert [without_arrival(client) for client in spec.clients] == [without_arrival(each) for each in expected.clients]
    assert spec.aggregate_rate == expected.aggregate_rate
    # 40 and 80 on average, within five standard deviations.
    by_stage = Counter(request.client_id.split("-")[1] for request in generate(spec).requests)
    assert abs(by_stage["0"] - 40) < 32
    assert abs(by_stage["1"] - 80) < 45


def test_conversations_of_inference_perf_but_for_the_reasoning_the_reference_adds(reference: Path) -> None:
    source = reference / "golden/tools/specs/s5c_inference_perf_multiturn.yaml"
    spec, expected = (
        converted("inference-perf", source),
        golden(reference, "s5c_inference_perf_multiturn.converted.yaml"),
    )
    assert spec.category == expected.category
    assert spec.aggregate_rate == expected.aggregate_rate
    assert [each.multi_turn for each in spec.clients] == [each.multi_turn for each in expected.clients]
    plain = [dataclasses.replace(each, reasoning=None) for each in expected.clients]
    assert [dataclasses.replace(each, reasoning=None) for each in spec.clients] == plain


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


def without_arrival(client: Client) -> Client:
    return dataclasses.replace(client, arrival=dataclasses.replace(client.arrival, process="", shape=None, scale=None))


def numbers(cohort: Cohort) -> list[float]:
    assert cohort.spike is not None
    arrival = [cohort.arrival.cv, cohort.arrival.shape, cohort.arrival.scale]
    lengths = [*cohort.input_distribution.params.values(), *cohort.output_distribution.params.values()]
    spike = [cohort.spike.start_time_us, cohort.spike.duration_us, cohort.spike.trace_rate]
    return [float(each or 0) for each in [*arrival, *lengths, *spike, cohort.rate_fraction, cohort.population]]


def words(cohort: Cohort) -> tuple[object, ...]:
    return cohort.id, cohort.slo_class, cohort.streaming, cohort.arrival.process, cohort.prefix_sharing
