"""Configurations of inference-perf: each kind of load and of data becomes the requests that it describes."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError
from blis_sim.options.yaml_text import dump_yaml
from tests.traces.importers.test_formats import imported, left_out
from traces import TraceRow
from traces.importers.registry import Imported
from traces.workload.generate import generate
from traces.workload.request import Workload, row_of
from traces.workload.spec import spec_text

LENGTHS = {"min": 10, "max": 100, "mean": 50, "std_dev": 10, "total_count": 9}
FIXED = {"min": 100, "max": 100, "mean": 100, "std_dev": 0, "total_count": 9}
RANDOM = {"type": "random", "input_distribution": FIXED, "output_distribution": LENGTHS}
GROUPS = {"num_groups": 6, "num_prompts_per_group": 5, "system_prompt_len": 600, "question_len": 120, "output_len": 100}
STAGES = [{"rate": 5, "duration": 10}, {"rate": 10, "duration": 4}]


def converted(tmp_path: Path, load: dict[str, Any], data: dict[str, Any], **more: Any) -> Imported:
    text = dump_yaml({"load": load, "data": data, "server": {"type": "vllm"}})
    return imported("inference-perf", tmp_path / "config.yaml", text, **more)


def workload(found: Imported) -> Workload:
    assert found.spec is not None
    return generate(found.spec)


def rows(found: Imported) -> list[TraceRow]:
    made = workload(found)
    return made.rows or [row_of(request, number) for number, request in enumerate(made.requests)]


def shared(**keys: Any) -> dict[str, Any]:
    return {"type": "shared_prefix", "shared_prefix": GROUPS | keys}


@pytest.mark.parametrize("kind", ["constant", "poisson"])
@pytest.mark.parametrize(
    "data", [RANDOM, RANDOM | {"type": "synthetic"}, shared()], ids=["random", "synthetic", "groups"]
)
def test_each_stage_sends_what_its_rate_says(kind: str, data: dict[str, Any], tmp_path: Path) -> None:
    made = rows(converted(tmp_path, {"type": kind, "stages": STAGES}, data))
    assert len(made) == 90
    assert sum(row.arrival_time_us < 10_000_000 for row in made) == 50
    gaps = {later.arrival_time_us - row.arrival_time_us for row, later in pairwise(made[:50])}
    assert len({row.arrival_time_us for row in made}) > 80
    assert (gaps <= {199_999, 200_000, 200_001}) == (kind == "constant")


@pytest.mark.parametrize("kind", ["constant", "poisson"])
def test_users_of_all_groups_take_turns(kind: str, tmp_path: Path) -> None:
    stages = [{"rate": 1, "duration": 12}, {"rate": 1, "duration": 24}]
    made = rows(converted(tmp_path, {"type": kind, "stages": stages}, shared()))
    assert set(Counter(row.prefix_group for row in made[:12]).values()) == {2}
    users = Counter(row.client_id.partition("prompt")[2] for row in made)
    assert Counter(users.values()) == {1: 24, 2: 6}


def test_random_data_have_lengths_of_their_distributions(tmp_path: Path) -> None:
    made = rows(converted(tmp_path, {"stages": STAGES}, RANDOM))
    assert {row.input_tokens for row in made} == {100}
    assert 40 < sum(row.output_tokens for row in made) / len(made) < 60


def test_both_spellings_of_groups_are_one_workload(tmp_path: Path) -> None:
    other = {"num_unique_system_prompts": 6, "num_users_per_system_prompt": 5, "num_groups": None}
    one, two = (converted(tmp_path, {"stages": STAGES}, shared(**keys)) for keys in ({}, {**other}))
    assert one.spec == two.spec
    made = rows(one)
    assert {(row.prefix_length, row.input_tokens, row.output_tokens) for row in made} == {(600, 120, 100)}
    assert len({row.prefix_group for row in made}) == 6


def test_questions_and_replies_may_be_drawn_in_either_way(tmp_path: Path) -> None:
    inline, older = shared(question_len=LENGTHS), shared(question_distribution=LENGTHS)
    one, two = (rows(converted(tmp_path, {"stages": STAGES}, data)) for data in (inline, older))
    assert [row.input_tokens for row in one] == [row.input_tokens for row in two]
    assert len({row.input_tokens for row in one}) > 9


@pytest.mark.parametrize(
    ("kind", "mean"), [("uniform", 55), ("lognormal", 50), ("poisson", 50), ("skew_normal", 58), ("fixed", 50)]
)
def test_distributions_of_all_kinds_are_drawn_from(kind: str, mean: float, tmp_path: Path) -> None:
    lengths = LENGTHS | {"type": kind} | ({"skew": 5} if kind == "skew_normal" else {})
    found = converted(tmp_path, {"stages": [{"rate": 100, "duration": 20}]}, shared(question_len=lengths))
    made = [row.input_tokens for row in rows(found)]
    assert mean - 2 < sum(made) / len(made) < mean + 2
    assert 10 <= min(made) <= max(made) <= 100


LEVELS = [{"num_requests": 20, "concurrency_level": 4}, {"num_requests": 30, "concurrency_level": 10}]


def test_concurrent_stages_have_so_many_requests_under_way(tmp_path: Path) -> None:
    made = rows(converted(tmp_path, {"type": "concurrent", "stages": LEVELS}, RANDOM))
    assert len(made) == 50
    waits = Counter(len(row.parents.split()) for row in made)
    # 4 begin at once, 16 and 20 follow on one reply each, and 10 on the last 4 of the stage before.
    assert waits == {0: 4, 1: 36, 4: 10}
    follow_ups = Counter(parent for row in made for parent in row.parents.split() if len(row.parents.split()) == 1)
    assert set(follow_ups.values()) == {1}


def test_rounds_of_chats_wait_for_the_reply_before(tmp_path: Path) -> None:
    load = {"type": "concurrent", "stages": [{"num_requests": 90, "concurrency_level": 8}]}
    made = rows(converted(tmp_path, load, shared(enable_multi_turn_chat=True)))
    ids = {row.request_id: row for row in made}
    later = [row for row in made if row.round_index]
    assert len(later) == 60
    assert all(any(ids[int(each)].session_id == row.session_id for each in row.parents.split()) for row in later)


def test_chats_of_several_stages_have_all_their_requests(tmp_path: Path) -> None:
    made = workload(converted(tmp_path, {"stages": STAGES}, shared(enable_multi_turn_chat=True)))
    rounds = [len(list(session.later)) + 1 for session in made.sessions]
    assert sum(rounds) + len(made.requests) == 90
    starts_us = [session.first.arrival_us for session in made.sessions]
    assert (sum(at_us < 10_000_000 for at_us in starts_us), len(starts_us)) == (30, 60)


TALK = {
    "type": "conversation_replay",
    "conversation_replay": {
        "num_conversations": 3,
        "shared_system_prompt_len": 500,
        "dynamic_system_prompt_len": {"type": "fixed", "mean": 50},
        "turns_per_conversation": {"type": "fixed", "mean": 4},
        "input_tokens_per_turn": {"type": "fixed", "mean": 20},
        "output_tokens_per_turn": {"type": "fixed", "mean": 10},
        "tool_call_latency_sec": {"type": "fixed", "mean": 2},
    },
}


@pytest.mark.parametrize("load", [
    {"type": "concurrent", "stages": [{"num_requests": 30, "concurrency_level": 3}]},
    {"type": "constant", "stages": [{"rate": 3, "duration": 10}]},
])  # fmt: skip
def test_conversations_end_and_begin_anew(load: dict[str, Any], tmp_path: Path) -> None:
    made = rows(converted(tmp_path, load, TALK))
    assert len(made) == 30
    assert {row.round_index for row in made} == {0, 1, 2, 3}
    assert Counter(Counter(row.session_id for row in made).values()) == {4: 6, 2: 3}
    assert {row.input_tokens for row in made if row.round_index == 0} == {70}
    assert {row.input_tokens for row in made if row.round_index == 3} == {70 + 3 * 30}
    ids = {row.request_id: row for row in made}
    later = [row for row in made if row.round_index]
    assert all(ids[int(row.context_of)].session_id == row.session_id for row in later)
    assert {row.context_tokens for row in later} == {500 + 70 + 10 + 30 * number for number in range(3)}
    assert {row.think_time_us for row in made if row.round_index} == {2_000_000}


@pytest.mark.parametrize("kind", ["constant", "poisson"])
def test_a_section_is_written_out_as_clients(kind: str, tmp_path: Path) -> None:
    found = converted(tmp_path, {"type": kind, "stages": STAGES}, shared(question_len=LENGTHS))
    assert found.spec is not None
    out = imported("inference-perf", tmp_path / "section.yaml", spec_text(found.spec))
    made = rows(out)
    assert 50 < len(made) < 130
    assert {row.prefix_length for row in made} == {600}
    assert len({row.input_tokens for row in made}) > 9
    assert len(out.notes) == (2 if kind == "constant" else 1)
    waiting = converted(tmp_path, {"type": "concurrent", "stages": LEVELS}, RANDOM)
    assert waiting.spec is not None
    with pytest.raises(BlisError, match="its requests wait for others and are no clients, run it as it is"):
        imported("inference-perf", tmp_path / "section.yaml", spec_text(waiting.spec))


def test_a_sweep_goes_up_to_the_rate_of_the_flag(tmp_path: Path) -> None:
    load = {"sweep": {"type": "linear", "num_stages": 3, "stage_duration": 10}}
    found = converted(tmp_path, load, RANDOM, rate=9.0)
    assert found.spec is not None
    assert found.spec.inference_perf is not None
    assert [(stage.rate, stage.duration) for stage in found.spec.inference_perf.stages] == [(1, 10), (5, 10), (9, 10)]
    with pytest.raises(BlisError, match=r"key load.sweep: its rates go up to what saturates a server: give that rate"):
        converted(tmp_path, load, RANDOM)


def test_mock_data_are_the_default(tmp_path: Path) -> None:
    found = imported("inference-perf", tmp_path / "c.yaml", "load: {stages: [{rate: 1, duration: 5}]}")
    assert {(row.input_tokens, row.output_tokens) for row in rows(found)} == {(6, 30)}


@pytest.mark.parametrize(
    ("load", "data", "message"),
    [
        (
            {"stages": STAGES},
            {"type": "shareGPT"},
            "key data.type: shareGPT is not read, its lengths are those of Shar",
        ),
        (
            {"stages": STAGES},
            {"type": "cnn_dailymail"},
            "key data.type: cnn_dailymail is not read, its lengths are thos",
        ),
        ({"type": "trace_session_replay"}, {"type": "otel_trace_replay"}, "read these with blis convert otel"),
        (
            {"type": "trace_session_replay"},
            {"type": "weka_trace_replay", "weka_trace_replay": {"trace_directory": "traces/weka"}},
            "read these with blis convert weka (traces/weka)",
        ),
        ({"type": "trace_replay"}, RANDOM, "key load.type: trace_replay is not read, its times are those of its trace"),
        ({"stages": STAGES}, RANDOM | {"trace": {"file": "x"}}, "key data.trace: the lengths are those of its file"),
        ({"stages": STAGES}, {"type": "poems"}, "key data.type: expected mock, random, synthetic, shared_prefix, conv"),
        ({"type": "burst"}, RANDOM, "key load.type: expected constant, poisson, concurrent, trace_replay, trace_sessi"),
        ({"stages": [{"rate": 5}]}, RANDOM, "key load.stages[0]: the key duration is missing, found rate"),
        ({"type": "concurrent", "stages": STAGES}, RANDOM, "key load.stages[0]: the key num_requests is missing"),
        ({"type": "concurrent"}, RANDOM, "key load: the key stages is missing, found type"),
        (
            {"stages": STAGES},
            shared(question_len=LENGTHS | {"min": 200}),
            "question_len: expected min to be at most max",
        ),
        ({"stages": STAGES}, shared(question_len=LENGTHS | {"type": "odd"}), "question_len.type: expected fixed, norm"),
    ],
)
def test_what_is_not_in_the_configuration_is_named(
    load: dict[str, Any], data: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BlisError) as raised:
        converted(tmp_path, load, data)
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "config.yaml"))


def test_settings_without_a_place_are_counted(tmp_path: Path) -> None:
    load = {"stages": STAGES, "interval": 15, "num_workers": 4}
    found = converted(tmp_path, load, shared(seed=7) | {"multimodal": {"image": {}}})
    assert left_out(found) == {
        "key server": 1,
        "key load.interval": 1,
        "key load.num_workers": 1,
        "key data.multimodal": 1,
    }
    assert found.spec is not None
    assert found.spec.seed == 7
    assert "seed: 7" in spec_text(found.spec)
