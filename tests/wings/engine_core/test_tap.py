"""A tap passes every byte on, and records steps that our scheduler composes alike."""

import asyncio
import csv
import json
import re
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blis_sim.options import OptionError
from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.recording import LinkRecorder
from blis_sim.wings.engine_core.step_check import StepCheckOptions, run
from blis_sim.wings.engine_core.tap import Seen, Tap
from tests.wings.engine_core.conftest import served
from tests.wings.engine_core.frontend import Frontend, recorded, request


def free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@asynccontextmanager
async def tapped(frontend: Frontend, prefix: Path, passed: list[Seen]) -> AsyncIterator[int]:
    """Run a tap before a frontend, and yield the port for engines."""
    port = free_port()
    tap, recorder = Tap("127.0.0.1", port, f"tcp://127.0.0.1:{frontend.port}"), LinkRecorder(prefix)
    ends: list[bool] = []

    def read(seen: Seen) -> None:
        passed.append(seen)
        recorder.read(seen)

    thread = threading.Thread(target=tap.run, args=(read, lambda: not ends))
    thread.start()
    try:
        yield port
    finally:
        ends.append(True)
        await asyncio.to_thread(thread.join)
        tap.close()
        recorder.close()
    assert recorder.num_unreadable == tap.num_dropped == 0


