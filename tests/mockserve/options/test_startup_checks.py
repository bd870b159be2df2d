"""Flags with which a server refuses to start: every flag line has the outcome that vLLM's parser and configuration gave
it."""

import csv
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mockserve.server
from blis_sim.cli.main import run
from blis_sim.options import OptionError, options_from
from mockserve.generation.composer import parser_problem
from mockserve.generation.tokenizer import BuiltinTokenizer, load_tokenizer
from mockserve.options.serve import ServeOptions
from mockserve.serving.service import check_parsers

TABLE = Path(__file__).with_name("genuine_starts.csv")
"""Flag lines of `vllm serve` for a Llama folder with its exit code, 0 for a start.

`sentence` is the error of both, `reason` why an outcome differs.
"""

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 2,
    "vocab_size": 129280,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}


def rows() -> Sequence[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def serves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(*_arguments: object) -> int:
        return 0

    monkeypatch.setattr(mockserve.server, "_serve_until_signal", serve)
    monkeypatch.setattr(mockserve.server, "_serve_in_processes", serve)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def started(folder: Path, flags: Sequence[str]) -> int:
    """The exit code of a server on a GPU whose default limits are those of vLLM on a machine without a GPU."""
    tp = [] if any("parallel-size" in each for each in flags) else ["--tp", "1"]
    return run(["serve", str(folder), *flags, "--hardware", "L40S", *tp])


@pytest.mark.parametrize("row", rows(), ids=[row["flags"] for row in rows()])
def test_outcome_and_sentence_are_those_of_vllm(
    folder: Path, row: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = started(folder, shlex.split(row["flags"]))
    if row["reason"]:
        assert (code == 0) == (row["outcome"] == "refused")
    else:
        assert code == int(row["code"])
    if row["sentence"] and not row["reason"]:
        assert capsys.readouterr().err == f"blis serve: error: {row['sentence']}\n"


def test_table_has_the_lines_that_matter() -> None:
    found = rows()
    assert len(found) >= 160
    assert sum(bool(row["sentence"]) for row in found) >= 25
    assert sum(bool(row["reason"]) for row in found) <= 40


@pytest.mark.parametrize("blocks", ["100", "10"])
def test_refuses_a_context_beyond_the_cache(folder: Path, blocks: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--max-model-len", "2048", "--num-gpu-blocks-override", blocks]
    assert started(folder, flags) == 1
    estimate = (int(blocks) - 1) * 16
    assert capsys.readouterr().err == (
        "blis serve: error: To serve at least one request with the model's max seq len (2048), (0.0 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (0.0 GiB). Based on the available memory, the "
        f"estimated maximum model length is {estimate}. Try increasing `gpu_memory_utilization` (which also controls "
        "CPU memory on the CPU backend) or decreasing `max_model_len` when initializing the engine. "
        "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.\n"
    )
    assert started(folder, [*flags, "--lenient-start"]) == 0
    assert "the estimated maximum model length" in capsys.readouterr().err
    assert started(folder, ["--max-model-len", "auto", "--num-gpu-blocks-override", blocks]) == 0


@pytest.mark.parametrize(
    "flags",
    ["--kv-cache-dtype nope", "--quantization nope", "--quantization awq", "--max-model-len 5000",
     "--max-num-batched-tokens 100 --max-num-seqs 200", "--long-prefill-token-threshold 5000",
     "--collect-detailed-traces all"],
)  # fmt: skip
def test_lenient_start_warns(folder: Path, flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert started(folder, [*flags.split(), "--lenient-start"]) == 0
    assert "warning" in capsys.readouterr().err.lower()


def test_environment_allows_a_longer_context(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    assert started(folder, ["--max-model-len", "5000"]) == 0


def test_parsers_need_their_tokens() -> None:
    tokenizer = BuiltinTokenizer(1000)
    complaint = "DeepSeek-V3 Tool parser could not locate tool call start/end tokens in the tokenizer!"
    found = parser_problem("deepseek_v3", None, tokenizer, "/models/m")
    assert found == f"--tool-call-parser deepseek_v3 cannot be used with the tokenizer of '/models/m': {complaint}"
    both = parser_problem("hermes", "deepseek_r1", tokenizer, "m")
    assert both is None  # the built-in tokenizer has <think>
    assert parser_problem("hermes", None, tokenizer, "m") is None


def test_server_refuses_a_tokenizer_file_without_the_tokens_of_a_parser(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}))
    tokenizer = load_tokenizer(str(file), 10)
    options = options_from(ServeOptions, model="m", reasoning_parser="deepseek_r1")
    with pytest.raises(OptionError, match="--reasoning-parser deepseek_r1 cannot be used with the tokenizer of 'm'"):
        check_parsers(options, tokenizer)
    check_parsers(replace(options, model_argument="", lenient_start=True), tokenizer)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("qwen/qwen3-8b --tensor-parallel-size 3", 1),
        ("qwen/qwen3-8b --pipeline-parallel-size 100", 1),
        ("meta-llama/llama-3.1-70b-instruct --tensor-parallel-size 1 --hardware H100", 1),
        ("qwen/qwen3-8b --hardware NOPE", 2),
    ],
)
def test_a_model_that_does_not_fit_ends_the_start_as_in_vllm(flags: str, code: int) -> None:
    assert run(["serve", *flags.split()]) == code
