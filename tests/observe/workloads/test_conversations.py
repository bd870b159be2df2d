"""Closed loop: users and conversations that wait for the server's replies."""

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from blis_sim.options import BlisError
from observe.command import run
from observe.options import ObserveOptions
from traces import TraceRow

Observe: TypeAlias = Callable[..., Any]
Seen: TypeAlias = Callable[[], list[dict[str, Any]]]


def written(folder: Path, **client: Any) -> str:
    given = {
        "id": "c",
        "input_distribution": {"type": "constant", "params": {"value": 12}},
        "output_distribution": {"type": "constant", "params": {"value": 4}},
        **client,
    }
    spec = {"version": "2", "seed": 3, "aggregate_rate": 50.0, "num_requests": 12, "clients": [given]}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return str(path)


def talks(folder: Path, growth: str = "accumulate", **client: Any) -> str:
    multi_turn = {"max_rounds": 3, "think_time_us": 30_000, "context_growth": growth}
    arrival = {"process": "poisson"}
    return written(folder, rate_fraction=1, arrival=arrival, reasoning={"multi_turn": multi_turn}, **client)


def by_session(rows: list[TraceRow]) -> list[list[TraceRow]]:
    found: dict[str, list[TraceRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.round_index):
        found[row.session_id].append(row)
    return list(found.values())


def test_users_wait_for_their_reply_and_think(observe: Observe, tmp_path: Path) -> None:
    path = written(tmp_path, concurrency=3, think_time_us=30_000)
    rows = observe(workload_spec=path, model="ok-20-5", rate=None, num_requests=None).trace.rows
    assert len(rows) == 12
    assert sorted(row.request_id for row in rows) == list(range(12))
    users = by_session(rows)
    assert len(users) == 3
    for user in users:
        assert [row.round_index for row in user] == list(range(len(user)))
        for one, other in pairwise(user):
            assert other.send_time_us - one.last_chunk_time_us >= 30_000
            assert other.think_time_us == 30_000


@pytest.mark.parametrize(("api", "key"), [("chat", "messages"), ("responses", "input")])
def test_each_prompt_holds_all_messages_before_it(
    api: str, key: str, observe: Observe, seen: Seen, tmp_path: Path
) -> None:
    run = observe(workload_spec=talks(tmp_path), model="ok", rate=None, num_requests=3, api_format=api)
    assert {row.status for row in run.trace.rows} == {"ok"}
    given = [each["body"][key] for each in seen() if each["body"]["stream"]]
    long = [messages for messages in given if len(messages) == 5 and isinstance(messages, list)]
    assert len(long) == len(by_session(run.trace.rows))
    for messages in long:
        assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
        assert [message["content"] for message in messages[1::2]] == [" x x x x"] * 2
        assert messages[:3] in given


def test_a_completion_goes_on_from_the_prompt_and_the_reply_before_it(
    observe: Observe, seen: Seen, tmp_path: Path
) -> None:
    run = observe(workload_spec=talks(tmp_path), model="ok", rate=None, num_requests=3)
    for session in by_session(run.trace.rows):
        assert [row.round_index for row in session] == [0, 1, 2]
        tokens = [12, 12 + 4 + 12, 12 + 4 + 12 + 4 + 12]
        assert [row.input_tokens for row in session] == tokens
        assert [row.server_input_tokens for row in session] == tokens
        assert [row.context_tokens for row in session] == [0, 12 + 4, 12 + 4 + 12 + 4]
    prompts = [each["body"]["prompt"] for each in seen() if each["body"]["stream"]]
    later = [prompt for prompt in prompts if "x" in prompt.split()]
    assert len(later) == 2 * len(by_session(run.trace.rows))
    assert all(any(prompt.startswith(f"{before} x x x x ") for before in prompts) for prompt in later)


def test_rounds_without_growth_stand_alone(observe: Observe, tmp_path: Path) -> None:
    run = observe(workload_spec=talks(tmp_path, growth=""), model="ok", rate=None, num_requests=3)
    assert {row.server_input_tokens for row in run.trace.rows} == {12}
    assert {row.context_tokens for row in run.trace.rows} == {0}
    assert len(run.trace.rows) % 3 == 0


def test_a_request_that_fails_ends_its_conversation(observe: Observe, tmp_path: Path) -> None:
    path = talks(tmp_path, model="midcut")
    rows = observe(workload_spec=path, model="ok", rate=None, num_requests=6).trace.rows
    assert {row.round_index for row in rows} == {0}
    assert {row.status for row in rows} == {"error"}


def test_a_closed_loop_cannot_be_resumed(server_url: str, tmp_path: Path) -> None:
    options = ObserveOptions(url=server_url, workload_spec=talks(tmp_path), output=str(tmp_path / "o"), resume=True)
    with pytest.raises(BlisError, match="conversations cannot be taken up again"):
        run(options)