async def test_every_byte_passes_and_every_step_is_recorded(frontend: Frontend, tmp_path: Path) -> None:
    passed: list[Seen] = []
    async with (
        tapped(frontend, tmp_path / "tap", passed) as port,
        served(
            port,
            speed=5.0,
            enable_logging_iteration_details=True,
            max_num_batched_tokens=256,
            async_scheduling=False,
        ),
    ):
        await frontend.meet()
        sent = [request(str(number), list(range(7, 7 + 90 * number)), 4 * number) for number in range(1, 9)]
        await frontend.complete(*sent[:4])
        await frontend.until(lambda: frontend.has_ended("1"))
        sent[-1] = request("8", list(range(5000, 5700)), 40)
        await frontend.complete(*sent[4:])
        await frontend.until(lambda: all(frontend.has_ended(str(number)) for number in range(1, 9)))
        await asyncio.sleep(0.1)
        received = list(frontend.frames)
    to_frontend = [list(seen.frames) for seen in passed if not seen.to_engine]
    assert to_frontend[: len(received) + 1] == [[frontend.ready_response], *received]
    to_engine = [seen.frames[1] for seen in passed if seen.to_engine]
    assert to_engine[:4] == [messages.encode(each) for each in sent[:4]]

    with (tmp_path / "tap.steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "tap.link.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    assert len(rows) == len(steps) > 20
    assert any(step["batch"][0] > len(step["queued_s"]) for step in steps)  # a prompt in chunks
    assert all(int(row["duration_us"]) > 0 for row in rows)
    assert {line["event"] for line in lines} == {"engine", "request", "blocks", "step"}
    assert run(StepCheckOptions(recording=str(tmp_path / "tap.link.jsonl"))) == 0


async def test_no_token_and_no_text_is_in_the_files(frontend: Frontend, tmp_path: Path) -> None:
    async with tapped(frontend, tmp_path / "tap", []) as port, served(port, enable_lora=True):
        await frontend.meet()
        secret = request("customer-7", [4242] * 64, 3)
        secret.lora_request = messages.LoraRequest("adapter", 1, "/a")
        await frontend.complete(secret)
        await frontend.until(lambda: frontend.has_ended("customer-7"))
        await asyncio.sleep(0.3)
    text = "".join((tmp_path / name).read_text() for name in ("tap.link.jsonl", "tap.steps.csv"))
    assert not re.search(r"\b4242\b", text)
    assert "customer" not in text
    assert '"adapter":"adapter"' in text


def test_a_difference_is_named_with_both_compositions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _written(tmp_path, batch=[1, 20, 0, 0, 900])
    assert run(StepCheckOptions(recording=str(file))) == 1
    assert capsys.readouterr().out == (
        "step 0 of 2 differs\n"
        "recorded:  1 prompts with 20 tokens, 0 decoding with 0; new tokens by request {1: 1}\n"
        "simulated: 1 prompts with 40 tokens, 0 decoding with 0; new tokens by request {1: 1}\n"
    )


def test_equal_steps_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _written(tmp_path, batch=[1, 40, 0, 0, 900])
    assert run(StepCheckOptions(recording=str(file), format="json")) == 0
    assert json.loads(capsys.readouterr().out) == {"steps": 2, "equal": 2}


def test_a_request_that_its_frontend_ends_leaves_with_the_step_that_computed_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _written(tmp_path, batch=[1, 40, 0, 0, 900])
    lines = file.read_text().replace('"tokens":{"1":1},"queued_s":{},"step":1', '"tokens":{},"queued_s":{},"step":1')
    assert '"tokens":{},' in lines
    ended = {"event": "abort", "engine": 0, "at_us": 1_550_000, "requests": [1]}
    file.write_text(lines.replace('"finished":{"1":"length"}', '"finished":{}') + json.dumps(ended) + "\n")
    assert run(StepCheckOptions(recording=str(file))) == 0, capsys.readouterr().out


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    file = _written(tmp_path, batch=[1, 40, 0, 0, 900])
    file.write_text(file.read_text().replace('"tokens":{"1":1}', '"tokens":7', 1))
    with pytest.raises(OptionError, match=r"tap\.link\.jsonl line 3: Expected `object`, got `int`"):
        run(StepCheckOptions(recording=str(file)))


def test_a_digest_that_is_none_is_named(tmp_path: Path) -> None:
    file = _written(tmp_path, batch=[1, 40, 0, 0, 900])
    blocks = json.dumps({"event": "blocks", "request": 1, "blocks": ["0x"]})
    file.write_text(f"{blocks}\n{file.read_text()}")
    with pytest.raises(OptionError, match=r"tap\.link\.jsonl line 1: Expected `str` matching regex"):
        run(StepCheckOptions(recording=str(file)))


def test_a_message_with_figures_out_of_bounds_is_counted_and_the_next_one_read(tmp_path: Path) -> None:
    recorder = LinkRecorder(tmp_path / "tap")
    asked = messages.read_request(recorded()["add"])
    for number, token_id in enumerate((2**64 - 1, 7)):
        asked.request_id, asked.prompt_token_ids = f"{number}", [token_id] * 16
        recorder.read(Seen(0, 1.0, True, [messages.ADD, messages.encode(asked)]))
        ended = messages.EngineOutput(asked.request_id, [1], finish_reason=messages.Finish.STOP)
        recorder.read(Seen(0, 2.0, False, [messages.encode(messages.EngineOutputs(outputs=[ended]))]))
    recorder.close()
    assert (recorder.num_steps, recorder.num_unreadable) == (1, 1)


def test_a_recording_without_its_engine_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tap.link.jsonl"
    file.write_text("")
    with pytest.raises(OptionError, match="has no line of engine 0: the tap came after its start"):
        run(StepCheckOptions(recording=str(file)))


def test_files_of_an_earlier_recording_are_kept(tmp_path: Path) -> None:
    LinkRecorder(tmp_path / "tap").close()
    with pytest.raises(OptionError, match=r"tap\.link\.jsonl exists already"):
        LinkRecorder(tmp_path / "tap")


def test_a_recorded_output_of_vllm_is_a_step(tmp_path: Path) -> None:
    recorder = LinkRecorder(tmp_path / "tap")
    frames = {name: [content] for name, content in recorded().items()}
    first = messages.read_outputs(recorded()["first_output"]).outputs[0].request_id
    asked = messages.read_request(recorded()["add"])
    asked.request_id = first
    recorder.read(Seen(0, 1.0, False, frames["ready_response"]))
    recorder.read(Seen(0, 2.0, True, [messages.ADD, messages.encode(asked)]))
    recorder.read(Seen(0, 3.0, False, frames["first_output"]))
    recorder.close()
    assert (recorder.num_steps, recorder.num_unreadable) == (1, 0)
    with (tmp_path / "tap.steps.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["prefill_requests"], row["prefill_tokens"], row["decode_requests"]) == ("1", "462", "0")


def _written(folder: Path, batch: list[int]) -> Path:
    """Return a recording of one request with two tokens."""
    engine = {
        "event": "engine",
        "engine": 0,
        "max_model_len": 2048,
        "num_gpu_blocks": 1000,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
    }
    asked = {"event": "request", "engine": 0, "request": 1, "at_us": 1_000_000, "prompt_tokens": 40, "max_tokens": 2}
    step = {"event": "step", "engine": 0, "at_us": 0, "finished": {}, "tokens": {"1": 1}, "queued_s": {}}
    lines = [
        engine,
        asked,
        {**step, "step": 0, "ended_s": 1.5, "queued_s": {"1": 1.0}, "batch": batch},
        {**step, "step": 1, "ended_s": 1.6, "finished": {"1": "length"}, "batch": [0, 0, 1, 1, 700]},
        {"event": "blocks", "request": 1, "blocks": ["00aa", "00ab"]},
    ]
    file = folder / "tap.link.jsonl"
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return file
