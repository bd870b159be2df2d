"""A model's generation configuration: where it is read from, what replaces it, and what is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import OptionError
from mockserve.generation.composer import open_generation_defaults
from mockserve.options.content import ContentOptions
from mockserve.protocol.sampling import NO_DEFAULTS, GenerationDefaults, SamplingParams


def opened(folder: Path, config: dict[str, Any] | str, model: str = "", **settings: Any) -> GenerationDefaults:
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "generation_config.json").write_text(text)
    return open_generation_defaults(ContentOptions(**settings), model or str(folder))


def test_reads_the_file_of_the_model_folder(tmp_path: Path) -> None:
    found = opened(tmp_path, {"temperature": 0.5, "max_new_tokens": 7, "eos_token_id": 1})
    assert found == GenerationDefaults({"temperature": 0.5}, max_tokens=7)


def test_reads_no_file_for_vllm(tmp_path: Path) -> None:
    assert opened(tmp_path, {"temperature": 0.5}, generation_config="vllm") == NO_DEFAULTS


def test_limits_every_request_for_a_folder_of_its_own(tmp_path: Path) -> None:
    found = opened(tmp_path, {"max_new_tokens": 7}, model="qwen/qwen3-14b", generation_config=str(tmp_path))
    assert found == GenerationDefaults({}, max_tokens=7, ceiling_tokens=7)


def test_replaces_members_and_limits_every_request(tmp_path: Path) -> None:
    override = json.dumps({"max_new_tokens": 5, "top_k": 3})
    found = opened(tmp_path, {"temperature": 0.5, "max_new_tokens": 7}, override_generation_config=override)
    assert found == GenerationDefaults({"temperature": 0.5, "top_k": 3}, max_tokens=5, ceiling_tokens=5)


def test_raises_tiny_temperatures(tmp_path: Path) -> None:
    assert opened(tmp_path, {"temperature": 0.001}).sampling == {"temperature": 0.01}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"temperature": "hot"}, "temperature must be int or float, got 'hot'"),
        ({"top_k": True}, "top_k must be int, got True"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
    ],
)
def test_refuses_invalid_values(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        opened(tmp_path, config)


def test_refuses_a_folder_without_the_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--generation-config must be auto, vllm or a folder"):
        open_generation_defaults(ContentOptions(generation_config=str(tmp_path)), "qwen/qwen3-14b")


def test_refuses_an_override_that_is_no_object() -> None:
    with pytest.raises(OptionError, match="--override-generation-config must be a JSON object"):
        ContentOptions(override_generation_config="[]")


def test_fields_of_a_request_override_the_defaults() -> None:
    defaults = GenerationDefaults({"temperature": 0.5, "top_k": 3})
    found = defaults.applied(SamplingParams(temperature=0.9), {"temperature": 0.9, "top_k": None})
    assert (found.temperature, found.top_k) == (0.9, 3)


def test_refuses_a_file_that_is_no_object(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--generation-config: .* must hold a JSON object, got list"):
        opened(tmp_path, "[]")
