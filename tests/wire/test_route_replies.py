"""Requests whose replies a genuine vLLM 0.33 gave, kept in `route_replies.jsonl`: ours are the same."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.wire.plain_http import PlainReply, call
from tests.wire.serving import running_server

TABLE = Path(__file__).with_name("route_replies.jsonl")
ROWS = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
EMBEDDING = {"runner": "pooling", "convert": "embed", "hf_overrides": '{"hidden_size": 8}', "max_model_len": 512}
CLASSES = {"convert": "classify", "hf_overrides": '{"num_labels": 2}', "max_model_len": 512}
SETUPS: Mapping[str, tuple[dict[str, Any], dict[str, str]]] = {
    "dev": ({"enable_lora": True, "enable_scale_out": True}, DEV_MODE),
    "embed": (EMBEDDING, {}),
    "classify": (CLASSES, {}),
}
WITHOUT_TEMPLATE = "default chat template is no longer allowed"
"""Errors of the genuine server, whose tokenizer had no chat template; the built-in one has a template."""


@pytest.mark.parametrize("setup", SETUPS)
def test_replies_are_those_of_vllm(setup: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, environment = SETUPS[setup]
    rows = [row for row in ROWS if row["setup"] == setup and WITHOUT_TEMPLATE not in row["reply"]]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with running_server(model=str(_model_folder(tmp_path, setup)), **settings) as server:
        replies = [call(server, row["method"], row["path"], body_of(row), row["headers"]) for row in rows]
    differing = [
        (row["method"], row["path"], row.get("body", row.get("raw")), expected, found)
        for row, reply in zip(rows, replies, strict=True)
        if (expected := _shown(row["status"], row["type"], row["reply"])) != (found := _of(reply))
    ]
    assert differing == []
    assert len(rows) >= 20


def _model_folder(folder: Path, setup: str) -> Path:
    config = {
        "architectures": ["LlamaForCausalLM" if setup == "dev" else "BertModel"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "num_hidden_layers": 2,
        "vocab_size": 129280 if setup == "dev" else 30522,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def body_of(row: Mapping[str, Any]) -> Any:
    """The body of a request: bytes that are sent as they are, or JSON."""
    return row["raw"].encode("latin-1") if "raw" in row else row.get("body")


def _of(reply: PlainReply) -> Any:
    return _shown(reply.status, reply.headers.get("content-type"), reply.body.decode())


def _shown(status: int, kind: str | None, text: str) -> Any:
    """A reply as it is compared: errors word by word, others without figures, ids and texts."""
    if status >= 400 or kind != "application/json":
        return status, kind, text
    return status, kind, _without_values(json.loads(text))


def _without_values(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return [(key, _without_values(each, key)) for key, each in value.items()]
    if isinstance(value, list):
        kinds = [_without_values(each, name) for each in value]
        return kinds[:1] if name in ("data", "tokens", "embedding", "results", "checksums") else kinds
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return "number"
    return re.sub(r"\b[0-9a-f]{16}\b", "X", value) if name in ("object", "message", "status", "id") else "text"
