"""From what happens on connections to files, without a network."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from observe.event_loop import Clock
from observe.options import OutputPaths
from observe.proxy.exchanges import MemoryBudget
from observe.proxy.recording_process import Recording
from observe.proxy.tap import EventKind, Job, Message, MessageReader
from traces import TraceHeader, TraceRow, read_itl, read_rows
from traces.content import read_content

MS = 1_000_000
START = 50_000 * MS


def job_in(folder: Path, **changes: Any) -> Job:
    paths = OutputPaths(folder / "r.yaml", folder / "r.csv", folder / "r.itl.csv", None, folder / "r.content.jsonl")
    job = Job(
        paths=paths,
        header=TraceHeader(mode="real"),
        clock=Clock(1_000_000_000 * MS, START),
        upstreams=("http://a", "http://b"),
        redact=("s3cret",),
        tenant_header="",
        tenant_salt="",
        rotate_bytes=0,
        rotate_s=0,
        resumes=False,
    )
    return replace(job, **changes)


class Wire:
    """Connections of clients as the recording sees them. Times are milliseconds."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.num_connections = 0

    def connect(self, upstream: int = 0) -> int:
        self.num_connections += 1
        self.happens(EventKind.OPENED, self.num_connections, 0, b"%d" % upstream)
        return self.num_connections

    def happens(self, kind: EventKind, connection: int, at_ms: int, payload: bytes = b"") -> None:
        self.recording.take(Message(kind, connection, START + at_ms * MS, payload))

    def ask(
        self, connection: int, at_ms: int, key: str = "", path: str = "/v1/chat/completions", **members: Any
    ) -> None:
        body = json.dumps({"model": "m", **members}).encode()
        fields = f"host: h\r\nauthorization: Bearer {key}\r\n" if key else "host: h\r\n"
        head = f"POST {path} HTTP/1.1\r\n{fields}content-length: {len(body)}\r\n\r\n"
        self.happens(EventKind.REQUEST, connection, at_ms, head.encode() + body)

    def answer(self, connection: int, *at_ms: int, text: str = "ok ", prompt_tokens: int = 20) -> None:
        """A stream with a word at each of these times, which ends with the last."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        for at in at_ms:
            event = json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})
            self.happens(EventKind.REPLY, connection, at, head + chunk(f"data: {event}\n\n"))
            head = b""
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(at_ms)}
        end = f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"
        self.happens(EventKind.REPLY, connection, at_ms[-1], chunk(end) + b"0\r\n\r\n")

    def answer_whole(self, connection: int, at_ms: int, prompt_tokens: int, output_tokens: int, **members: Any) -> None:
        """A reply in one piece."""
        counts = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
        counts |= {"input_tokens": prompt_tokens, "output_tokens": output_tokens}
        body = json.dumps({**members, "usage": counts}).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.happens(EventKind.REPLY, connection, at_ms, head.encode() + body)


def chunk(text: str) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text.encode()), text.encode())


def user(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[at % 2], "content": each} for at, each in enumerate(contents)]


def rows_in(folder: Path, name: str = "r.csv") -> list[TraceRow]:
    return list(read_rows(folder / name))


def test_a_row_has_the_times_of_the_client_and_a_session_its_context(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    wire.ask(one, 100, messages=user("a"), stream=True, priority=3)
    wire.answer(one, 130, 140, 150, text="yes")
    wire.ask(one, 400, messages=user("a", "yesyesyes", "b"), stream=True)
    wire.answer(one, 430, 445, prompt_tokens=31)
    recording.write()
    first, second = rows_in(tmp_path)
    assert (first.arrival_time_us, second.arrival_time_us) == (0, 300_000)
    assert first.send_time_us == 1_000_000_100_000
    assert (first.first_chunk_time_us - first.send_time_us, first.last_chunk_time_us - first.send_time_us) == (
        30_000,
        50_000,
    )
    assert (first.vllm_priority, first.model, first.streaming, first.num_chunks) == (3, "m", True, 4)
    assert (second.session_id, second.round_index) == (first.session_id, 1)
    assert (second.think_time_us, second.context_tokens, second.server_input_tokens) == (250_000, 23, 31)
    assert read_itl(tmp_path / "r.itl.csv")[0] == [first.send_time_us + ms * 1000 for ms in (30, 40, 50, 50)]
    recording.close()


def test_a_client_that_hangs_up_and_a_server_that_fails_have_rows(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one, two, three = (wire.connect() for _ in range(3))
    for each in (one, two, three):
        wire.ask(each, 0, messages=user("a"), stream=True)
    wire.happens(EventKind.REPLY, one, 9, b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    wire.happens(EventKind.REPLY, one, 10, b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
    wire.happens(EventKind.CLIENT_GONE, one, 20)
    wire.happens(EventKind.SERVER_GONE, one, 20)
    wire.happens(EventKind.SERVER_GONE, two, 30)
    recording.close()
    cancelled, failed, stopped = rows_in(tmp_path)
    assert (cancelled.status, cancelled.finish_reason, cancelled.output_tokens) == ("incomplete", "abort", 1)
    assert (failed.status, failed.error_message) == ("error", "the server closed the connection")
    assert (stopped.status, stopped.error_message) == ("incomplete", "the proxy was stopped")
    assert recording.report.by_status == {"incomplete": 2, "error": 1}


def test_prompts_of_clients_that_hang_up_have_the_tokens_that_later_counts_suggest(tmp_path: Path) -> None:
    """A token has eight bytes here, where a text without a count has one for four. Roles take a byte or two."""
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    system, words = {"role": "system", "content": "8 bytes " * 40}, "8 bytes " * 100
    gone, late, done, elsewhere = (wire.connect() for _ in range(4))
    wire.ask(gone, 0, messages=[system, *user(words)], stream=True)
    wire.ask(late, 1, model="other", messages=user(words), stream=True)
    wire.ask(elsewhere, 2, messages=[system, *user("8 bytes " * 50)], n=2, stream=True)
    wire.happens(EventKind.REPLY, elsewhere, 2, b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    for each in (gone, late, elsewhere):
        wire.happens(EventKind.CLIENT_GONE, each, 3)
        wire.happens(EventKind.SERVER_GONE, each, 3)
    recording.write()
    assert not rows_in(tmp_path)  # nothing was counted yet
    wire.ask(done, 4, messages=user(words), stream=True)
    wire.answer(done, 10, prompt_tokens=100)
    recording.write()
    written = rows_in(tmp_path)
    assert [(row.prefix_length, row.input_tokens) for row in written if row.status == "incomplete"] == [
        (40, 100), (40, 51), (40, 51),
    ]  # fmt: skip
    assert [row.context_tokens for row in written if row.context_of] == [90]
    recording.close()
    by_model = {row.model: row for row in rows_in(tmp_path)}
    assert by_model["other"].input_tokens == 201
    assert recording.report.num_requests == 4


def test_rows_wait_a_minute_at_most_for_a_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("observe.proxy.recording_process._WAIT_S", 0.0)
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    gone = wire.connect()
    wire.ask(gone, 0, messages=user("8 bytes " * 100), stream=True)
    wire.happens(EventKind.CLIENT_GONE, gone, 3)
    wire.happens(EventKind.SERVER_GONE, gone, 3)
    recording.write()
    assert [row.input_tokens for row in rows_in(tmp_path)] == [201]
    recording.close()


def test_few_rows_wait_for_a_count(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    for number in range(250):
        gone = wire.connect()
        wire.ask(gone, number, messages=user(f"words {number}"), stream=True)
        wire.happens(EventKind.CLIENT_GONE, gone, number)
        wire.happens(EventKind.SERVER_GONE, gone, number)
    recording.write()
    assert len(rows_in(tmp_path)) == 50
    recording.close()
    assert len(rows_in(tmp_path)) == 250


def test_tenants_are_distinguished_by_hashes_and_no_key_is_written(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    for key in ("k-alpha", "k-beta", "k-alpha", ""):
        connection = wire.connect()
        wire.ask(connection, 0, key=key, messages=user("a s3cret"), stream=True)
        wire.answer(connection, 10, text="s3cret")
    recording.close()
    tenants = [row.tenant_id for row in rows_in(tmp_path)]
    assert tenants[0] == tenants[2] != tenants[1]
    assert tenants[3] == ""
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(each in written.replace(b'"redact":["s3cret"]', b"") for each in (b"alpha", b"beta", b"s3cret"))


def test_salt_and_header_change_the_names_of_tenants(tmp_path: Path) -> None:
    names = []
    for at, changes in enumerate(({}, {"tenant_salt": "x"}, {"tenant_header": "Host"})):
        (folder := tmp_path / str(at)).mkdir()
        recording = Recording(job_in(folder, **changes))
        wire = Wire(recording)
        wire.ask(wire.connect(), 0, key="k", messages=user("a"))
        recording.close()
        names.append(rows_in(folder)[0].tenant_id)
    assert len(set(names)) == 3


def test_prompts_without_counts_have_the_length_that_others_of_the_model_suggest(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    wire.ask(one, 0, messages=user("w" * 400))
    wire.answer(one, 10, prompt_tokens=50)
    wire.ask(one, 20, messages=user("w" * 800))
    wire.happens(EventKind.REPLY, one, 30, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    recording.close()
    assert [(row.input_tokens, row.server_input_tokens) for row in rows_in(tmp_path)] == [(50, 50), (100, 0)]


def test_a_recording_is_gone_on_with_in_its_numbers_and_its_clock(tmp_path: Path) -> None:
    for at in (0, 1):
        recording = Recording(job_in(tmp_path, resumes=bool(at)))
        wire = Wire(recording)
        one = wire.connect(at)
        wire.ask(one, 1000 * at + 100, messages=user("a"))
        wire.answer(one, 1000 * at + 110)
        recording.write()  # as a kill leaves it
    rows = rows_in(tmp_path)
    assert [(row.request_id, row.arrival_time_us, row.session_id) for row in rows] == [
        (0, 0, "session-1"),
        (1, 1_000_000, "session-2"),
    ]
    assert set(read_itl(tmp_path / "r.itl.csv")) == {0, 1}
    assert [each.upstream for each in read_content(tmp_path / "r.content.jsonl").exchanges] == ["http://a", "http://b"]


@pytest.mark.slow
def test_parts_begin_when_one_is_large_and_are_traces_of_their_own(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path, rotate_bytes=1))
    wire = Wire(recording)
    one = wire.connect()
    for at in range(3):
        wire.ask(one, at * 10, messages=user("a"))
        wire.answer(one, at * 10 + 5)
        recording.write()
    recording.close()
    assert [row.request_id for part in (1, 2, 3) for row in rows_in(tmp_path, f"r-000{part}.csv")] == [0, 1, 2]
    assert rows_in(tmp_path, "r-0003.csv")[0].arrival_time_us == 20_000
    assert set(read_itl(tmp_path / "r-0002.itl.csv")) == {1}
    resumed = Recording(job_in(tmp_path, rotate_bytes=1, resumes=True))
    wire = Wire(resumed)
    two = wire.connect()
    wire.ask(two, 90, messages=user("a"))
    wire.answer(two, 95)
    resumed.close()
    assert [row.request_id for row in rows_in(tmp_path, "r-0004.csv")] == [3]


def test_a_part_begins_when_the_present_one_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("observe.proxy.rows.monotonic", lambda: now)
    recording = Recording(job_in(tmp_path, rotate_s=60))
    wire = Wire(recording)
    one = wire.connect()
    for at, each in enumerate((1.0, 59.0, 61.0, 119.0)):
        now = each
        wire.ask(one, at * 10, messages=user("a"))
        wire.answer(one, at * 10 + 5)
        recording.write()
    recording.close()
    assert [len(rows_in(tmp_path, f"r-000{part}.csv")) for part in (1, 2)] == [2, 2]


def test_a_full_disk_ends_the_recording_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    wire.ask(wire.connect(), 0, messages=user("a"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("traces.append_file.os.write", full)
    recording.close()
    assert recording.report.failure == "the recording has ended: no space left on device"


def test_what_is_counted_is_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    wire.ask(one, 0, messages=user("a"))
    wire.answer(one, 10, 20)
    recording.write()
    before = (1, {"ok": 1}, 1, 20, 2)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("traces.append_file.os.write", full)
    wire.ask(one, 30, messages=user("b"))
    wire.answer(one, 40, 50)
    recording.close()
    report = recording.report
    found = (report.num_requests, report.by_status, report.num_sessions, report.prompt_tokens, report.output_tokens)
    assert found == before


def test_a_server_that_closes_after_its_client_has_done_so_is_not_blamed(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    gone, reading = wire.connect(), wire.connect()
    for each in (gone, reading):
        wire.ask(each, 0, messages=user("a"), stream=True)
        wire.happens(EventKind.CLIENT_ENDED, each, 5)
    wire.happens(EventKind.REPLY, reading, 6, b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
    for each in (gone, reading):
        wire.happens(EventKind.SERVER_GONE, each, 10)
    recording.close()
    assert [row.status for row in rows_in(tmp_path)] == ["incomplete", "error"]


def test_bodies_of_many_connections_have_a_common_bound(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    recording._memory = MemoryBudget(1_400)
    wire = Wire(recording)
    connections = [wire.connect() for _ in range(3)]
    for each in connections:
        wire.ask(each, 0, messages=user("a" * 200), stream=True)
    for each in connections:
        wire.answer(each, 10, text="b" * 300)
    recording.close()
    assert [row.status for row in rows_in(tmp_path)] == ["ok"] * 3
    assert (recording.report.num_unread, recording.report.unread) == (2, "the memory for bodies is full")


def test_a_connection_that_was_not_seen_whole_leaves_no_row(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    wire.ask(one, 0, messages=user("a"))
    wire.happens(EventKind.DROPPED, one, 5)
    wire.answer(one, 10)
    recording.close()
    assert rows_in(tmp_path) == []


def test_messages_come_out_of_bytes_cut_anywhere() -> None:
    import struct

    frames = b"".join(struct.pack("<BIQI", kind, 7, 9, 3) + b"abc" for kind in (1, 2))
    reader = MessageReader()
    found = [each for at in range(len(frames)) for each in reader.feed(frames[at : at + 1])]
    assert found == [Message(EventKind.REQUEST, 7, 9, b"abc"), Message(EventKind.REPLY, 7, 9, b"abc")]


def test_tokens_of_a_shared_start_are_those_that_the_turns_do_not_take(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    wire.ask(one, 0, messages=user("a" * 40), stream=True)
    wire.answer(one, 10, prompt_tokens=20)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for at, turn in enumerate(("b" * 40, "c" * 80)):
        # Twenty tokens for 40 bytes of turns as before; the template's words and the tools are the others.
        wire.ask(one, 100 + 100 * at, messages=user(turn), tools=tools, stream=True)
        wire.answer(one, 110 + 100 * at, prompt_tokens=170 + 20 * at)
    recording.close()
    assert [row.prefix_length for row in rows_in(tmp_path)] == [0, 150, 150]


def test_a_model_that_compares_vectors_computes_each_text_of_a_score_once(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path, compares_vectors=True))
    wire = Wire(recording)
    one = wire.connect()
    wire.ask(one, 0, path="/score", text_1="a" * 20, text_2=["b" * 10, "c" * 10])
    wire.answer_whole(one, 9, prompt_tokens=40, output_tokens=0)
    wire.ask(one, 10, path="/rerank", query="a" * 20, documents=["b" * 20])
    wire.answer_whole(one, 19, prompt_tokens=40, output_tokens=0)
    wire.ask(one, 20, path="/score", text_1=["a" * 10] * 2, text_2=["b" * 10] * 2)
    wire.answer_whole(one, 29, prompt_tokens=40, output_tokens=0)
    recording.close()
    rows = rows_in(tmp_path)
    by_request = [[row.server_input_tokens for row in rows if row.arrival_time_us == at] for at in (0, 10_000, 20_000)]
    assert by_request == [[19, 10, 11], [20, 20], [10, 10, 10, 10]]
    assert not any(row.context_of for row in rows)


@pytest.mark.parametrize(
    ("path", "members", "lengths"),
    [
        ("/v1/embeddings", {"input": "some words to be computed"}, [17]),
        ("/v1/embeddings", {"input": [[1, 2, 3], [4, 5]]}, [10, 7]),
        ("/pooling", {"messages": user("some words")}, [17]),
        ("/classify", {"input": ["one text", "another"]}, [9, 8]),
        ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}, [8, 9]),
        ("/v2/rerank", {"query": "a", "documents": ["b", "c"]}, [8, 9]),
        ("/score", {"queries": ["a", "bbb"], "items": ["b", "c"]}, [6, 11]),
        ("/v1/embeddings", {"input": ["a"] * 20}, [17]),
    ],
)
def test_prompts_that_are_only_computed_have_rows_with_one_token(
    tmp_path: Path, path: str, members: dict[str, Any], lengths: list[int]
) -> None:
    """One token ends each such prompt in the engine, so that a replay has its load; the last one has the times."""
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    body = json.dumps({"model": "m", **members}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    wire.happens(EventKind.REQUEST, one, 100, head + body)
    reply = json.dumps({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 17, "completion_tokens": 0}})
    fields = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(reply)}\r\n\r\n"
    wire.happens(EventKind.REPLY, one, 130, (fields + reply).encode())
    recording.close()
    rows = rows_in(tmp_path)
    assert [row.server_input_tokens for row in rows] == lengths
    assert {(row.status, row.streaming, row.output_tokens) for row in rows} == {("ok", False, 1)}
    assert len({row.request_id for row in rows}) == len(lengths)
    *others, row = rows
    assert all(each.is_part and not each.first_chunk_time_us for each in others)
    assert not row.is_part
    assert row.last_chunk_time_us - row.send_time_us == 30_000
    assert (row.model, row.error_message) == ("m", "")


def test_choices_of_a_stream_have_rows_with_their_tokens_and_share_a_prompt(tmp_path: Path) -> None:
    """The longest has the times and the chunks, for the reply ends with it."""
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    wire.ask(one, 100, messages=user("a"), stream=True, n=3)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    for at, index in ((130, 0), (131, 1), (132, 2), (140, 1), (141, 2), (150, 1)):
        event = json.dumps({"choices": [{"index": index, "delta": {"content": "ok "}, "finish_reason": None}]})
        wire.happens(EventKind.REPLY, one, at, head + chunk(f"data: {event}\n\n"))
        head = b""
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 6}})
    wire.happens(EventKind.REPLY, one, 151, chunk(f"data: {usage}\n\ndata: [DONE]\n\n") + b"0\r\n\r\n")
    recording.close()
    rows = rows_in(tmp_path)
    longest = rows[-1]
    assert [(row.server_input_tokens, row.output_tokens, bool(row.is_part)) for row in rows] == [
        (20, 1, True),
        (20, 2, True),
        (20, 3, False),
    ]
    assert [(row.context_of, row.context_tokens) for row in rows] == [("2", 19), ("2", 19), ("", 0)]
    assert {row.arrival_time_us for row in rows} == {0}
    assert (longest.first_chunk_time_us - longest.send_time_us) == 30_000
    found = read_itl(tmp_path / "r.itl.csv")
    assert found == {2: [longest.send_time_us + ms * 1000 for ms in (31, 40, 50)]}


def _text_choice(index: int, text: str, reason: str) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": reason}


def test_answers_in_one_piece_are_as_long_as_their_limit_or_their_share_of_the_text(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    wire.ask(one, 100, path="/v1/completions", prompt=["aaaa", "bbbbbbbb"], n=2, max_tokens=9)
    texts = (("a", "length"), ("b" * 30, "stop"), ("c" * 70, "stop"), ("d", "length"))
    choices = [_text_choice(index, *each) for index, each in enumerate(texts)]
    wire.answer_whole(one, 130, prompt_tokens=12, output_tokens=28, choices=choices)
    recording.close()
    rows = rows_in(tmp_path)
    assert [row.output_tokens for row in rows] == [9, 3, 7, 9]
    assert [row.server_input_tokens for row in rows] == [4, 4, 8, 8]
    assert [row.context_of for row in rows] == ["1", "", "3", ""]


@pytest.mark.parametrize(("num_choices", "num_rows"), [(3, 3), (9_000, 1)])
def test_choices_of_a_client_that_hangs_up_end_with_it(tmp_path: Path, num_choices: int, num_rows: int) -> None:
    """A small request makes no thousands of rows."""
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    wire.ask(one, 100, messages=user("a"), stream=True, n=num_choices)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    wire.happens(EventKind.REPLY, one, 110, head)
    wire.happens(EventKind.CLIENT_GONE, one, 120)
    recording.close()
    rows = rows_in(tmp_path)
    assert [(row.status, row.deadline_us) for row in rows] == [("incomplete", 20_000)] * num_rows


def test_choices_that_their_limit_ended_are_as_long_as_it_whatever_their_events(tmp_path: Path) -> None:
    """An event has several tokens where a server drafts, or sends some together."""
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    wire.ask(one, 100, messages=user("a"), stream=True, n=3, max_tokens=5)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    for index, reason in ((0, None), (1, None), (2, None), (0, None), (0, "length"), (1, "length"), (2, "stop")):
        event = json.dumps({"choices": [{"index": index, "delta": {"content": "ok "}, "finish_reason": reason}]})
        wire.happens(EventKind.REPLY, one, 130, head + chunk(f"data: {event}\n\n"))
        head = b""
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 14}})
    wire.happens(EventKind.REPLY, one, 151, chunk(f"data: {usage}\n\ndata: [DONE]\n\n") + b"0\r\n\r\n")
    recording.close()
    assert [row.output_tokens for row in rows_in(tmp_path)] == [5, 4, 5]


@pytest.mark.parametrize(
    ("path", "members", "lengths"),
    [
        ("/v1/chat/completions/batch", {"messages": [user("aaaa"), user("aaaa")]}, [(10, 3), (10, 3)]),
        ("/inference/v1/generate", {"token_ids": [1, 2], "sampling_params": {"n": 2}}, [(20, 3), (20, 3)]),
        ("/invocations", {"messages": user("a"), "n": 2}, [(20, 3), (20, 3)]),
        ("/invocations", {"input": ["aaaa", "aaaa"]}, [(10, 1), (10, 1)]),
        ("/generative_scoring", {"query": "a", "items": ["b", "c"]}, [(10, 1), (10, 1)]),
    ],
)
def test_requests_of_every_form_have_a_row_for_each_sequence(
    tmp_path: Path, path: str, members: dict[str, Any], lengths: list[tuple[int, int]]
) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    wire.ask(one, 100, path=path, **members)
    choices = [_text_choice(index, "word", "stop") for index in range(2)]
    wire.answer_whole(one, 130, prompt_tokens=20, output_tokens=6, choices=choices)
    recording.close()
    assert [(row.server_input_tokens, row.output_tokens) for row in rows_in(tmp_path)] == lengths


@pytest.mark.parametrize(("members", "num_alike"), [({}, 7), ({"item_first": True}, 0)])
def test_texts_that_are_scored_for_one_query_begin_alike(
    tmp_path: Path, members: dict[str, Any], num_alike: int
) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    wire.ask(one, 100, path="/score", text_1="aaa", text_2=["b", "c"], **members)
    wire.answer_whole(one, 130, prompt_tokens=20, output_tokens=0, data=[])
    recording.close()
    first, second = rows_in(tmp_path)
    assert (first.context_of, first.context_tokens) == ("1" if num_alike else "", num_alike)
    assert (second.context_of, second.context_tokens) == ("", 0)


def test_instructions_under_another_salt_are_not_shared(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    messages = [{"role": "system", "content": "s" * 400}, *user("a")]
    for salt in ("x", "y", "x"):
        one = wire.connect()
        wire.ask(one, 100, messages=messages, stream=True, cache_salt=salt)
        wire.answer(one, 130)
    recording.close()
    groups = [row.prefix_group for row in rows_in(tmp_path)]
    assert groups[0] == groups[2] != groups[1]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_response_that_names_the_one_before_is_its_next_round(tmp_path: Path, is_streamed: bool) -> None:
    """A second response to the same one begins another session with the same context."""
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    one = wire.connect()
    for at, (answer, before) in enumerate((("resp_a", None), ("resp_b", "resp_a"), ("resp_c", "resp_a"))):
        wire.ask(one, 100 * at, path="/v1/responses", input="word", stream=is_streamed, previous_response_id=before)
        content = {"id": answer, "object": "response", "status": "completed"}
        if not is_streamed:
            wire.answer_whole(one, 100 * at + 50, prompt_tokens=40 + at, output_tokens=6, **content)
            continue
        usage = {"input_tokens": 40 + at, "output_tokens": 6}
        events = (
            {"type": "response.created", "response": {**content, "status": "in_progress"}},
            {"type": "response.output_text.delta", "delta": "ok"},
            {"type": "response.completed", "response": {**content, "usage": usage}},
        )
        body = "".join(f"data: {json.dumps(each)}\n\n" for each in events)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        wire.happens(EventKind.REPLY, one, 100 * at + 50, head + chunk(body) + b"0\r\n\r\n")
    recording.close()
    first, second, third = rows_in(tmp_path)
    assert (second.session_id, second.round_index, second.context_tokens) == (first.session_id, 1, 40)
    assert second.think_time_us == 50_000
    assert (third.round_index, third.context_of, third.context_tokens) == (0, "0", 41)
    assert third.session_id != first.session_id
