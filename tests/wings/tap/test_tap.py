"""A tap passes every byte on, and records steps that our scheduler composes alike."""

import asyncio
import csv
import json
import random
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.options import OptionError
from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.link import identity_of
from blis_sim.wings.tap.forwarding import COMMAND, MORE, Piece, Splitter, Tap, framed
from blis_sim.wings.tap.handover import Handover
from blis_sim.wings.tap.recording import MOST_MESSAGE_BYTES, LinkRecorder
from blis_sim.wings.tap.step_check import StepCheckOptions, run
from tests.patience import wait_until
from tests.wings.engine_core.conftest import served
from tests.wings.engine_core.frontend import Frontend, recorded, request


def free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@asynccontextmanager
async def tapped(frontend: Frontend, prefix: Path, passed: list[Piece] | None = None) -> AsyncIterator[int]:
    """Run a tap before a frontend, and yield the port for engines. Pieces are read in the end."""
    port, pieces = free_port(), [] if passed is None else passed
    tap, recorder = Tap("127.0.0.1", port, f"tcp://127.0.0.1:{frontend.port}", pieces.append), LinkRecorder(prefix)
    ends: list[bool] = []
    thread = threading.Thread(target=tap.run, args=(lambda: not ends,))
    thread.start()
    try:
        yield port
    finally:
        ends.append(True)
        await asyncio.to_thread(thread.join)
        tap.close()
        recorder.take(pieces)
        recorder.close()
    assert recorder.num_unreadable == 0


def messages_of(pieces: list[Piece], to_engine: bool) -> list[list[bytes]]:
    """Return the messages that have passed in one direction."""
    found: list[list[bytes]] = [[]]
    splitters: dict[int, Splitter] = {}
    for piece in pieces:
        if piece.to_engine is to_engine:
            for _, flags, content in splitters.setdefault(piece.stream, Splitter(MOST_MESSAGE_BYTES)).frames(
                piece.data
            ):
                if not flags & COMMAND:
                    found[-1].append(content)
                    if not flags & MORE:
                        found.append([])
    return found[:-1]


async def test_every_byte_passes_and_every_step_is_recorded(frontend: Frontend, tmp_path: Path) -> None:
    passed: list[Piece] = []
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
    assert messages_of(passed, to_engine=False)[: len(received) + 1] == [[frontend.ready_response], *received]
    to_engine = [frames[1] for frames in messages_of(passed, to_engine=True)]
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


