"""The memory of a recording is bounded, whatever clients and servers send."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from observe.proxy.exchanges import MemoryBudget
from observe.proxy.recording_process import Recording
from observe.proxy.tap import EventKind
from tests.observe.proxy.test_recording import Wire, job_in, rows_in, user
from traces.content import RecordedExchange, line_of, read_content

JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"ab"}}]}\n\n'


def test_a_request_whose_content_is_not_recorded_is_forgotten_when_it_has_been_read(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    recording = Recording(job_in(tmp_path, paths=replace(job.paths, content=None)))
    recording._memory = MemoryBudget(10_000)
    wire = Wire(recording)
    for _ in range(5):  # none is answered yet
        wire.ask(wire.connect(), 0, messages=user("a" * 4_000))
    wire.answer(3, 10, text="b")
    recording.close()
    assert recording.report.num_unread == 0
    assert [row.prefix_length + row.input_tokens for row in rows_in(tmp_path) if row.status == "ok"] == [20]


def test_a_reply_in_chunks_of_one_byte_takes_no_more_than_its_bytes(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    recording._memory = MemoryBudget(20_000)
    wire = Wire(recording)
    connection = wire.connect()
    wire.ask(connection, 0, messages=user("a"), stream=True)
    body = EVENT * 60 + b"data: [DONE]\n\n"
    chunks = b"".join(b"1\r\n%c\r\n" % each for each in body)
    wire.happens(EventKind.REPLY, connection, 5, STREAM_HEAD + chunks + b"0\r\n\r\n")
    recording.close()
    (exchange,) = read_content(tmp_path / "r.content.jsonl").exchanges
    assert exchange.reply_body == body
    assert recording.report.num_unread == 0


@pytest.mark.parametrize("data", [b"\x01" * 9_000, b"a" * 9_000, b"\x1b[0m" * 2_000, b'"\n' * 5_000, b"\xff" * 9_000])
def test_a_line_of_content_is_at_most_twice_as_long_as_what_it_holds(data: bytes) -> None:
    exchange = RecordedExchange(
        request_id=0, sent_at_us=0, method="POST", path="/", headers=(), body=data, status=200, reply_headers=(),
        pieces=[(0, data)], is_complete=True,
    )  # fmt: skip
    assert sum(map(len, line_of(exchange))) < 4 * len(data) + 1_000


_HOSTILE = """
import sys
from pathlib import Path
from observe.proxy.recording_process import Recording
from observe.proxy.tap import EventKind
from tests.observe.proxy.test_memory import EVENT, JSON_HEAD, STREAM_HEAD
from tests.observe.proxy.test_recording import Wire, job_in, user

def sized(body):
    return JSON_HEAD + b"content-length: %d\\r\\n\\r\\n" % len(body) + body

def memory_mb(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

REPLIES = {
    "events": STREAM_HEAD + b"%x\\r\\n" % (len(EVENT) * 190_000) + EVENT * 190_000 + b"\\r\\n0\\r\\n\\r\\n",
    "control characters": sized(b'{"a": "' + b"\\x01" * 15_000_000 + b'"}'),
    "a text": sized(b'{"a": "' + b"x" * 16_000_000 + b'"}'),
    "escapes": sized(b'{"a": "' + b"\\\\u2026" * 2_600_000 + b'"}'),
    "objects": sized(b"[" + b'{"a":1},' * 260_000 + b"1]"),
}
reply = REPLIES.pop(sys.argv[1])
REPLIES.clear()
wire = Wire(Recording(job_in(Path(sys.argv[2]))))
first = wire.connect()
wire.ask(first, 1, messages=user("a"))
wire.answer(first, 2, 3)
before = memory_mb("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
connections = [wire.connect() for _ in range(3)]
for each in connections:
    wire.ask(each, 4, messages=user("a"))
    for at in range(0, len(reply), 1 << 18):
        wire.happens(EventKind.REPLY, each, 5, reply[at : at + (1 << 18)])
for each in connections:
    wire.happens(EventKind.SERVER_GONE, each, 6)
print(memory_mb("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["events", "control characters", "a text", "escapes", "objects"])
def test_hostile_replies_take_little_memory_of_the_recording_process(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOSTILE, name, str(tmp_path)]
    growth_mb = float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert growth_mb < 130
