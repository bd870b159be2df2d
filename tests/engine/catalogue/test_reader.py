"""Where models, GPUs and coefficients are found."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import gpu_names, model_names
from blis_sim.engine.latency.catalogue_reader import blackbox_coefficients, default_deployment, load_model

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


def test_an_unknown_model_is_answered_with_the_way_out() -> None:
    with pytest.raises(EngineError) as refusal:
        load_model("acme/rocket-1b")
    assert str(refusal.value) == (
        "model 'acme/rocket-1b' is not in the catalogue; `blis models` lists all, a folder with the config.json of "
        "another one takes its place, and `blis serve` simulates llama-3.2-1b-instruct for it"
    )


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("llama-3-9b", "llama-3-8b"),
        ("Qwen/Qwen3-14", "qwen3-14b"),
        ("mixtral8x7b", "mixtral-8x7b"),
        ("ibm-granite/granite-4.0-h-small", "granite-3.3-2b-instruct"),
    ],
)
def test_an_unknown_model_is_answered_with_its_nearest_matches_in_one_line(name: str, near: str) -> None:
    with pytest.raises(EngineError, match=rf"is not in the catalogue, nearest (is|are) {near}[,;]") as refusal:
        load_model(name)
    assert len(str(refusal.value)) < 300


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


def test_blackbox_coefficients_cover_the_published_table() -> None:
    first_of_each: dict[tuple[str, str, int], dict[str, str]] = {}
    with gzip.open(Path(__file__).with_name("tables") / "blackbox.csv.gz", "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            first_of_each.setdefault((row["id"], row["GPU"], int(row["tensor_parallelism"])), row)
    assert len(first_of_each) == 87
    for (model, gpu, tp), row in first_of_each.items():
        alpha, beta = blackbox_coefficients(model, gpu, tp)
        assert alpha == tuple(float(row[f"alpha{index}"]) for index in range(3))
        assert beta == tuple(float(row[f"beta{index}"]) for index in range(3))
