"""Where models, GPUs and coefficients are found."""

import csv
import json
from pathlib import Path

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.catalogue.reader import (
    blackbox_coefficients,
    default_deployment,
    gpu_names,
    load_gpu,
    load_model,
    model_names,
)

CONFIG = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "torch_dtype": "float16",
}


def write_config(folder: Path, name: str = "config.json", text: str | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(CONFIG) if text is None else text)
    return folder


def test_a_model_is_found_in_any_case_with_or_without_its_organisation() -> None:
    assert load_model("Qwen/Qwen3-14B") == load_model("anyone/qwen3-14b") == load_model("qwen3-14b")


def test_an_alias_has_the_architecture_under_its_own_name() -> None:
    alias = load_model("meta-llama/Llama-3.3-70B-Instruct")
    assert (alias.name, alias.num_layers) == ("llama-3.3-70b-instruct", 80)


def test_the_catalogue_has_the_thirteen_models_of_the_reference() -> None:
    bundled = {
        "llama-3.1-8b-instruct", "qwen3-14b", "qwen2.5-7b-instruct", "codellama-34b-instruct-hf",
        "llama-4-scout-17b-16e-instruct-fp8-dynamic", "deepseek-v2-lite", "glm-5.2-fp8", "llama-2-7b-hf",
        "llama-3.1-70b-instruct", "mistral-nemo-instruct-2407", "mixtral-8x7b-v0.1", "qwen3-30b-a3b", "yi-34b",
    }  # fmt: skip
    assert bundled <= set(model_names())


def test_an_unknown_model_is_answered_with_the_choices_and_the_way_out() -> None:
    with pytest.raises(EngineError) as refusal:
        load_model("acme/rocket-1b")
    text = str(refusal.value)
    assert text.startswith("model 'acme/rocket-1b' is not in the catalogue, known are codellama-34b-instruct-hf, ")
    assert text.endswith("give --model-config-folder, a folder with the config.json of the model")


def test_a_model_name_may_be_a_local_folder_or_file(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "Rocket-FP8")
    by_folder, by_file = load_model(str(folder)), load_model(str(folder / "config.json"))
    assert by_folder == by_file
    assert (by_folder.name, by_folder.num_layers, by_folder.bytes_per_weight) == ("rocket-fp8", 3, 1.0)


def test_a_folder_given_beside_the_name_wins_over_the_catalogue(tmp_path: Path) -> None:
    model = load_model("qwen/qwen3-14b", write_config(tmp_path / "mine"))
    assert (model.name, model.num_layers) == ("qwen3-14b", 3)


def test_a_config_may_be_yaml(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "y", "mine.yaml", "\n".join(f"{key}: {value}" for key, value in CONFIG.items()))
    assert load_model("rocket", folder / "mine.yaml").num_layers == 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "{", "config.json: line 1 is not valid JSON"),
        ("config.json", '{"a": %s}' % ("9" * 5000), "config.json: it is not valid JSON: Exceeds the limit"),
        ("config.json", "[" * 100_000, "config.json: it is not valid JSON: maximum recursion depth exceeded"),
        ("config.json", json.dumps({**CONFIG, "hidden_size": "x"}), "config.json: rocket: hidden_size must be a numb"),
        ("config.json", "[]", "config.json: must be a mapping of names to values, got list"),
        ("config.json", "{}", "rocket: num_attention_heads must be a number of at least 1, got no such key"),
        ("other.txt", "", "no config.json there"),
    ],
)
def test_a_bad_config_is_one_clear_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(EngineError, match=message) as refusal:
        load_model("rocket", write_config(tmp_path / "bad", name, text))
    assert "\n" not in str(refusal.value)


def test_a_config_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "marked", "config.json", "\ufeff" + json.dumps(CONFIG))
    assert load_model("rocket", folder).num_layers == 3


def test_a_config_that_is_not_text_is_one_clear_line(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "bad")
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EngineError, match=r"config\.json: cannot be read: not UTF-8 text"):
        load_model("rocket", folder)


def test_every_model_of_the_catalogue_has_a_default_deployment_on_a_known_gpu() -> None:
    for name in model_names():
        deployment = default_deployment(name)
        assert deployment is not None
        assert deployment[0] in gpu_names()
    assert default_deployment("acme/rocket-1b") is None


