"""Specs of the original: those it accepts are accepted, those it refuses are refused, and they mean the same."""

import csv
import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lazy import LazyModule
from traces import TraceError, TraceRow, read_rows
from traces.workload.generate import generate
from traces.workload.presets import PRESETS, rate_spec
from traces.workload.request import Workload
from traces.workload.spec import Arrival, Client, WorkloadSpec, read_spec

stats = LazyModule("scipy.stats")

NAMES = [
    "s1_poisson_basic",
    "s2_multiclient_prefix_slo",
    "s3_multiturn_closed_loop",
    "s3b_multiturn_open_loop",
    "s4_concurrency",
    "s5_inference_perf",
    "s5b_inference_perf_single",
    "s5c_inference_perf_multiturn",
    "s6_cohort_absolute",
    "s7_multimodal_windows",
]


REFUSED_HERE = ("v12c_gamma_cv_20", "v39_version_3")
"""Specs that the original reads in another way than they are meant."""


def tools(reference: Path) -> Path:
    return reference / "golden" / "tools"


def compared(reference: Path, name: str) -> tuple[WorkloadSpec, Workload, list[TraceRow]]:
    """A spec, what we generate from it, and what the original did."""
    read = read_spec(tools(reference) / "specs" / f"{name}.yaml")
    if name.startswith(("s5", "s6")):
        read = dataclasses.replace(read, horizon=20_000_000)
    return read, generate(read), list(read_rows(tools(reference) / "run" / f"{name}.csv"))


def test_every_invalid_spec_is_refused_in_one_line_and_every_other_one_generates(reference: Path) -> None:
    folder = tools(reference) / "errors"
    with (folder / "spec_validation.tsv").open() as file:
        cases = [(row[0], row[1] == "rc=0") for row in csv.reader(file, delimiter="\t", quotechar=None, quoting=3)]
    assert len(cases) == 47
    for name, is_accepted in cases:
        accepted = is_accepted and name not in REFUSED_HERE
        said = what_comes_of(folder / "specs" / f"{name}.yaml")
        assert said == "40 requests" if accepted else said.startswith(("the workload never ends", str(folder))), name
        assert "\n" not in said


def what_comes_of(path: Path) -> str:
    """Return the number of requests that a spec generates, or the reason of its refusal."""
    try:
        workload = generate(read_spec(path))
    except TraceError as error:
        return str(error)
    return f"{len(workload.requests) + sum(1 + len([*session.later]) for session in workload.sessions)} requests"


def test_keys_of_an_outdated_guide_are_refused(reference: Path) -> None:
    with pytest.raises(TraceError, match="unknown key 'rate', known are version, "):
        read_spec(tools(reference) / "errors" / "docs_example.yaml")


def test_refusals_name_the_key(reference: Path) -> None:
    folder = tools(reference) / "errors" / "specs"
    for name, key in [
        ("v03_rate_negative", "aggregate_rate"),
        ("v09_fraction_zero", "clients[0].rate_fraction"),
        ("v15_missing_param", "clients[0].input_distribution.params"),
        ("v25_window_bad", "clients[0].lifecycle.windows[0].end_us"),
        ("v35_abs_spike_norate", "cohorts[0].spike.trace_rate"),
        ("v36_sources_conflict", "inference_perf"),
    ]:
        path = folder / f"{name}.yaml"
        with pytest.raises(TraceError) as caught:
            read_spec(path)
        assert str(caught.value).startswith(f"{path} key {key}: expected ")


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_those_of_the_original(name: str, reference: Path) -> None:
    _, workload, rows = compared(reference, name)
    first_rounds = [session.first for session in workload.sessions]
    ours = {(each.client_id, each.tenant_id, each.slo_class) for each in [*workload.requests, *first_rounds]}
    assert ours == {(row.client_id, row.tenant_id, row.slo_class) for row in rows}
    deadlines = {(each.client_id, bool(each.deadline_us)) for each in [*workload.requests, *first_rounds]}
    assert deadlines == {(row.client_id, bool(row.deadline_us)) for row in rows}


@pytest.mark.parametrize("name", ["s1_poisson_basic", "s2_multiclient_prefix_slo", "s3b_multiturn_open_loop"])
def test_num_requests_are_generated(name: str, reference: Path) -> None:
    read, workload, rows = compared(reference, name)
    assert len(workload.requests) == len(rows) == read.num_requests


@pytest.mark.parametrize("name", ["s5b_inference_perf_single", "s6_cohort_absolute"])
def test_counts_that_no_chance_decides_are_those_of_the_original(name: str, reference: Path) -> None:
    _, workload, rows = compared(reference, name)
    assert Counter(each.client_id for each in workload.requests) == Counter(row.client_id for row in rows)


def test_constant_arrivals_inside_a_window_are_those_of_the_original(reference: Path) -> None:
    _, workload, rows = compared(reference, "s7_multimodal_windows")
    ours = [each.arrival_us for each in workload.requests if each.client_id == "late"]
    assert ours == [row.arrival_time_us for row in rows if row.client_id == "late"]


def test_multimodal_prompts_have_the_parts_of_the_original(reference: Path) -> None:
    _, workload, rows = compared(reference, "s7_multimodal_windows")
    ours = {(each.text_tokens, each.image_tokens, each.audio_tokens, each.input_tokens) for each in workload.requests}
    assert ours == {(row.text_tokens, row.image_tokens, row.audio_tokens, row.input_tokens) for row in rows}


