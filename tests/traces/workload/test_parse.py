"""Reading specs: what is meant is understood, what cannot be used is named."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.traces.workload.specs import CONSTANT_10, MULTI_TURN, client, cohort, lifecycle, spec, users, window
from traces import TraceError
from traces.workload.spec import parse_spec, read_spec, spec_text


def complaint(*clients: dict[str, Any], **keys: Any) -> str:
    """Return the error of a spec that is refused."""
    with pytest.raises(TraceError) as caught:
        spec(*clients, **keys)
    message = str(caught.value)
    assert message.startswith("spec.yaml")
    assert "\n" not in message
    return message.removeprefix("spec.yaml").lstrip(": ").removeprefix("key ")


def of_text(text: str) -> str:
    with pytest.raises(TraceError) as caught:
        parse_spec(text, "spec.yaml")
    return str(caught.value)


def test_all_fields_of_a_client_are_read() -> None:
    (read,) = spec(client(tenant_id="t", prefix_group="g", prefix_length=7, timeout=5, slo_target_us=9)).clients
    assert (read.tenant_id, read.prefix_tokens, read.timeout_us, read.slo_target_us) == ("t", 7, 5, 9)


def test_a_group_without_a_length_shares_50_tokens() -> None:
    (read,) = spec(client(prefix_group="g")).clients
    assert read.prefix_tokens == 50


def test_requests_of_sessions_are_given_up_after_300_seconds() -> None:
    (conversing,) = spec(client(reasoning=MULTI_TURN)).clients
    (waiting,) = spec(users()).clients
    (patient,) = spec(users(timeout=0)).clients
    (plain,) = spec(client()).clients
    assert [each.timeout_us for each in (conversing, waiting, patient, plain)] == [300_000_000, 300_000_000, 0, 0]


def test_numbers_may_be_written_in_any_way_that_loses_nothing() -> None:
    read = parse_spec(
        yaml.safe_dump({"version": 2, "seed": 3.0, "clients": [client()]}) + "\naggregate_rate: 1e1\n", "s"
    )
    assert (read.version, read.seed, read.aggregate_rate) == ("2", 3, 10.0)


@pytest.mark.parametrize("name", ["007", "1:30", "1e6", "2026-01-31", "0o17", "12"])
def test_keeps_an_id_that_looks_like_a_number_as_it_is_written(name: str) -> None:
    read = spec(client())
    if name not in ("1e6", "0o17"):
        (plain,) = parse_spec(spec_text(read).replace("id: c", f"id: {name}"), "s").clients
        assert plain.id == name
    renamed = dataclasses.replace(read, clients=(dataclasses.replace(read.clients[0], id=name),))
    assert parse_spec(spec_text(renamed), "s") == renamed


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("aggregate_rate: 010", "key aggregate_rate: expected a number between 0 and 1000000, got '010'"),
        ("aggregate_rate: 1:30", "key aggregate_rate: expected a number between 0 and 1000000, got '1:30'"),
        ("num_requests: '10'", "key num_requests: expected a whole number between 0 and 100000000, got '10'"),
        ("version: 2.10", "key version: expected 1 or 2, got 2.1"),
        ("goodput_slo_targets: {1: {}, '1': {}}", "key goodput_slo_targets: the key 1 stands twice"),
    ],
)
def test_refuses_numbers_that_are_read_differently_elsewhere(line: str, said: str) -> None:
    assert of_text(line) == f"spec.yaml {said}"


@pytest.mark.parametrize("key", ["010", "1_0", "+10"])
def test_refuses_keys_of_empirical_lengths_that_are_no_plain_number(key: str) -> None:
    assert "expected whole numbers of tokens as keys" in complaint(
        client(input_distribution={"type": "empirical", "params": {key: 1}})
    )


def test_anchors_and_merges_are_resolved() -> None:
    text = """
version: "2"
aggregate_rate: 1
clients:
  - rate_fraction: 1
    arrival: {process: poisson}
    input_distribution: &lengths {type: constant, params: {value: 7}}
    output_distribution: {<<: *lengths, params: {value: 8}}