@pytest.mark.parametrize(
    ("model", "deployment"),
    [
        ("meta-llama/llama-3.1-8b-instruct", ("H100", 1)),
        ("qwen/qwen3-14b", ("H100", 1)),
        ("codellama/codellama-34b-instruct-hf", ("H100", 2)),
        ("redhatai/llama-4-scout-17b-16e-instruct-fp8-dynamic", ("H100", 2)),
    ],
)
def test_default_deployments_are_those_of_the_reference(model: str, deployment: tuple[str, int]) -> None:
    assert default_deployment(model) == deployment


def test_the_reference_gpus_have_their_rates() -> None:
    assert load_gpu("h100") == GpuSpec(
        name="H100", tflops=989.5, tflops_fp8=1979.0, bandwidth_tb_s=3.35, mfu_prefill=0.45, mfu_decode=0.3,
        memory_gib=80.0, compute_capability=9.0, cuda_memory_gib=79.11,
    )  # fmt: skip
    assert load_gpu("A100-80") == load_gpu("A100-SXM")
    assert load_gpu("L40S").memory_gib == 48


def test_an_unknown_gpu_is_answered_with_the_choices() -> None:
    with pytest.raises(
        EngineError, match=r"GPU 'B300' is not in the catalogue, known are A100-SXM, B200, H100, .*--hardw"
    ):
        load_gpu("B300")


def test_a_hardware_file_may_spell_rates_in_any_case_and_hold_comments(tmp_path: Path) -> None:
    file = tmp_path / "hardware_config.json"
    rates = {"TFlopsPeak": 100, "bwpeaktbs": 2.5, "mfuPrefill": 0.4, "MFUDecode": 0.2, "MemoryGiB": 24, "_comment": "x"}
    file.write_text(json.dumps({"_comment": "mine", "T1": rates}))
    expected = GpuSpec(name="T1", tflops=100, bandwidth_tb_s=2.5, mfu_prefill=0.4, mfu_decode=0.2, memory_gib=24)
    assert load_gpu("t1", file) == expected


def test_a_hardware_file_may_be_yaml(tmp_path: Path) -> None:
    file = tmp_path / "gpus.yaml"
    file.write_text("T1: {tflops: 100, bandwidth_tb_s: 2.5}\n")
    assert load_gpu("T1", file) == GpuSpec(name="T1", tflops=100, bandwidth_tb_s=2.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("T2: {tflops: 1}", "GPU 'T1' is not in .*gpus.yaml, known are T2"),
        ("T1: {tflops: 1}", "gpus.yaml: BwPeakTBs of GPU T1 must be above 0, got nothing"),
        ("T1: {tflops: 0, bandwidth_tb_s: 1}", "gpus.yaml: TFlopsPeak of GPU T1 must be above 0, got 0.0"),
        ("T1: {tflops: fast}", "gpus.yaml: tflops of GPU T1 must be a number of at least 0, got 'fast'"),
        ("T1: {tflops: -1}", "gpus.yaml: tflops of GPU T1 must be a number of at least 0, got -1"),
        ("T1: {tflops: 1, bandwidth_tb_s: 1, mfuPrefill: 1.1}", "mfuPrefill of GPU T1 must be 0 or from 1e-06 to 1, g"),
        ("T1: {tflops: 1, bandwidth_tb_s: 1, mfuDecode: 1e-7}", "mfuDecode of GPU T1 must be 0 or from 1e-06 to 1, go"),
        ("T1: {tflops: 1e300}", r"tflops of GPU T1 must be 0 or from 1e-06 to 1e\+09, got 1e\+300"),
        ("T1: {", "gpus.yaml: line 1 is not valid YAML"),
    ],
)
def test_a_bad_hardware_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "gpus.yaml"
    file.write_text(text)
    with pytest.raises(EngineError, match=message) as refusal:
        load_gpu("T1", file)
    assert "\n" not in str(refusal.value)


def test_a_hardware_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"nowhere\.json: cannot be read: No such file or directory"):
        load_gpu("H100", tmp_path / "nowhere.json")


def test_blackbox_coefficients_cover_the_published_table(shared: Path) -> None:
    first_of_each: dict[tuple[str, str, int], dict[str, str]] = {}
    with (shared / "reference/blackbox-coefficients.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            first_of_each.setdefault((row["id"], row["GPU"], int(row["tensor_parallelism"])), row)
    assert len(first_of_each) == 87
    for (model, gpu, tp), row in first_of_each.items():
        alpha, beta = blackbox_coefficients(model, gpu, tp)
        assert alpha == tuple(float(row[f"alpha{index}"]) for index in range(3))
        assert beta == tuple(float(row[f"beta{index}"]) for index in range(3))
