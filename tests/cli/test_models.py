"""`blis models` prints the memory plan of a model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from tests.cli.conftest import Said

Blis = Callable[..., Said]

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 40960,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_json_has_weights_groups_blocks_granularity_and_capacity(blis: Blis, folder: Path) -> None:
    code, out, err = blis(
        "models", str(folder), "--kv-cache-memory-bytes", str(120 * 2**30), "--max-model-len", "16384", "--json"
    )
    plan = json.loads(out)
    assert (code, err) == (0, "")
    assert plan["weight_bytes_per_gpu"] == [pytest.approx(1192099840, rel=1e-3)]
    assert plan["kv_groups"] == [
        {"kind": "FullAttentionSpec", "layers": 28, "block_size": 16, "page_bytes": 65536},
    ]
    assert (plan["num_gpu_blocks"], plan["block_size_tokens"], plan["kv_capacity_tokens"]) == (70217, 16, 1123472)


def test_stages_have_weights_of_their_own(blis: Blis, folder: Path) -> None:
    _, out, _ = blis("models", str(folder), "--pp", "2", "--json")
    plan = json.loads(out)
    assert len(plan["weight_bytes_per_gpu"]) == 2
    assert plan["kv_groups"][0]["layers"] == 14


def test_table_names_weights_and_capacity(blis: Blis, folder: Path) -> None:
    _, out, _ = blis("models", str(folder), "--hardware", "H100")
    assert "weights        1.11 GiB per GPU" in out
    assert "KV of a token  114,688 bytes per GPU" in out
    assert "fits on        1 x A10, A100-40, " in out
    assert "step times     fitted: median error TTFT " in out
    assert "FullAttentionSpec      28            16      65,536" in out


def test_fp8_kv_cache_doubles_the_blocks(blis: Blis, folder: Path) -> None:
    arguments = ("models", str(folder), "--kv-cache-memory-bytes", str(2**34), "--json")
    _, plain, _ = blis(*arguments)
    _, fp8, _ = blis(*arguments, "--kv-cache-dtype", "fp8")
    assert json.loads(fp8)["num_gpu_blocks"] // 2 == json.loads(plain)["num_gpu_blocks"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--kv-cache-memory-bytes", "1000000"],
            "--kv-cache-memory-bytes must be at least a block, 1835008, got 1000000",
        ),
        (["--kv-cache-memory-bytes", "2000000"], "of KV cache per GPU for one request of 40960 tokens, got 0.00 GiB"),
        (["--tp", "5"], "has 16 attention heads, which tp 5 does not divide"),
        (["--hardware", "X1"], "GPU 'X1' is not in the catalogue"),
        (["--dtype", "int3"], "--dtype must be one of auto, float32"),
    ],
)
def test_refuses_what_cannot_be_planned_in_one_line(blis: Blis, folder: Path, arguments: list[str], error: str) -> None:
    code, out, err = blis("models", str(folder), *arguments)
    assert (code, out) == (2, "")
    assert error in err
    assert err.count("\n") == 1


def test_weights_without_room_are_refused_as_an_engine_refuses_them(blis: Blis) -> None:
    code, _, err = blis("models", "llama-3.1-8b", "--hardware", "T4")
    assert (code, "leaves no room for a KV cache on 1 T4" in err, "it needs tp 2 or more" in err) == (2, True, True)


def test_refuses_an_architecture_that_is_not_modelled(blis: Blis, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["NoSuchForCausalLM"]}))
    code, out, err = blis("models", str(tmp_path))
    assert (code, out) == (2, "")
    assert "the architecture NoSuchForCausalLM is not modelled" in err


def test_qwen3_14b_on_one_h100_has_the_blocks_of_a_real_server_within_three_percent(blis: Blis) -> None:
    """The server had 18,038 blocks with 256 sequences of at most 40,960 tokens at vLLM's default utilization."""
    _, out, _ = blis("models", "Qwen/Qwen3-14B", "--max-num-seqs", "256", "--max-model-len", "40960", "--json")
    assert json.loads(out)["num_gpu_blocks"] == pytest.approx(18038, rel=0.03)