def test_stages_have_their_rates(reference: Path) -> None:
    _, workload, _ = compared(reference, "s5_inference_perf")
    early = sum(each.arrival_us < 10_000_000 for each in workload.requests)
    assert early == pytest.approx(40, abs=3 * 40**0.5)
    assert len(workload.requests) - early == pytest.approx(80, abs=3 * 80**0.5)
    assert all(each.client_id.startswith("stage-0-") == (each.arrival_us < 10_000_000) for each in workload.requests)


def test_open_loop_rounds_are_spaced_and_grow_as_in_the_original(reference: Path) -> None:
    _, workload, rows = compared(reference, "s3b_multiturn_open_loop")
    theirs = {
        (after.arrival_time_us - before.arrival_time_us - before.output_tokens, after.prefix_length)
        for before, after in pairs(rows)
    }
    ours = {
        (after.arrival_us - before.arrival_us - before.output_tokens, after.prefix_tokens)
        for before, after in pairs(workload.requests)
    }
    assert ours == theirs == {(300_000, 128)}
    for before, after in [*pairs(rows), *pairs(workload.requests)]:
        assert 16 <= after.input_tokens - before.input_tokens - before.output_tokens <= 200


def test_conversations_are_as_many_and_as_long_as_in_the_original(reference: Path) -> None:
    _, workload, rows = compared(reference, "s5c_inference_perf_multiturn")
    theirs = Counter(row.client_id for row in rows)
    assert {session.first.client_id: 1 + len([*session.later]) for session in workload.sessions} == theirs
    (think_time_us,) = {each.think_time_us for session in workload.sessions for each in session.later}
    assert think_time_us == 800_000


def test_users_begin_as_in_the_original(reference: Path) -> None:
    _, workload, rows = compared(reference, "s4_concurrency")
    first = [row for row in rows if row.round_index == 0]
    ours = [(session.first.session_id, session.first.arrival_us) for session in workload.sessions]
    assert ours == [(row.session_id, row.arrival_time_us) for row in first]
    assert workload.max_requests == len(rows)


@pytest.mark.parametrize("rate", [5, 40])
def test_constant_arrivals_are_those_of_the_original(rate: int, reference: Path) -> None:
    path = tools(reference) / "saturation" / f"run_rate{rate}.metrics.json"
    theirs = [round(row["arrived_at"] * 1e6) for row in json.loads(path.read_text())["requests"]]
    constant = Arrival(process="constant")
    ours = generate(rate_spec(PRESETS["chatbot"], rate=rate, num_requests=200, seed=0, arrival=constant)).requests
    assert [each.arrival_us for each in ours] == theirs


@pytest.mark.parametrize("name", ["s5_inference_perf", "s5c_inference_perf_multiturn"])
def test_converted_specs_load_and_generate(name: str, reference: Path) -> None:
    converted = read_spec(tools(reference) / "convert" / f"{name}.converted.yaml")
    workload = generate(dataclasses.replace(converted, horizon=20_000_000))
    assert {each.tenant_id for each in workload.requests} | {each.first.tenant_id for each in workload.sessions} == {
        "prompt-0",
        "prompt-1",
    }


@pytest.mark.parametrize("name", ["servegen_tiny.converted", "servegen_tiny.morning", "compose_s1_s2"])
def test_specs_converted_by_the_original_can_be_read(name: str, reference: Path) -> None:
    read = read_spec(tools(reference) / "convert" / f"{name}.yaml")
    workload = generate(dataclasses.replace(read, num_requests=read.num_requests or 50))
    assert len(workload.requests) == 50


@pytest.mark.slow
def test_lengths_of_a_mixed_workload_are_distributed_as_in_the_original(reference: Path) -> None:
    """Two-sample Kolmogorov-Smirnov test at the level of 0.1 %, over all cases that have the same three clients."""
    cases = sorted((reference / "golden" / "engine").glob("*/spec.yaml"))
    clients = read_spec(reference / "golden" / "engine" / "base_qwen3_14b" / "spec.yaml").clients
    same = [path for path in cases if read_spec(path).clients == clients]
    rows = [row for path in same for row in read_rows(path.with_name("trace.csv"))]
    read = dataclasses.replace(read_spec(same[0]), num_requests=20_000)
    requests = generate(read).requests
    assert len(rows) > 5_000
    for name in ("a", "b", "c"):
        for field in ("input_tokens", "output_tokens"):
            theirs = [getattr(row, field) for row in rows if row.client_id == name]
            ours = [getattr(each, field) for each in requests if each.client_id == name]
            assert stats.ks_2samp(ours, theirs).pvalue > 0.001, (name, field)
    shares = np.array([sum(each.client_id == name for each in requests) for name in ("a", "b", "c")]) / len(requests)
    assert shares == pytest.approx([client_share(clients, name) for name in ("a", "b", "c")], abs=0.02)


def client_share(clients: tuple[Client, ...], name: str) -> float:
    return sum(each.rate_fraction for each in clients if each.id == name)


def pairs(rounds: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Consecutive rounds of each session."""
    sessions: dict[str, dict[int, Any]] = defaultdict(dict)
    for each in rounds:
        sessions[each.session_id][each.round_index] = each
    return [(talk[n], talk[n + 1]) for talk in sessions.values() for n in talk if n + 1 in talk]
