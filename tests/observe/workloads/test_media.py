"""Images and sounds of a workload as files that can be read, of the size that their tokens stand for."""

import base64
import io
import wave
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from blis_sim.options import OptionError
from blis_sim.testing import server
from observe.command import run
from observe.options import ObserveOptions
from observe.workload import png, wav
from traces import read_trace

Observe = Callable[..., Any]
Seen = Callable[[], list[dict[str, Any]]]


def spec(folder: Path, count: int = 3) -> str:
    def constant(value: int) -> str:
        return f"{{type: constant, params: {{value: {value}}}}}"

    path = folder / "media.yaml"
    path.write_text(
        f"version: '2'\nseed: 1\ncategory: multimodal\naggregate_rate: 100\nnum_requests: {count}\nclients:\n"
        f"- id: a\n  rate_fraction: 1\n  arrival: {{process: constant}}\n"
        f"  input_distribution: {constant(10)}\n  output_distribution: {constant(4)}\n"
        f"  multimodal:\n    text_distribution: {constant(20)}\n"
        f"    image_distribution: {constant(100)}\n    image_count_distribution: {constant(1)}\n"
        f"    audio_distribution: {constant(50)}\n    audio_count_distribution: {constant(1)}\n"
    )
    return str(path)


@pytest.mark.parametrize(("num_tokens", "pixels"), [(1, (28, 28)), (100, (280, 280)), (1000, (32 * 28, 31 * 28))])
def test_an_image_has_as_many_tiles_as_tokens(num_tokens: int, pixels: tuple[int, int]) -> None:
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(png(num_tokens, Random(1))))
    image.load()
    assert image.size == pixels
    assert png(num_tokens, Random(1)) == png(num_tokens, Random(1)) != png(num_tokens, Random(2))


def test_a_sound_lasts_as_long_as_its_tokens() -> None:
    with wave.open(io.BytesIO(wav(50, Random(1)))) as sound:
        assert sound.getnframes() / sound.getframerate() == 2.0
    assert wav(5, Random(1)) != wav(5, Random(2))


def test_a_chat_carries_files_beside_its_words(observe: Observe, seen: Seen, tmp_path: Path) -> None:
    sent = observe(
        workload_spec=spec(tmp_path), rate=None, num_requests=None, api_format="chat", media="files", model="ok"
    )
    assert sent.code == 0
    contents = [each["body"]["messages"][-1]["content"] for each in seen() if "x-request-id" in each["headers"]]
    assert len(contents) == 3
    assert [[part["type"] for part in content] for content in contents] == [["text", "image_url", "input_audio"]] * 3
    urls = {content[1]["image_url"]["url"] for content in contents}
    assert len(urls) == 3  # no cache of images has one of them
    assert all(base64.b64decode(url.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG") for url in urls)
    assert all(len(content[0]["text"].split()) <= 20 for content in contents)
    assert "are sent as text" not in sent.messages


def test_without_the_flag_they_are_words(observe: Observe, seen: Seen, tmp_path: Path) -> None:
    sent = observe(workload_spec=spec(tmp_path), rate=None, num_requests=None, api_format="chat", model="ok")
    contents = [each["body"]["messages"][-1]["content"] for each in seen() if "x-request-id" in each["headers"]]
    assert all(len(content.split()) > 150 for content in contents)
    assert "are sent as text of as many tokens (--media files sends files)" in sent.messages


def test_files_need_a_chat() -> None:
    with pytest.raises(OptionError, match=r"^--media files needs --api-format chat"):
        ObserveOptions(url="http://localhost:1", output="x", rate=1.0, num_requests=1, media="files")


@pytest.mark.slow
def test_a_server_of_a_vision_model_takes_them(tmp_path: Path) -> None:
    with server("qwen/qwen2.5-vl-7b-instruct", "--tokens-per-medium", "100", "--speed", "20") as vllm:
        path = spec(tmp_path)
        text = Path(path).read_text()
        Path(path).write_text("\n".join(line for line in text.splitlines() if "audio" not in line) + "\n")
        prefix = str(tmp_path / "out")
        assert (
            run(ObserveOptions(url=vllm.url, output=prefix, workload_spec=path, api_format="chat", media="files")) == 0
        )
    rows = read_trace(f"{prefix}.yaml").rows
    assert [row.status for row in rows] == ["ok"] * 3
    assert all(row.server_input_tokens >= 100 for row in rows)