"""
    (read,) = parse_spec(text, "s").clients
    assert read.output_distribution == dataclasses.replace(read.input_distribution, params={"value": 8.0})


def test_empirical_lengths_may_have_numbers_for_keys() -> None:
    (read,) = spec(client(input_distribution={"type": "empirical", "params": {32: 0.5, "64": 1}})).clients
    assert read.input_distribution.params == {"32": 0.5, "64": 1.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "spec.yaml: the file is empty, expected a workload spec"),
        ("- 1", "spec.yaml: expected keys and values, got [1]"),
        ("version: [", "spec.yaml line 1: expected YAML, expected the node content, but found '<stream end>'"),
        ("seed: 1\nseed: 2", "spec.yaml line 2: expected YAML, the key 'seed' stands twice"),
        ("clients: 5", "spec.yaml key clients: expected a list, got 5"),
        ("clients: [5]", "spec.yaml key clients[0]: expected keys and values, got 5"),
        ("seed: 1.5", "spec.yaml key seed: expected a whole number, got 1.5"),
        ("seed: true", "spec.yaml key seed: expected a whole number, got True"),
        ("seed: 1_000x", "spec.yaml key seed: expected a whole number, got '1_000x'"),
        ("seed: 1e30", "spec.yaml key seed: expected a whole number, below 2**63 in magnitude, got 1e+30"),
        ("aggregate_rate: .inf", "spec.yaml key aggregate_rate: expected a number between 0 and 1000000, got inf"),
        ("category: []", "spec.yaml key category: expected language or multimodal or reasoning, got []"),
        ("goodput_slo_targets: {a: 5}", "spec.yaml key goodput_slo_targets.a: expected keys and values, got 5"),
        ("clients: [{id: a}]", "spec.yaml: the key clients[0].input_distribution is missing"),
    ],
)
def test_an_invalid_spec_is_refused_with_the_place(text: str, message: str) -> None:
    assert of_text(text) == message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_spec(tmp_path / "no.yaml")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rate": 5}, "unknown key 'rate' of clients[0], known are id, "),
        ({"streaming": "yes"}, "clients[0].streaming: expected true or false, got 'yes'"),
        ({"arrival": {}}, "clients[0].arrival.process: expected poisson or gamma or weibull or constant, but "),
        (
            {"arrival": {"process": "gamma", "cv": 10.5}},
            "clients[0].arrival.cv: expected a number between 1e-06 and 10 ",
        ),
        (
            {"arrival": {"process": "gamma", "cv": 1e-7}},
            "clients[0].arrival.cv: expected a number between 1e-06 and 10 ",
        ),
        (
            {"arrival": {"process": "gamma", "cv": 1e200}},
            "clients[0].arrival.cv: expected a number above 0, below 2**63 in magnitude, got 1e+200",
        ),
        ({"arrival": {"process": "weibull", "cv": 0.001}}, "clients[0].arrival.cv: expected a number between 0.01 and"),
        ({"lifecycle": {"windows": []}}, "clients[0].lifecycle.windows: expected at least one window, got none"),
        ({"reasoning": {"multi_turn": {"max_rounds": 0}}}, "clients[0].reasoning.multi_turn.max_rounds: expected a "),
    ],
)
def test_a_client_that_cannot_be_used_is_refused_with_the_key(keys: dict[str, Any], message: str) -> None:
    assert complaint(client(**keys)).startswith(message)


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("constant", {}, "expected value with constant, but the key is missing"),
        ("constant", {"value": 1, "max": 3}, "expected value with constant, got max"),
        ("lognormal", {"mu": 1, "sigma": -1}, "expected sigma to be at least 0, got -1"),
        ("lognormal", {"mu": 1, "sigma": 1, "min": 9, "max": 5}, "expected min to be at most max (5), got 9"),
        ("exponential", {"mean": -1}, "expected mean to be at least 0, got -1"),
        (
            "pareto_lognormal",
            {"alpha": 0, "xm": 1, "mu": 1, "sigma": 1, "mix_weight": 0.5},
            "expected alpha to be above 0, got 0",
        ),
        (
            "pareto_lognormal",
            {"alpha": 1, "xm": 1, "mu": 1, "sigma": 1, "mix_weight": 1.5},
            "expected mix_weight between 0 and 1, got 1.5",
        ),
        ("empirical", {"5": 0}, "expected tokens with weights, at least one of them above 0, got none"),
        ("empirical", {"-5": 1}, "expected whole numbers of tokens as keys, got '-5'"),
    ],
)
def test_parameters_that_make_no_distribution_are_refused(kind: str, params: dict[str, float], message: str) -> None:
    expected = f"clients[0].output_distribution.params: {message}"
    assert complaint(client(output_distribution={"type": kind, "params": params})) == expected


def test_no_more_users_come_than_can_be_numbered() -> None:
    prompts = {"num_unique_system_prompts": 1_000, "num_users_per_system_prompt": 101}
    lengths = {"system_prompt_len": 1, "question_len": 1, "output_len": 1}
    section = {"stages": [{"rate": 1, "duration": 1}], "shared_prefix": {**prompts, **lengths}}
    message = complaint(clients=None, inference_perf=section)
    assert message == "inference_perf.shared_prefix: expected at most 100000 users, got 101000"


@pytest.mark.parametrize("rate", [2e6, 1e-300])
def test_rates_are_from_one_in_31_years_to_one_a_microsecond(rate: float) -> None:
    message = complaint(client(lifecycle=lifecycle(window(0, 5, trace_rate=rate))))
    assert message.endswith(f"trace_rate: expected a number between 1e-9 and 1000000, got {rate}")


def test_refuses_an_aggregate_rate_below_one_in_31_years() -> None:
    assert complaint(client(), aggregate_rate=1e-300) == "aggregate_rate: expected 0 or at least 1e-09, got 1e-300"


def test_distributions_inside_windows_and_modalities_are_checked_too() -> None:
    wrong = {"type": "constant", "params": {}}
    inside = complaint(client(lifecycle=lifecycle(window(0, 5, input_distribution=wrong))))
    assert inside.startswith("clients[0].lifecycle.windows[0].input_distribution.params: expected value")
    modal = complaint(client(multimodal={"text_distribution": wrong}))
    assert modal.startswith("clients[0].multimodal.text_distribution.params: expected value")


def test_a_modality_needs_lengths_and_counts() -> None:
    message = complaint(client(multimodal={"image_distribution": CONSTANT_10}))
    assert message.startswith(
        "clients[0].multimodal: expected image_distribution and image_count_distribution together"
    )


def test_users_are_always_active() -> None:
    message = complaint(users(lifecycle=lifecycle(window(0, 5))))
    assert message.startswith("clients[0].lifecycle: expected none beside concurrency")


def test_classes_are_for_all_or_for_none() -> None:
    message = complaint(client("a", slo_class="batch"), client("b"))
    assert message == "clients[1].slo_class: expected a class, as clients[0] has one, got none"
    message = complaint(client("a"), cohorts=[cohort(slo_class="batch")])
    assert message == "clients[0].slo_class: expected a class, as cohorts[0] has one, got none"


def test_settings_without_effect_are_noted() -> None:
    read = spec(client(prefix_length=5, network={"rtt_ms": 3}))
    assert read.notes == (
        "clients[0]: prefix_length has no effect without a prefix_group",
        "clients[0]: network has no effect on what is sent",
    )


@pytest.mark.parametrize(
    ("arrival", "note"),
    [
        ({"process": "poisson", "cv": 2}, "cv has no effect with poisson"),
        ({"process": "gamma", "shape": 2}, "shape and scale have an effect only together"),
        ({"process": "weibull", "shape": 2, "scale": 5, "cv": 99}, "cv has no effect beside shape and scale"),
    ],
)
def test_notes_values_of_an_arrival_process_that_have_no_effect(arrival: dict[str, Any], note: str) -> None:
    assert spec(client(arrival=arrival)).notes == (f"clients[0].arrival: {note}",)


@pytest.mark.parametrize("version", ["1", ""])
def test_class_names_of_version_1_are_translated(version: str) -> None:
    read = spec(client("a", slo_class="realtime"), client("b", slo_class="batch"), version=version)
    assert [each.slo_class for each in read.clients] == ["critical", "batch"]
    assert read.version == "2"
    assert read.notes == ("the service class realtime of version 1 is taken as critical",)
