"""Recordings that a genuine vLLM 0.33 with Whisper's architecture was sent, and its replies: ours are the same.

`speech_replies.jsonl` was written by `workshop/vllm_oracle/speech_search.py --record`.
"""

import json
from pathlib import Path
from typing import Any

from tests.wire.serving import TestServer, running_server
from workshop.vllm_oracle.replies import HttpReply, answer
from workshop.vllm_oracle.speech_search import SpeechRequest, found_differences

TABLE = Path(__file__).with_name("speech_replies.jsonl")
ROWS = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]


def asked(server: TestServer, row: dict[str, Any]) -> list[str]:
    """Differences between the captured reply and ours."""
    sound = row["sound"] if row["sound"] is None or isinstance(row["sound"], str) else tuple(row["sound"])
    speech_request = SpeechRequest(row["path"], sound, [(name, value) for name, value in row["fields"]])
    theirs = HttpReply(row["status"], {"content-type": row["type"]}, row["reply"])
    ours = answer(server.url, speech_request.ask())
    shown = {name: value for name, value in ours.headers.items() if name == "content-type"}
    return found_differences(speech_request, theirs, HttpReply(ours.status, shown, ours.body))


def test_recordings_are_answered_as_vllm_answers_them() -> None:
    with running_server(task=("transcription",), max_model_len=448, speed=200.0) as server:
        differing = [(row["path"], row["sound"], row["fields"], found) for row in ROWS if (found := asked(server, row))]
    assert differing == []
    assert len(ROWS) >= 100
