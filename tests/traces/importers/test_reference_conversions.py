"""Conversions equal the reference's own, field by field."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from traces.compose import merge_specs
from traces.importers.registry import ConvertOptions, import_from
from traces.workload.generate import generate
from traces.workload.presets import PRESETS
from traces.workload.spec import Client, WorkloadSpec, read_spec

# Seconds into each period at which the reference's window lies in its samples.


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


def without_arrival(client: Client) -> Client:
    return dataclasses.replace(client, arrival=dataclasses.replace(client.arrival, process="", shape=None, scale=None))