async def test_a_new_pair_passes_the_same_tap_and_its_steps_are_those_of_an_engine_that_has_just_started(
    frontend: Frontend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = list(range(1, 100))
    engine = {"enable_logging_iteration_details": True, "async_scheduling": False, "enable_lora": True}
    async with tapped(frontend, tmp_path / "tap") as port, served(port, **engine):
        await frontend.meet()
        await frontend.complete(request("a", prompt), request("open", prompt, 4000))
        await frontend.call("add_lora", messages.LoraRequest("adapter", 1, "/a"))
        await frontend.until_ended("a")
        await frontend.call("pause_scheduler", "keep", False)
        await frontend.close()
        second = Frontend(frontend.port)
        try:
            await second.meet()
            assert (await second.call("list_loras")).result == (None, [])
            await second.complete(request("b", prompt))
            await second.until_ended("b")
            await asyncio.sleep(0.1)
        finally:
            await second.close()
    lines = [json.loads(line) for line in (tmp_path / "tap.link.jsonl").read_text().splitlines()]
    assert [line["request"] for line in lines if line["event"] == "request"] == [1, 2, 3]
    assert sorted(line["request"] for line in lines if line["event"] == "blocks") == [1, 2, 3]
    assert sum(line["event"] == "engine" for line in lines) == 2
    steps = [line["step"] for line in lines if line["event"] == "step"]
    assert steps == list(range(len(steps)))
    assert run(StepCheckOptions(recording=str(tmp_path / "tap.link.jsonl"))) == 0, capsys.readouterr().out


@given(
    contents=st.lists(st.tuples(st.sampled_from((0, MORE, COMMAND)), st.binary(max_size=300)), max_size=4),
    size=st.integers(5, 200),
)
def test_a_stream_splits_alike_in_pieces_of_any_size(contents: list[tuple[int, bytes]], size: int) -> None:
    stream = bytes(64) + b"".join(framed(flags, content) for flags, content in contents)
    splitter = Splitter(MOST_MESSAGE_BYTES)
    found = [frame for start in range(0, len(stream), size) for frame in splitter.frames(stream[start : start + size])]
    assert b"".join(raw for raw, _, _ in found) == stream
    num_greeting = -(-64 // size) if size < 64 else 1
    assert [(flags & (MORE | COMMAND), content) for _, flags, content in found[num_greeting:]] == contents


@contextmanager
def passing(frontend_port: int) -> Iterator[int]:
    """Run a tap before a port, and yield its own."""
    port, ends = free_port(), list[bool]()
    tap = Tap("127.0.0.1", port, f"tcp://127.0.0.1:{frontend_port}", lambda _: None)
    thread = threading.Thread(target=tap.run, args=(lambda: not ends,))
    thread.start()
    try:
        yield port
    finally:
        ends.append(True)
        thread.join()
        tap.close()


def test_all_ranks_are_told_one_address_of_the_coordinator() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as door:
        port = door.bind_to_random_port("tcp://127.0.0.1")
        welcome = messages.read_welcome(recorded()["welcome"])
        welcome.addresses.coordinator_input, welcome.addresses.coordinator_output = "tcp://127.0.0.1:9", "tcp://[::1]:9"
        told = []
        with passing(port) as tapped_port:
            for rank in (0, 1, 0):
                with context.socket(zmq.DEALER) as engine:
                    engine.setsockopt(zmq.IDENTITY, identity_of(rank))
                    engine.connect(f"tcp://127.0.0.1:{tapped_port}")
                    engine.send(recorded()["hello"])
                    name, *_ = door.recv_multipart()
                    door.send_multipart([name, messages.encode(welcome)])
                    told.append(messages.read_welcome(engine.recv()).addresses)
    assert len({(each.coordinator_input, each.coordinator_output) for each in told}) == 1
    assert len({address for each in told for address in (*each.inputs, *each.outputs)}) == 6
    assert told[0].coordinator_input not in (None, "tcp://127.0.0.1:9")


def test_an_engine_waits_for_a_frontend_that_does_not_listen_yet() -> None:
    frontend_port = free_port()
    with passing(frontend_port) as port, socket.create_connection(("127.0.0.1", port)) as engine:
        engine.sendall(bytes(64))
        engine.settimeout(0.3)
        with pytest.raises(TimeoutError):
            engine.recv(1)
        with socket.create_server(("127.0.0.1", frontend_port)) as frontend, frontend.accept()[0] as reader:
            assert reader.recv(64, socket.MSG_WAITALL) == bytes(64)
        engine.settimeout(20)
        assert engine.recv(1) == b""


def test_a_name_that_is_slow_to_look_up_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, is_found = socket.getaddrinfo, threading.Event()

    def slow(host: str, port: str, *rest: Any, **more: Any) -> Any:
        if host != "frontend.example":
            return look_up(host, port, *rest, **more)
        if more.get("flags"):
            raise socket.gaierror
        is_found.wait()
        return look_up("127.0.0.1", port, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with socket.create_server(("127.0.0.1", 0)) as frontend:
        address, port = f"tcp://frontend.example:{frontend.getsockname()[1]}", free_port()
        tap = Tap("127.0.0.1", port, address, lambda piece: None)
        turns = iter(range(100))
        with socket.create_connection(("127.0.0.1", port)):
            tap.run(lambda: next(turns) < 5)
            assert tap.num_connections == 0
            is_found.set()
            deadline = time.monotonic() + 20
            tap.run(lambda: tap.num_connections == 0 and time.monotonic() < deadline)
        assert tap.num_connections == 1
        tap.close()


def test_a_frontend_that_does_not_read_holds_its_engine_up_and_gets_all_bytes() -> None:
    sent = bytes(64) + framed(0, bytes(range(251)) * 4000) * 20
    with (
        socket.create_server(("127.0.0.1", 0)) as frontend,
        passing(frontend.getsockname()[1]) as port,
        socket.create_connection(("127.0.0.1", port)) as engine,
    ):
        engine.settimeout(0.2)
        left = memoryview(sent)
        with suppress(TimeoutError):
            while left:
                left = left[engine.send(left) :]
        assert left
        engine.settimeout(None)
        rest = threading.Thread(target=engine.sendall, args=(left,))
        with frontend.accept()[0] as reader:
            rest.start()
            received = b""
            while len(received) < len(sent) and (more := reader.recv(1 << 20)):
                received += more
        rest.join()
    assert received == sent


async def test_no_token_and_no_text_is_in_the_files(frontend: Frontend, tmp_path: Path) -> None:
    async with tapped(frontend, tmp_path / "tap") as port, served(port, enable_lora=True):
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


def test_the_steps_are_drawn_and_the_answer_has_every_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    file, picture = _written(tmp_path, batch=[1, 20, 0, 0, 900]), tmp_path / "steps.svg"
    assert run(StepCheckOptions(recording=str(file), format="csv", plot=str(picture))) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("0,recorded,")
    assert "Tokens of each step" in picture.read_text()
    assert run(StepCheckOptions(recording=str(file), format="markdown")) == 1
    assert "step 0 of 2 differs" in capsys.readouterr().out


def test_a_request_that_its_frontend_ends_leaves_with_the_step_that_computed_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _written(tmp_path, batch=[1, 40, 0, 0, 900])
    lines = file.read_text().replace('"tokens":{"1":1},"queued_s":{},"step":1', '"tokens":{},"queued_s":{},"step":1')
    assert '"tokens":{},' in lines
    ended = {"event": "abort", "engine": 0, "at_us": 1_550_000, "requests": [1]}
    file.write_text(lines.replace('"finished":{"1":"length"}', '"finished":{}') + json.dumps(ended) + "\n")
    assert run(StepCheckOptions(recording=str(file))) == 0, capsys.readouterr().out


def test_a_request_without_an_output_is_placed_where_the_batches_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _written(tmp_path, batch=[1, 40, 0, 0, 900])
    came = {"event": "request", "engine": 0, "request": 2, "at_us": 1_499_900, "prompt_tokens": 600, "max_tokens": 2}
    left = {"event": "abort", "engine": 0, "at_us": 1_600_100, "requests": [2]}
    step = {"event": "step", "engine": 0, "at_us": 0, "finished": {}, "queued_s": {}}
    lines = file.read_text().replace('"finished":{"1":"length"},"tokens"', '"finished":{},"tokens"')
    lines = lines.replace('"max_tokens":2', '"max_tokens":9')
    more = [
        came,
        {**step, "step": 2, "ended_s": 1.601, "tokens": {"1": 1}, "batch": [1, 511, 1, 1, 700]},
        {**step, "step": 3, "ended_s": 1.602, "tokens": {"1": 1}, "batch": [1, 89, 1, 1, 700]},
        left,
        {**step, "step": 4, "ended_s": 1.603, "tokens": {"1": 1}, "batch": [0, 0, 1, 1, 700]},
    ]
    text = lines + "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in more)
    file.write_text(text)
    assert run(StepCheckOptions(recording=str(file))) == 0, capsys.readouterr().out
    file.write_text(text.replace("[1,89,1,1,700]", "[1,88,1,1,700]"))
    assert run(StepCheckOptions(recording=str(file))) == 1
    assert "step 3 of 5 differs" in capsys.readouterr().out


def test_an_end_overtakes_a_request_that_waits_for_the_end_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _written(tmp_path, batch=[1, 40, 0, 0, 900])
    came = {"event": "request", "engine": 0, "prompt_tokens": 100, "max_tokens": 2}
    step = {"event": "step", "engine": 0, "at_us": 0, "finished": {}, "queued_s": {}, "tokens": {"1": 1}}
    more = [
        {**came, "request": 2, "at_us": 1_600_050},
        {**came, "request": 3, "at_us": 1_600_500},
        {"event": "abort", "engine": 0, "at_us": 1_600_600, "requests": [2, 3]},
        {**step, "step": 2, "ended_s": 1.601, "batch": [1, 100, 1, 1, 900]},
        *(
            {**step, "step": number, "ended_s": 1.6 + number / 1e3, "batch": [0, 0, 1, 1, 900]}
            for number in range(3, 40)
        ),
    ]
    lines = file.read_text().replace('"finished":{"1":"length"},"tokens"', '"finished":{},"tokens"')
    lines = lines.replace('"max_tokens":2', '"max_tokens":99')
    file.write_text(lines + "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in more))
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
        recorder.read(Piece(1, 0, True, 1.0, b""), [messages.ADD, messages.encode(asked)])
        ended = messages.EngineOutput(asked.request_id, [1], finish_reason=messages.Finish.STOP)
        recorder.read(Piece(2, 0, False, 2.0, b""), [messages.encode(messages.EngineOutputs(outputs=[ended]))])
    recorder.close()
    assert (recorder.num_steps, recorder.num_unreadable) == (1, 1)


def test_mutated_messages_are_counted_and_the_next_ones_read(tmp_path: Path) -> None:
    draw, recorder = random.Random(7), LinkRecorder(tmp_path / "tap")
    names = ("add", "abort", "ready_response", "first_output", "outputs", "last_output", "utility_output_tasks")
    to_engine, to_frontend = Piece(1, 0, True, 1.0, b""), Piece(2, 0, False, 1.0, b"")
    for _ in range(3000):
        name = draw.choice(names)
        content = bytearray(recorded()[name])
        for _ in range(draw.randint(1, 6)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        kinds = {"add": [messages.ADD], "abort": [messages.ABORT]}
        frames = [*kinds.get(name, []), bytes(content)][: draw.choice((1, 2, 2, 2))]
        recorder.read(to_engine if name in kinds else to_frontend, frames)
    assert recorder.num_unreadable > 500
    before = recorder.num_steps
    recorder.read(to_engine, [messages.ADD, messages.encode(request("last", [1, 2, 3]))])
    recorder.read(to_frontend, [messages.encode(messages.EngineOutputs(0, [messages.EngineOutput("last", [1])]))])
    recorder.close()
    assert recorder.num_steps > before


@pytest.mark.parametrize(
    "data",
    [
        b"\x02" + (1 << 40).to_bytes(8) + bytes(100),
        framed(MORE, bytes(1 << 20)) * (1 + MOST_MESSAGE_BYTES // (1 << 20)),
    ],
    ids=["one frame", "many frames"],
)
def test_a_message_that_is_too_large_ends_the_recording_of_its_stream(data: bytes, tmp_path: Path) -> None:
    recorder = LinkRecorder(tmp_path / "tap")
    ready = framed(0, recorded()["ready_response"])
    recorder.take([Piece(1, 0, True, 1.0, bytes(64) + data), Piece(1, 0, True, 1.0, ready)])
    recorder.take([Piece(2, 0, False, 1.0, bytes(64) + ready)])
    assert recorder.num_unreadable == 1
    recorder.close()
    assert (tmp_path / "tap.link.jsonl").read_text().count("\n") == 1, "other streams go on"


def test_a_pipe_that_is_full_is_written_on_as_soon_as_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blis_sim.wings.tap.handover.EACH_S", 1e9)
    handover = Handover(LinkRecorder(tmp_path / "tap"))
    for number in range(300):
        handover.put(Piece(1, 0, True, float(number), (b"" if number else bytes(64)) + framed(COMMAND, bytes(1 << 15))))

    def is_written() -> bool:
        handover.hand_over()
        return not handover.is_behind

    wait_until(is_written)
    assert handover.close()


def test_a_recorder_that_has_ended_is_said(tmp_path: Path) -> None:
    recorder = LinkRecorder(tmp_path / "tap")
    recorder.problem = OSError("no space")
    assert not Handover(recorder).close()


def test_requests_of_an_engine_that_starts_again_are_forgotten(tmp_path: Path) -> None:
    recorder, to_engine = LinkRecorder(tmp_path / "tap"), Piece(1, 0, True, 1.0, b"")
    for stream in (2, 3):
        recorder.read(Piece(stream, 0, False, 1.0, b""), [recorded()["ready_response"]])
        recorder.read(to_engine, [messages.ADD, messages.encode(request("one", [1, 2, 3]))])
        output = messages.EngineOutputs(0, [messages.EngineOutput("one", [1])], timestamp=float(stream))
        recorder.read(Piece(stream, 0, False, 2.0, b""), [messages.encode(output)])
        recorder.take([Piece(stream, 0, False, 3.0, b"")])
    recorder.close()
    steps = [json.loads(line) for line in (tmp_path / "tap.link.jsonl").read_text().splitlines()]
    assert [list(each["tokens"]) for each in steps if each["event"] == "step"] == [["1"], ["2"]]


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
    to_engine, to_frontend = Piece(1, 0, True, 1.0, b""), Piece(2, 0, False, 2.0, b"")
    recorder.read(to_frontend, frames["ready_response"])
    recorder.read(to_engine, [messages.ADD, messages.encode(asked)])
    recorder.read(to_frontend, frames["first_output"])
    recorder.close()
    assert (recorder.num_steps, recorder.num_unreadable) == (1, 0)
    with (tmp_path / "tap.steps.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["prefill_requests"], row["prefill_tokens"], row["decode_requests"]) == ("1", "462", "0")


def test_outputs_of_a_step_for_two_api_servers_are_one_step(tmp_path: Path) -> None:
    recorder = LinkRecorder(tmp_path / "tap")
    to_engine, first, second = (Piece(stream, 0, stream == 1, 1.0, b"") for stream in (1, 2, 3))
    for name, piece in zip("ab", (first, second), strict=True):
        recorder.read(piece, [recorded()["ready_response"]])
        recorder.read(to_engine, [messages.ADD, messages.encode(request(name, [1] * 20, 2))])
    for piece, name in ((second, "b"), (first, "a")):  # each gets the outputs of two steps at once
        for step in range(2):
            stats = messages.SchedulerStats(iteration_details=messages.IterationDetails(step, 2, 40, 0, 0, 5.0))
            outputs = [messages.EngineOutput(name, [3 + step])]
            told = messages.EngineOutputs(0, outputs, stats if piece is first else None, 7 + step / 100)
            recorder.read(piece, [messages.encode(told)])
    recorder.close()
    lines = [json.loads(line) for line in (tmp_path / "tap.link.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    assert [step["tokens"] for step in steps] == [{"2": 1, "1": 1}] * 2
    assert all(step["batch"] for step in steps)


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
