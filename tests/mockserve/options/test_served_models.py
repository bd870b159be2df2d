"""Models that a server starts with: folders of any class, small models by name, and names that nothing is known of."""

import json
from pathlib import Path
from typing import Any

import pytest

import mockserve.server
from blis_sim.cli.main import run
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency import catalogue
from blis_sim.engine.latency.catalogue import has_model, model_entry, model_names, stand_in_model
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.memory.planner import PlanRequest, plan_layout
from blis_sim.options import OptionError, options_from
from mockserve.engines import deployment_of
from mockserve.generation.composer import open_vocabulary
from mockserve.generation.tokenizer import BuiltinTokenizer
from mockserve.options.content import ContentOptions
from mockserve.options.serve import ServeOptions
from mockserve.options.server import tasks_of

USED_BY_TESTS = (
    *("facebook/opt-125m", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "openai/whisper-large-v3", "BAAI/bge-m3", "gpt2"),
    *("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B", "HuggingFaceTB/SmolLM2-135M-Instruct", "microsoft/phi-2"),
    *("openai-community/gpt2", "EleutherAI/pythia-70m", "sentence-transformers/all-MiniLM-L6-v2", "google/gemma-2b"),
    *("intfloat/e5-mistral-7b-instruct", "BAAI/bge-reranker-v2-m3", "hmellor/tiny-random-LlamaForCausalLM"),
    *("Qwen/Qwen3-Embedding-0.6B", "bigscience/bloom-560m", "openai/whisper-tiny", "llava-hf/llava-1.5-7b-hf"),
)


@pytest.fixture(autouse=True)
def serves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(*_arguments: object) -> int:
        return 0

    monkeypatch.setattr(mockserve.server, "_serve_until_signal", serve)


@pytest.mark.parametrize("name", USED_BY_TESTS)
def test_models_that_tests_of_clients_use_start_without_a_word_about_their_names(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", name]) == 0
    assert "is not in the catalogue" not in capsys.readouterr().err


def test_every_small_model_has_sizes_and_a_deployment_and_a_name_of_its_own() -> None:
    listed = set(model_names())
    for row in (Path(catalogue.__file__).parent / "catalogue" / "small_models.jsonl").read_text().splitlines():
        name = json.loads(row)["model"]
        entry, spec = model_entry(name), load_model(name)
        assert name not in listed
        assert spec.max_model_len > 0, name
        assert spec.intermediate_size > 0, name
        assert spec.hidden_size % spec.num_heads == 0 or spec.head_dim, name
        assert (entry.gpu, entry.tp) == ("H100", 1)


BILLIONS_OF_PARAMETERS = {
    "opt-125m": 0.125, "tinyllama-1.1b-chat-v1.0": 1.1, "gpt2": 0.124, "smollm2-360m-instruct": 0.362, "phi-2": 2.78,
    "pythia-1.4b": 1.415, "bloom-560m": 0.559, "gemma-2-2b-it": 2.61, "falcon-7b": 6.92, "starcoder2-3b": 3.03,
}  # fmt: skip
"""Parameters that are published of models with MLPs of each kind, in 1e9."""


@pytest.mark.parametrize("name", BILLIONS_OF_PARAMETERS)
def test_small_models_have_about_their_published_number_of_parameters(name: str) -> None:
    layout = plan_layout(PlanRequest(config=model_entry(name).checkpoint.config, model=name, dtype="bfloat16"))
    assert layout.weight_bytes_per_gpu[0] / 2e9 == pytest.approx(BILLIONS_OF_PARAMETERS[name], rel=0.05)


@pytest.mark.parametrize(
    ("name", "tasks"),
    [
        ("BAAI/bge-m3", {"embed"}),
        ("Qwen/Qwen3-Embedding-0.6B", {"embed"}),
        ("cross-encoder/ms-marco-MiniLM-L-6-v2", {"classify"}),
        ("openai/whisper-large-v3-turbo", {"transcription"}),
        ("facebook/opt-350m", {"generate"}),
        ("acme/new-embedding-2b", {"embed"}),
        ("acme/whisper-9", {"transcription"}),
        ("acme/rerank-1b", {"classify"}),
    ],
)
def test_tasks_are_those_of_the_class_or_of_the_name(name: str, tasks: set[str]) -> None:
    assert tasks_of(options_from(ServeOptions, model=name).routes) == tasks
    if tasks != {"generate"}:
        assert tasks_of(options_from(ServeOptions, model=name, task=("generate",)).routes) == {"generate"}


@pytest.mark.parametrize(
    ("name", "stand_in", "why"),
    [
        ("acme/rocket-1b", "llama-3.2-1b-instruct", "its size is the nearest to what the name states"),
        ("acme/rocket-1.6B-chat", "stablelm-2-1_6b", "its size is the nearest to what the name states"),
        ("Mistral-Rocket-7B", "mistral-7b-v0.1", "its size is the nearest to what the name states"),
        ("rocket-70B-FP8", "llama-3.1-70b-instruct-fp8", "its size is the nearest to what the name states"),
        ("rocket-30B-A3B", "qwen3-30b-a3b", "its size is the nearest to what the name states"),
        ("rocket-150m", "llama-160m", "its size is the nearest to what the name states"),
        ("qwen/qwen3-14", "qwen3-14b", "its name is the nearest"),
        ("my-model", "llama-3.1-8b-instruct", "its size is usual"),
        ("rocket-0b", "llama-3.1-8b-instruct", "its size is usual"),
    ],
)
def test_a_name_that_is_not_known_starts_as_the_nearest_model_and_one_line_says_so(
    name: str, stand_in: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", name]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "not in the catalogue" in line]
    assert len(lines) == 1
    assert f"model {name!r} is not in the catalogue: it is simulated as {stand_in}, for {why};" in lines[0]
    assert deployment_of(options_from(ServeOptions, model=name)).model.name == stand_in


def test_other_commands_name_what_a_server_takes() -> None:
    with pytest.raises(EngineError, match=r"'\./no-folder' is no folder with a config.json, and no name of a model"):
        load_model("./no-folder")
    assert not has_model("acme/rocket-3b")
    with pytest.raises(EngineError, match=f"`blis serve` simulates {stand_in_model('acme/rocket-3b').model} for it"):
        load_model("acme/rocket-3b")


@pytest.mark.parametrize("path", ["/nowhere/model", "./model", "a/b/c", "~/model"])
def test_a_path_without_a_folder_does_not_start(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", path]) == 1
    error = f"blis serve: error: --model must name a model or a folder with a config.json, got {path!r}\n"
    assert capsys.readouterr().err == error


BERT: dict[str, Any] = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": 384,
    "intermediate_size": 1536, "max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 6,
    "vocab_size": 30522,
}  # fmt: skip
ROBERTA = {**BERT, "architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta"}
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 768,
    "n_head": 12, "n_inner": None, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
}  # fmt: skip
WHISPER: dict[str, Any] = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "activation_function": "gelu",
    "d_model": 384, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "decoder_layers": 4,
    "max_target_positions": 448, "vocab_size": 51865,
}  # fmt: skip
UNKNOWN_ACTIVATION = {**BERT, "architectures": ["NewForCausalLM"], "model_type": "new", "hidden_act": "xielu"}