def test_a_name_is_explained_on_the_deployment_of_the_catalogue(blis: Blis) -> None:
    code, out, err = blis("models", "openai/gpt-oss-120b", "--json")
    plan = json.loads(out)
    assert (code, err, plan["hardware"], plan["quantization"]) == (0, "", "H100", "mxfp4")
    assert plan["kv_bytes_per_token_per_gpu"] == pytest.approx(18 * 2 * 8 * 64 * 2 / 2, rel=0.01)
    assert (plan["fits_on"]["H200"], plan["fits_on"]["H100"], plan["fits_on"]["L4"]) == (1, 2, 4)
    assert plan["latency_model"] == "kernels"
    assert "precision" in plan["latency_models"]["kernels"]["unlike"]  # recorded servers ran Marlin's kernels
    assert plan["latency_models"]["fitted"]["itl"]["median"] > plan["latency_models"]["kernels"]["itl"]["median"]
    assert plan["source"] == "aiconfigurator-core 0.12.0"


@pytest.mark.parametrize("hardware", ["A10", "H100", "B200"])
@pytest.mark.parametrize("release", ["0.11", "0.33"])
def test_blocks_are_those_of_a_simulated_engine_on_the_same_gpu(blis: Blis, hardware: str, release: str) -> None:
    flags = ("--hardware", hardware, "--tp", "1", "--max-model-len", "4096", "--vllm-version", release)
    _, out, _ = blis("models", "llama-3.1-8b", *flags, "--json")
    options = DeploymentOptions(model="llama-3.1-8b", hardware=hardware, tp=1, max_model_len=4096, vllm_version=release)
    assert json.loads(out)["num_gpu_blocks"] == resolve(options).config.total_kv_blocks


def test_a_release_decides_what_is_refused(blis: Blis) -> None:
    flags = ("qwen3-235b-a22b-fp8", "--hardware", "H100", "--tp", "8")
    assert blis("models", *flags)[0] == 0
    code, _, err = blis("models", *flags, "--vllm-version", "0.11")
    assert (code, "is not divisible by weight quantization block_n = 128" in err) == (2, True)


def test_a_context_window_that_does_not_fit_is_cut_and_a_length_that_was_given_is_refused(blis: Blis) -> None:
    _, out, _ = blis("models", "meta-llama/Llama-4-Scout-17B-16E-Instruct", "--json")
    plan = json.loads(out)
    assert plan["context_window"] == 10_485_760
    assert 1_000_000 < plan["max_model_len"] <= plan["kv_capacity_tokens"]
    code, _, err = blis("models", "llama-4-scout-17b-16e-instruct", "--max-model-len", "10485760")
    assert code == 2
    assert "GiB of KV cache per GPU for one request of 10485760 tokens" in err


def test_a_part_of_a_name_lists_the_models_that_have_it(blis: Blis) -> None:
    code, out, err = blis("models", "qwen3 fp8")
    names = [line.split()[0] for line in out.splitlines()[1:] if line[0] != " "]
    assert (code, err) == (0, "")
    assert {"qwen3-8b-fp8", "qwen3-235b-a22b-fp8"} <= set(names)
    assert all("qwen3" in name and "fp8" in name for name in names)
    rows = json.loads(blis("models", "gpt-oss", "--json")[1])["models"]
    assert [(row["model"], row["organisation"], row["max_model_len"]) for row in rows] == [
        ("gpt-oss-120b", "openai", 131_072),
        ("gpt-oss-20b", "openai", 131_072),
    ]


def test_without_a_model_all_are_listed(blis: Blis) -> None:
    code, out, _ = blis("models")
    assert code == 0
    assert len(out.splitlines()) > 150


def test_an_unknown_model_gets_its_nearest_matches_in_one_line(blis: Blis) -> None:
    code, out, err = blis("models", "qwen3-15b")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "model 'qwen3-15b' is not in the catalogue, nearest are qwen3-14b, " in err


def test_gpus_are_listed_searched_and_described(blis: Blis) -> None:
    listed = blis("gpus")[1].splitlines()
    assert len(listed) > 20
    assert [line.split()[0] for line in blis("gpus", "a100")[1].splitlines()[1:]] == [
        "A100-40",
        "A100-PCIE",
        "A100-SXM",
    ]
    assert "NVLink         450 GB/s in each direction among 8 GPUs" in blis("gpus", "NVIDIA H100 80GB HBM3")[1]
    assert json.loads(blis("gpus", "h200", "--json")[1])["bandwidth_tb_s"] == 4.8
    assert [gpu["name"] for gpu in json.loads(blis("gpus", "rtx", "--json")[1])["gpus"]] == [
        "RTX-4090",
        "RTX-5090",
        "RTX-PRO-6000",
    ]
    code, out, err = blis("gpus", "B400")
    assert (code, out) == (2, "")
    assert "GPU 'B400' is not in the catalogue, nearest are B200, B300; " in err
