"""The settings of the captured genuine servers, and equal settings for ours."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import options_of
from mockserve.options.serve import ServeOptions
from tests.wire.serving import TestServer, running_server


@dataclass(frozen=True, slots=True)
class Setup:
    """One capture file: the case files that made it, and the server it was made with.

    `settings` are those of `blis serve`; one that it does not have is left out, and what then differs is reported.
    """

    name: str
    case_files: tuple[str, ...]
    model: str
    tokenizer: str
    max_model_len: int = 2048
    has_equal_text: bool = True
    """Whether our server writes the captured server's words, so that lengths and endings can be compared, too."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def capture_file(self) -> str:
        return f"golden/vllm/{self.name}.txt"

    def folders(self, shared: Path) -> tuple[Path, Path]:
        """Folders of the model and of its tokenizer."""
        return shared / "oracle" / self.model, shared / "oracle" / self.tokenizer

    @property
    def own_settings(self) -> dict[str, Any]:
        """The settings that `blis serve` has."""
        known = {each.name for each in options_of(ServeOptions)}
        return {name: value for name, value in self.settings.items() if name in known}

    def arguments(self, shared: Path) -> list[str]:
        """A command line of `blis serve`: the model and the settings."""
        folder, tokenizer = map(str, self.folders(shared))
        found = [folder, "--tokenizer", tokenizer, "--max-model-len", str(self.max_model_len)]
        for name, value in self.own_settings.items():
            found.append(f"--{name.replace('_', '-')}")
            if value is not True:
                found += value if isinstance(value, tuple) else (str(value),)
        return found


SETUPS = (
    Setup("golden1", ("c1", "c1b", "c1c"), "model", "model"),
    Setup("golden2", ("c2",), "model", "model"),
    Setup(
        "golden3",
        ("c3",),
        "model",
        "model",
        settings={
            "api_key": ("k1",),
            "enable_lora": True,
            "enable_request_id_headers": True,
            "enable_prompt_tokens_details": True,
            "enable_force_include_usage": True,
            "enable_per_request_metrics": True,
            "enable_scale_out": True,
            "enable_tokenizer_info_endpoint": True,
            "kv_events_config": json.dumps(
                {
                    "enable_kv_cache_events": True,
                    "publisher": "zmq",
                    "endpoint": "inproc://events",
                    "replay_endpoint": "inproc://replay",
                    "topic": "kv",
                }
            ),
        },
        environment={"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"},
    ),
    Setup(
        "golden4",
        ("c4",),
        "model2",
        "model2",
        settings={
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
            "reasoning_parser": "deepseek_r1",
            "max_num_queued_reqs": 8,
        },
    ),
    Setup(
        "golden5",
        ("c4",),
        "model2",
        "model2",
        settings={"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "max_num_queued_reqs": 8},
    ),
    Setup(
        "golden6",
        ("c6",),
        "model",
        "model3",
        max_model_len=512,
        settings={"runner": "pooling", "convert": "embed", "hf_overrides": '{"hidden_size": 8}'},
    ),
)


@contextmanager
def server_like(setup: Setup, shared: Path) -> Iterator[TestServer]:
    """Our server with the settings of a captured one, as far as it has them."""
    folder, tokenizer = map(str, setup.folders(shared))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in setup.environment.items():
            patch.setenv(name, value)
        with running_server(
            model=folder, tokenizer=tokenizer, max_model_len=setup.max_model_len, **setup.own_settings
        ) as server:
            yield server
