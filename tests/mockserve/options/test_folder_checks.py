"""Odd model folders have the outcome at start that vLLM's configuration gave them.

`genuine_folders.csv` has the changes of a `config.json`, what vLLM 0.33 made of each, the sentence that both servers
end with, and the reason of an outcome that differs.
"""

import csv
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mockserve.server
from blis_sim.options import options_from
from mockserve.options.serve import ServeOptions
from mockserve.options.server import tasks_of
from tests.mockserve.options.test_startup_checks import CONFIG, started

TABLE = Path(__file__).with_name("genuine_folders.csv")
LEFT_OUT = "(left out)"


def rows() -> Sequence[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def serves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(*_arguments: object) -> int:
        return 0

    monkeypatch.setattr(mockserve.server, "_serve_until_signal", serve)


def write_config(folder: Path, changes: str) -> None:
    config = {**CONFIG, **json.loads(changes)}
    kept = {name: value for name, value in config.items() if value != LEFT_OUT}
    (folder / "config.json").write_text(json.dumps(kept))


@pytest.mark.parametrize("row", rows(), ids=[f"{row['changes']} {row['flags']}" for row in rows()])
def test_outcome_of_a_model_folder_is_that_of_vllm(
    tmp_path: Path, row: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path, row["changes"])
    code = started(tmp_path, shlex.split(row["flags"]))
    refused = row["outcome"] == "refused"
    assert code == (1 if refused != bool(row["reason"]) else 0)
    if row["sentence"]:
        sentence = row["sentence"].replace("{folder}", str(tmp_path))
        assert capsys.readouterr().err == f"blis serve: error: {sentence}\n"


@pytest.mark.parametrize(
    "changes", ['{"num_attention_heads": 7}', '{"model_type": "(left out)"}', '{"model_type": {"a": 1}}']
)
def test_lenient_start_serves_an_odd_model_folder(
    tmp_path: Path, changes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path, changes)
    assert started(tmp_path, ["--lenient-start"]) == 0
    assert "warning" in capsys.readouterr().err.lower()


def test_table_has_the_sentences_of_vllm() -> None:
    assert sum(bool(row["sentence"]) for row in rows()) >= 10


@pytest.mark.parametrize(
    ("architecture", "flags", "tasks"),
    [
        ("BertModel", {}, {"embed"}),
        ("Qwen3ForSequenceClassification", {}, {"classify"}),
        ("BertForTokenClassification", {}, {"classify"}),
        ("InternLM2ForRewardModel", {}, {"embed"}),
        ("LlamaForCausalLM", {}, {"generate"}),
        ("GPT2LMHeadModel", {}, {"generate"}),
        ("BertModel", {"runner": "generate"}, {"generate"}),
        ("BertModel", {"convert": "classify"}, {"classify"}),
        ("BertModel", {"task": ("generate",)}, {"generate"}),
    ],
)
def test_class_of_a_model_folder_says_what_it_is_run_for(
    tmp_path: Path, architecture: str, flags: dict[str, Any], tasks: set[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "architectures": [architecture]}))
    assert tasks_of(options_from(ServeOptions, model=str(tmp_path), **flags).routes) == tasks


def test_a_folder_with_a_pooling_module_embeds(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    modules = [{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert tasks_of(options_from(ServeOptions, model=str(tmp_path)).routes) == {"embed"}
