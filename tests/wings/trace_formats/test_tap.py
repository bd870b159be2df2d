"""The recording of a tap becomes a recording of requests, with steps beside it."""

import json
from pathlib import Path

import pytest

from blis_sim.options import BlisError
from traces import read_itl, read_trace
from traces.convert_command import run
from traces.importers import ConvertOptions
from traces.server_settings import read_settings_file

ENGINE = {
    "event": "engine",
    "engine": 0,
    "max_model_len": 4096,
    "num_gpu_blocks": 900,
    "block_size": 4,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "vllm_version": "0.33.0",
}


def _request(number: int, at_us: int, prompt_tokens: int, **more: object) -> dict[str, object]:
    return {
        "event": "request",
        "engine": 0,
        "request": number,
        "at_us": at_us,
        "prompt_tokens": prompt_tokens,
        **more,
    }


def _step(step: int, at_us: int, tokens: dict[int, int], finished: dict[int, str]) -> dict[str, object]:
    return {
        "event": "step",
        "engine": 0,
        "step": step,
        "at_us": at_us,
        "ended_s": at_us / 1e6,
        "tokens": tokens,
        "queued_s": {},
        "finished": finished,
    }


LINES = (
    ENGINE,
    _request(1, 1_000_000, 10),
    _request(2, 1_500_000, 11, adapter="cats", priority=3),
    _step(0, 1_600_000, {1: 1}, {}),
    _step(1, 1_700_000, {1: 1, 2: 1}, {1: "length"}),
    {"event": "blocks", "request": 1, "blocks": ["0a", "0b", "0c"]},
    {"event": "abort", "engine": 0, "at_us": 1_750_000, "requests": [2]},
    {"event": "blocks", "request": 2, "blocks": ["0a", "0b"]},
    _request(3, 1_800_000, 5),
    _step(2, 1_900_000, {3: 1}, {3: "stop"}),
    {"event": "blocks", "request": 3, "blocks": ["0f"]},
)


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """The file of a tap."""
    path = tmp_path / "real.link.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_each_request_has_its_times_its_end_and_what_it_shares(link: Path) -> None:
    prefix = link.with_name("real")
    assert run(ConvertOptions(format="tap", file=str(link), output=str(prefix))) == 0
    rows = read_trace(f"{prefix}.yaml").rows
    assert [(row.arrival_time_us, row.send_time_us, row.input_tokens, row.output_tokens) for row in rows] == [
        (0, 1_000_000, 10, 2),
        (500_000, 1_500_000, 11, 1),
        (800_000, 1_800_000, 5, 1),
    ]
    assert [(row.first_chunk_time_us, row.last_chunk_time_us) for row in rows] == [
        (1_600_000, 1_700_000),
        (1_700_000, 1_700_000),
        (1_900_000, 1_900_000),
    ]
    assert [(row.status, row.finish_reason, row.deadline_us) for row in rows] == [
        ("ok", "length", 0),
        ("incomplete", "abort", 750_000),
        ("ok", "stop", 0),
    ]
    assert [(row.context_of, row.context_tokens) for row in rows] == [("", 0), ("0", 8), ("", 0)]
    assert (rows[1].adapter, rows[1].vllm_priority) == ("cats", 3)
    assert read_itl(Path(f"{prefix}.itl.csv"))[0] == [1_600_000, 1_700_000]


def test_a_replay_knows_the_limits_of_the_engine(link: Path) -> None:
    run(ConvertOptions(format="tap", file=str(link), output=str(link.with_name("real"))))
    settings = read_settings_file(link.with_name("real.server.yaml"))
    assert {name: settings[name] for name in ("num_gpu_blocks", "max_num_seqs", "block_size", "data_parallel")} == {
        "num_gpu_blocks": 900,
        "max_num_seqs": 8,
        "block_size": 4,
        "data_parallel": 1,
    }


def test_a_reader_of_traces_says_how_it_becomes_one(link: Path) -> None:
    with pytest.raises(BlisError, match=r"make a trace of it: blis convert tap \S+real.link.jsonl --output \S+/real$"):
        read_trace(link)


def test_a_tap_that_came_late_is_refused(link: Path) -> None:
    link.write_text("".join(json.dumps(line) + "\n" for line in LINES[1:]))
    with pytest.raises(BlisError, match=r"expected a line about an engine, got none: the tap came after its start"):
        run(ConvertOptions(format="tap", file=str(link), output=str(link.with_name("real"))))
