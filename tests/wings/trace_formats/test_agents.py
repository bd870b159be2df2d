"""Traces of agents from other programs: which call waits for which, for how long, and what prompts repeat."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from blis_sim.options import BlisError
from tests.traces.importers.test_formats import imported, left_out
from traces import read_trace
from traces.importers.registry import Imported

Graph = list[tuple[str, int, str, int]]


def graph(found: Imported) -> Graph:
    """For each row what it waits for, its pause, and what it repeats."""
    return [(row.parents, row.think_time_us, row.context_of, row.context_tokens) for row in found.rows]


def lines(entries: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(each) + "\n" for each in entries)


def test_mooncake_requests_repeat_the_earlier_ones_whose_blocks_they_have(tmp_path: Path) -> None:
    hashes = [[1, 2, 3], [1, 2, 4], [1, 9], [5], [1, 2, 4, 6], [1, 9, 6]]
    entries = [
        {"timestamp": 30 * n, "input_length": 512 * len(ids) - 36, "output_length": 5, "hash_ids": ids}
        for n, ids in enumerate(hashes)
    ]
    found = imported("mooncake", tmp_path / "t.jsonl", lines(entries))
    shared = [(row.context_of, row.context_tokens) for row in found.rows]
    assert shared == [("", 0), ("0", 1024), ("0", 512), ("", 0), ("1", 1536), ("2", 1024)]
    assert [row.arrival_time_us for row in found.rows] == [30_000 * n for n in range(6)]


def test_mooncake_sessions_wait_for_their_replies(tmp_path: Path) -> None:
    entries: list[dict[str, Any]] = [
        {"timestamp": 10, "input_length": 600, "output_length": 9, "session_id": "s"},
        {"timestamp": 15, "input_length": 30, "output_length": 9},
        {"delay": 2.5, "input_length": 700, "output_length": 9, "session_id": "s"},
    ]
    found = imported("mooncake", tmp_path / "t.jsonl", lines(entries))
    assert [(row.arrival_time_us, row.session_id, row.round_index) for row in found.rows] == [
        (0, "s", 0),
        (2_509, "s", 1),
        (5_000, "", 0),
    ]
    assert graph(found)[1][:2] == ("0", 2_500)


def weka_call(at_s: float, took_s: float, tokens: int, output: int, hashes: list[int], **more: Any) -> dict[str, Any]:
    """A call of blocks of 64 tokens."""
    given = {"t": at_s, "type": "s", "model": "m", "in": tokens, "out": output, "hash_ids": hashes}
    return {**given, "api_time": took_s, **more}


def weka_trace(name: str = "w") -> dict[str, Any]:
    """A question, two helpers of which one has two calls, and a join that goes on from the question."""
    helper = {"type": "subagent", "subagent_type": "Explore", "status": "completed", "models": ["m"]}
    return {
        "id": name,
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [
            weka_call(0, 1, 130, 20, [1, 2]),
            {
                **helper,
                "t": 1.5,
                "agent_id": "a",
                "requests": [weka_call(1.5, 1, 70, 30, [8]), weka_call(3, 1, 140, 9, [8, 9])],
            },
            {**helper, "t": 1.6, "agent_id": "b", "requests": [weka_call(1.6, 0.5, 80, 12, [8])]},
            weka_call(4.25, 1, 260, 15, [1, 2, 3, 4]),
        ],
    }


def test_weka_helpers_run_side_by_side_and_the_next_call_joins_them(tmp_path: Path) -> None:
    found = imported("weka", tmp_path / "t.json", json.dumps(weka_trace()))
    assert graph(found) == [
        ("", 0, "", 0),
        ("0", 500_000, "", 0),
        ("0", 600_000, "1", 64),
        ("1", 500_000, "1", 100),
        ("2 3", 250_000, "0", 150),
    ]
    assert [row.arrival_time_us for row in found.rows] == [0, 1_500_000, 1_600_000, 3_000_000, 4_250_000]
    assert {(row.session_id, row.streaming) for row in found.rows} == {("w", True)}


def test_calls_that_overlap_do_not_wait_for_each_other(tmp_path: Path) -> None:
    calls = [weka_call(0, 2, 100, 5, []), weka_call(1, 2, 100, 5, []), weka_call(3.5, 1, 300, 5, [])]
    found = imported("weka", tmp_path / "t.json", json.dumps(weka_trace() | {"requests": calls}))
    assert [row.parents for row in found.rows] == ["", "", "0 1"]


def test_sessions_of_a_folder_begin_at_the_rate(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    for name in "ab":
        (tmp_path / "all" / f"{name}.json").write_text(json.dumps(weka_trace(name)))
    folder, out = str(tmp_path / "all"), tmp_path / "out"
    with pytest.raises(BlisError, match="--rate is required"):
        run_convert("weka", folder, "-o", str(out))
    run_convert("weka", folder, "--rate", "0.1", "-o", str(out))
    rows = read_trace(f"{out}.yaml").rows
    assert {row.session_id for row in rows} == {"a", "b"}
    assert [row.parents for row in rows if row.session_id == "b"].count("") == 1


def run_convert(*arguments: str) -> None:
    from traces.convert_command import run as convert
    from traces.importers.registry import ConvertOptions

    given = dict(zip(arguments[2::2], arguments[3::2], strict=True))
    rate = float(given["--rate"]) if "--rate" in given else None
    assert convert(ConvertOptions(format=arguments[0], file=arguments[1], output=given["-o"], rate=rate)) == 0


def nested(at_s: float, *times_s: float) -> dict[str, Any]:
    """A session whose helper has calls at these times."""
    calls = [weka_call(each_s, 4, 70, 9, [8]) for each_s in times_s]
    helper = {"t": at_s, "type": "subagent", "agent_id": "a", "subagent_type": "Explore", "requests": calls}
    return {"id": "w", "block_size": 64, "requests": [weka_call(0, 5, 130, 20, [1, 2]), helper]}


@pytest.mark.parametrize("times_s", [(0.0, 10.0), (100.0, 110.0), (0.0, 110.0 - 100.0)])
def test_times_of_a_helper_may_count_from_its_start(times_s: tuple[float, ...], tmp_path: Path) -> None:
    found = imported("weka", tmp_path / "t.json", json.dumps(nested(100.0, *times_s)))
    assert [row.arrival_time_us for row in found.rows] == [0, 100_000_000, 110_000_000]
    assert graph(found)[1][:2] == ("0", 95_000_000)
    is_relative = times_s[0] < 100
    assert any("times of 1 helpers count from the start of their helper" in note for note in found.notes) == is_relative


def test_a_helper_that_outlasts_the_time_before_it_counts_from_its_start_as_a_whole(tmp_path: Path) -> None:
    found = imported("weka", tmp_path / "t.json", json.dumps(nested(6.0, 0.0, 20.0)))
    assert [row.arrival_time_us for row in found.rows] == [0, 6_000_000, 26_000_000]


def test_helpers_of_helpers_count_from_where_these_count(tmp_path: Path) -> None:
    trace = nested(100.0, 0.0)
    inner = nested(10.0, 0.0)["requests"][1] | {"agent_id": "b"}
    trace["requests"][1]["requests"].append(inner)
    found = imported("weka", tmp_path / "t.json", json.dumps(trace))
    assert [row.arrival_time_us for row in found.rows] == [0, 100_000_000, 110_000_000]


def test_a_line_may_be_a_session(tmp_path: Path) -> None:
    found = imported("weka", tmp_path / "t.jsonl", lines([weka_trace("a"), weka_trace("b")]), rate=1.0)
    assert {row.session_id for row in found.rows} == {"a", "b"}
    assert len(found.rows) == 2 * 5
    listed = imported("weka", tmp_path / "t.json", json.dumps([weka_trace("a"), weka_trace("b")]), rate=1.0)
    assert listed.rows == found.rows
    with pytest.raises(BlisError, match=r"t\.jsonl line 2: the key id is missing"):
        imported("weka", tmp_path / "t.jsonl", lines([weka_trace("a"), {}]), rate=1.0)


def dag_turn(words: int, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x" * 4 * words}], "max_tokens": 10, **more}


def test_aiperf_forks_continue_the_conversation_and_spawns_are_joined(tmp_path: Path) -> None:
    entries = [
        {
            "session_id": "root",
            "turns": [
                dag_turn(50, spawns=["helper", {"children": ["late"], "join_at": 2}]),
                dag_turn(5, delay=20),
                dag_turn(6, forks=["branch"]),
            ],
        },
        {"session_id": "helper", "turns": [dag_turn(7), dag_turn(8, delay=1.5)]},
        {"session_id": "late", "turns": [dag_turn(9)]},
        {"session_id": "branch", "turns": [dag_turn(4, model="other")]},
    ]
    found = imported("aiperf-dag", tmp_path / "t.jsonl", lines(entries))
    by_tokens = {row.input_tokens: row for row in found.rows}
    assert sorted(by_tokens) == [7, 9, 25, 50, 65, 81, 95]
    ids = {tokens: str(row.request_id) for tokens, row in by_tokens.items()}

    def waits(tokens: int) -> tuple[set[str], int]:
        return set(by_tokens[tokens].parents.split()), by_tokens[tokens].think_time_us

    assert waits(7) == waits(9) == ({ids[50]}, 0)
    assert waits(25) == ({ids[7]}, 1_500)
    assert waits(65) == ({ids[50], ids[25]}, 20_000)
    assert waits(81) == ({ids[65], ids[9]}, 0)
    assert waits(95) == ({ids[81]}, 0)
    assert (by_tokens[65].context_of, by_tokens[65].context_tokens) == (ids[50], 60)
    assert (by_tokens[95].context_of, by_tokens[95].context_tokens, by_tokens[95].model) == (ids[81], 91, "other")


def span(
    name: str, parent: str, begin_ms: int, end_ms: int, tokens: tuple[int, int] | None, **more: Any
) -> dict[str, Any]:
    counts = {} if tokens is None else dict(zip(("input", "output"), tokens, strict=True))
    attributes = [
        {"key": f"gen_ai.usage.{kind}_tokens", "value": {"intValue": str(count)}} for kind, count in counts.items()
    ]
    attributes += [{"key": f"gen_ai.{key}", "value": {"stringValue": value}} for key, value in more.items()]
    epoch_ms = 1_795_000_000_000
    return {
        "traceId": "t",
        "spanId": name,
        "parentSpanId": parent,
        "startTimeUnixNano": str((epoch_ms + begin_ms) * 10**6),
        "endTimeUnixNano": (epoch_ms + end_ms) * 10**6,
        "attributes": attributes,
    }


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def test_spans_wait_for_what_had_ended_in_the_agent_around_them(tmp_path: Path) -> None:
    spans = [
        span("agent", "", 0, 9_000, None),
        span("ask", "agent", 100, 1_000, (200, 30), **{"request.model": "m"}),
        span("tool-a", "agent", 1_050, 4_000, None),
        span("tool-b", "agent", 1_050, 3_000, None),
        span("a1", "tool-a", 1_100, 2_000, (50, 10)),
        span("a2", "tool-a", 2_400, 3_900, (90, 10)),
        span("b1", "tool-b", 1_100, 2_100, (70, 10)),
        span("join", "agent", 4_100, 5_000, (300, 40)),
    ]
    text = lines([otlp(*spans[:3]), otlp(*spans[3:])])
    found = imported("otel", tmp_path / "t.jsonl", text)
    assert [row.input_tokens for row in found.rows] == [200, 50, 70, 90, 300]
    assert graph(found) == [
        ("", 0, "", 0),
        ("0", 100_000, "", 0),
        ("0", 100_000, "", 0),
        ("1", 400_000, "1", 60),
        ("2 3", 200_000, "0", 230),
    ]
    assert (found.rows[0].arrival_time_us, found.rows[0].model, found.rows[0].session_id) == (0, "m", "t")
    assert left_out(found) == {"spans that are no calls of a model": 3}


def test_a_conversation_joins_traces_and_older_names_of_counts_are_read(tmp_path: Path) -> None:
    one = span("x", "", 0, 100, None, **{"conversation.id": "c"})
    one["attributes"] += [
        {"key": f"gen_ai.usage.{n}_tokens", "value": {"intValue": 9}} for n in ("prompt", "completion")
    ]
    other = span("y", "", 300, 400, (40, 5), **{"conversation.id": "c"}) | {"traceId": "u"}
    found = imported("otel", tmp_path / "t.json", json.dumps(otlp(other, one)))
    assert graph(found) == [("", 0, "", 0), ("0", 200_000, "0", 18)]


def flat(name: str, begin: str, end: str, tokens: tuple[int, int], **more: Any) -> dict[str, Any]:
    counts = dict(zip(("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens"), tokens, strict=True))
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **counts}
    times = {"start_time": f"2026-02-25T10:00:{begin}", "end_time": f"2026-02-25T10:00:{end}"}
    return {"trace_id": "t", "span_id": name, "parent_span_id": None, **times, "attributes": attributes, **more}


FLAT = [flat("a", "00.000000", "02.500000", (10, 5)), flat("b", "03.000000", "05.000000", (25, 5))]
SDK = [
    {"name": "chat", "context": {"trace_id": "0xt", "span_id": each["span_id"]}, "parent_id": None,
     "start_time": f"{each['start_time']}Z", "end_time": f"{each['end_time']}Z", "attributes": each["attributes"]}
    for each in FLAT
]  # fmt: skip

SECONDS = [
    {**each, "start_time": 1e9 + begin, "end_time": 1e9 + end, "status": "OK"}
    for each, begin, end in zip(FLAT, (0.25, 3.25), (2.75, 5.25), strict=True)
]
NAMES_OF_PROTOBUF = [
    {**each, "start_time": None, "end_time": None, "start_time_unix_nano": begin, "end_time_unix_nano": str(end)}
    for each, begin, end in zip(FLAT, (10**18, 10**18 + 3 * 10**9), (10**18 + 25 * 10**8, 2 * 10**18), strict=True)
]
OPEN_INFERENCE = [
    {**each, "attributes": {"llm.token_count.prompt": prompt, "llm.token_count.completion": 5, "llm.model_name": "m"}}
    for each, prompt in zip(FLAT, (10, 25), strict=True)
]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"trace_id": "t", "span_count": 2, "spans": FLAT}),
        json.dumps({"spans": SECONDS}),
        json.dumps({"resource_spans": [{"scope_spans": [{"spans": NAMES_OF_PROTOBUF}]}]}),
        json.dumps(OPEN_INFERENCE),
        json.dumps({"session_id": "t", "spans": [{**each, "trace_id": None} for each in FLAT]}),
        json.dumps(FLAT),
        lines(FLAT),
        lines(SDK),
    ],
    ids=["trace", "seconds", "protobuf", "open_inference", "session", "list", "lines", "sdk"],
)
def test_spans_may_be_flat(text: str, tmp_path: Path) -> None:
    found = imported("otel", tmp_path / "t.json", text)
    assert graph(found) == [("", 0, "", 0), ("0", 500_000, "0", 15)]
    assert (found.rows[0].model, found.rows[1].arrival_time_us) == ("m", 3_000_000)


def test_spans_of_agents_have_the_sums_of_their_calls_and_are_no_calls(tmp_path: Path) -> None:
    agent = flat("root", "00", "09", (35, 10))
    agent["attributes"]["gen_ai.operation.name"] = "invoke_agent"
    lost = flat("c", "06", "07", (0, 0), status={"code": 2}) | {"attributes": {"gen_ai.operation.name": "chat"}}
    found = imported("otel", tmp_path / "t.json", json.dumps({"spans": [agent, *FLAT, lost]}))
    assert len(found.rows) == 2
    assert left_out(found) == {"spans that are no calls of a model": 1, "calls that failed": 1}


def sglang_turn(text: str, prompt_tokens: int | None = None) -> dict[str, Any]:
    given = {"messages": [{"role": "user", "content": text}]} if text else {"messages": []}
    return given if prompt_tokens is None else {**given, "prompt_tokens": prompt_tokens}


def test_sglang_conversations_repeat_all_earlier_turns(tmp_path: Path) -> None:
    """Messages of 40 characters have 10 tokens; of the reply to the last turn nothing is known."""
    turns = [sglang_turn("a" * 40, 100), sglang_turn(""), sglang_turn("b" * 40, 150), sglang_turn("c" * 40, 180)]
    found = imported("sglang-agentic", tmp_path / "t.json", json.dumps({"conversations": [turns, [sglang_turn("")]]}))
    assert [(row.input_tokens, row.output_tokens) for row in found.rows] == [(100, 40), (150, 20), (180, 220)]
    assert graph(found) == [("", 0, "", 0), ("0", 0, "0", 140), ("1", 0, "1", 170)]
    assert left_out(found) == {"conversations without messages": 1}


def test_sglang_conversations_without_lengths_have_default_reply_lengths(tmp_path: Path) -> None:
    turns = [sglang_turn("a" * 40), sglang_turn("b" * 400)]
    given = json.dumps({"metadata": {}, "conversations": [turns, turns]})
    found = imported("sglang-agentic", tmp_path / "t.json", given, rate=2.0)
    assert sorted((row.input_tokens, row.output_tokens) for row in found.rows) == [(10, 220)] * 2 + [(330, 220)] * 2
    assert {row.session_id for row in found.rows} == {"conversation-0", "conversation-1"}
    assert {row.context_tokens for row in found.rows} == {0, 230}


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("weka", weka_trace() | {"block_size": 0}, "key block_size: expected a whole number above 0, got 0"),
        (
            "weka",
            weka_trace() | {"requests": [{"type": "z"}]},
            "request 0 key type: expected n, s or subagent, got 'z'",
        ),
        (
            "aiperf-dag",
            {"session_id": "a", "turns": [dag_turn(1, forks=["b"])]},
            "starts the session 'b', which no line",
        ),
        (
            "aiperf-dag",
            {"session_id": "a", "turns": [dag_turn(1, spawns=["a"])]},
            "expected a session that no other one",
        ),
        ("aiperf-dag", {"session_id": "a", "turns": [], "orchestrator": True}, "key orchestrator: expected none"),
        ("sglang-agentic", {"metadata": {}}, "the key conversations is missing, found metadata"),
        ("sglang-agentic", {"conversations": [[{"messages": [3]}]]}, "turn 0 message: expected an object, got 3"),
        ("otel", {"resourceSpans": []}, "expected spans with gen_ai.usage.input_tokens, got none"),
        ("otel", otlp({"traceId": "t", "spanId": "s"}), "span 0: the key startTimeUnixNano or start_time_unix_nano or"),
        (
            "mooncake",
            {"timestamp": 1, "input_length": 1, "output_length": 1, "delay": 1e300},
            "key delay: expected a time in milliseconds",
        ),
    ],
)
def test_unreadable_values_are_named(tmp_path: Path, kind: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(BlisError, match=message):
        imported(kind, tmp_path / "t.jsonl", json.dumps(given))


def test_imported_agents_are_replayed_in_a_closed_loop(tmp_path: Path) -> None:
    source, out, again = tmp_path / "t.json", str(tmp_path / "out"), str(tmp_path / "again")
    source.write_text(json.dumps(weka_trace()))
    run_convert("weka", str(source), "-o", out)
    command = ["replay", f"{out}.yaml", "--model", "m", "--session-mode", "closed-loop"]
    assert run([*command[:3], "qwen/qwen3-14b", *command[4:], "--trace-output", again]) == 0
    rows = read_trace(f"{again}.yaml").rows
    assert sorted(row.request_id for row in rows) == [0, 1, 2, 3, 4]
