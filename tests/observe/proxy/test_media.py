"""Images and sounds in prompts are no text: their bytes count for no tokens, and teach nothing about tokens."""

import json
from pathlib import Path
from typing import Any

import pytest

from observe.proxy.exchanges import request_metadata_of
from observe.proxy.recording_process import Recording
from tests.observe.proxy.test_recording import Wire, job_in, rows_in

LONG = "A" * 4000
OPENAI = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{LONG}"}}
SOUND = {"type": "input_audio", "input_audio": {"data": LONG, "format": "wav"}}
ANTHROPIC = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": LONG}}
RESPONSES = {"type": "input_image", "image_url": LONG}
FILE = {"type": "file", "file": {"file_data": LONG}}


def question(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "What is in this picture?"}, *parts]}]


@pytest.mark.parametrize("part", [OPENAI, SOUND, ANTHROPIC, RESPONSES, FILE])
def test_bytes_of_media_are_no_words(part: dict[str, Any]) -> None:
    plain, shown = (
        request_metadata_of(json.dumps({"messages": question(*parts)}).encode(), b"") for parts in ((), (part,))
    )
    assert shown.num_prompt_bytes == plain.num_prompt_bytes
    assert (plain.has_media, shown.has_media) == (False, True)


def test_arguments_of_tools_are_words_whatever_their_names() -> None:
    call = {"type": "tool_use", "name": "read", "input": {"file": "x" * 100, "image": "y" * 100}}
    found = request_metadata_of(json.dumps({"messages": [{"role": "assistant", "content": [call]}]}).encode(), b"")
    assert found.num_prompt_bytes > 200
    assert not found.has_media


def test_a_prompt_with_an_image_does_not_change_what_text_is_taken_for(tmp_path: Path) -> None:
    recording = Recording(job_in(tmp_path))
    wire = Wire(recording)
    for number, parts in enumerate(((), (OPENAI,), ())):
        connection = wire.connect()
        wire.ask(connection, 100 * number, messages=question(*parts))
        # The server counts the first two prompts, of which one has a thousand tokens of an image.
        wire.answer(connection, 100 * number + 10, prompt_tokens=(9, 1009, 0)[number])
    recording.close()
    assert [row.input_tokens for row in rows_in(tmp_path)] == [9, 1009, 9]