@pytest.mark.parametrize(
    ("config", "task", "num_tokens"),
    [
        (BERT, "embed", 512),
        (ROBERTA, "classify", 512),
        (GPT2, "generate", 1024),
        (WHISPER, "transcription", 448),
        (UNKNOWN_ACTIVATION, "generate", 512),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_a_folder_of_any_class_starts_without_a_number_of_gpus(
    tmp_path: Path, config: dict[str, Any], task: str, num_tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(["serve", str(tmp_path), "--hardware", "L40S"]) == 0
    assert "--hardware is not given" not in capsys.readouterr().err
    options = options_from(ServeOptions, model=str(tmp_path))
    assert tasks_of(options.routes) == {task}
    deployment = deployment_of(options)
    assert (deployment.gpu.name, deployment.tp, deployment.config.max_model_len) == ("H100", 1, num_tokens)
    assert deployment.notes[0] == f"--hardware is not given: {tmp_path} is simulated on H100"


def test_experts_in_parallel_need_experts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "qwen/qwen3-14b", "--enable-expert-parallel"]) == 1
    sentence = "Number of experts in the model must be greater than 0 when expert parallelism is enabled."
    assert capsys.readouterr().err == f"blis serve: error: {sentence}\n"
    assert run(["serve", "qwen/qwen3-14b", "--enable-expert-parallel", "--lenient-start"]) == 0
    assert run(["serve", "qwen/qwen3-30b-a3b", "--enable-expert-parallel"]) == 0
    assert run(["serve", "acme/rocket-of-experts", "--enable-expert-parallel"]) == 0


@pytest.mark.parametrize("runner", ["generate", "draft", "pooling", "auto"])
def test_an_encoder_cannot_generate(tmp_path: Path, runner: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    refused = runner in ("generate", "draft")
    assert run(["serve", str(tmp_path), "--hardware", "L40S", "--runner", runner]) == int(refused)
    sentence = (
        f"Embedding models do not support `--runner {runner}`. "
        "Use `--runner pooling` or `--runner auto` for embedding models."
    )
    assert (sentence in capsys.readouterr().err) == refused


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("overrides", "window"),
    [
        ({"rope_scaling": YARN}, 131_072),
        ({"rope_parameters": YARN | {"rope_theta": 1e6}}, 131_072),
        ({"text_config": {"rope_parameters": YARN}}, 131_072),
        ({"max_position_embeddings": 100_000}, 100_000),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 40_960),
        ({"num_labels": 3}, 40_960),
    ],
)
def test_overrides_of_the_config_change_the_context_window(overrides: dict[str, Any], window: int) -> None:
    given: dict[str, Any] = {"model": "qwen/qwen3-8b", "hf_overrides": json.dumps(overrides)}
    found = deployment_of(options_from(ServeOptions, **given))
    assert (found.model.max_model_len, found.config.max_model_len) == (window, window)
    shorter = deployment_of(options_from(ServeOptions, **given, max_model_len=1000))
    assert (shorter.model.max_model_len, shorter.config.max_model_len) == (window, 1000)


@pytest.mark.parametrize(("name", "is_taken"), [("Qwen/Qwen3-8B", True), ("gpt2", True), ("./gpt2", False)])
def test_a_tokenizer_on_a_hub_is_named_and_does_without(
    name: str, is_taken: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ContentOptions(tokenizer=name)
    if not is_taken:
        with pytest.raises(OptionError, match=r"--tokenizer must be a tokenizer\.json or a folder with one"):
            open_vocabulary(options, "m", 0)
        return
    assert isinstance(open_vocabulary(options, "m", 0)[0], BuiltinTokenizer)
    assert run(["serve", "qwen/qwen3-14b", "--tokenizer", name]) == 0
    assert f"--tokenizer {name} is no file here, and nothing is loaded from a hub" in capsys.readouterr().err


def test_overrides_that_do_not_act_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "qwen/qwen3-14b", "--hf-overrides", '{"num_hidden_layers": 2, "num_labels": 3}']) == 0
    assert "num_hidden_layers of --hf-overrides are not modelled" in capsys.readouterr().err
