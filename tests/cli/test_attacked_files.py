"""A small part of the attack with mutated files, and single files that larger parts have found."""

import json
from pathlib import Path

import pytest

from blis_sim.cli.main import run
from workshop.attack.file_samples import FileSample, content, samples, trace_rows
from workshop.attack.files import attack, attacked, prepared

RUN = ["run", "--model", "qwen/qwen3-14b", "--num-requests", "3"]


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.name)
def test_accepts_each_file_as_long_as_nothing_is_changed(sample: FileSample) -> None:
    with prepared() as folder:
        case = attacked(sample, sample.content.encode(), folder)
    assert case.code == (1 if sample.command[0] == "observe" else 0), case.detail
    assert case.finding == ""


@pytest.mark.slow
def test_answers_every_mutated_file_with_success_or_one_line() -> None:
    outcomes, bad = attack(count=300, first_seed=11)
    assert {key: (case.detail, case.content) for key, case in bad.items()} == {}
    assert min(outcomes["accepted"], outcomes["refused"]) > 30


def _config(**keys: object) -> str:
    return json.dumps({**json.loads(content("config.json")), **keys})


CASES = {
    "negative zero": (
        "w.yaml",
        content("spec.yaml").replace("std_dev: 5", "std_dev: -0.0"),
        ["--workload-spec", "w.yaml"],
        "",
    ),
    "vast variation": (
        "w.yaml",
        content("vidur.yaml").replace("cv: 2", "cv: 1e200"),
        ["--workload-spec", "w.yaml"],
        "w.yaml key vidur.interval.cv: expected a number between 0.000001 and 1000000, got 1e+200",
    ),
    "vast window": (
        "s.yaml",
        content("saturation.yaml").replace("window_size_sec: 2", "window_size_sec: 1e18"),
        ["--detectors", "all", "--saturation-config", "s.yaml"],
        "s.yaml key backlog_drift.window_size_sec: expected a number between 0.001 and 1000000000, got 1e+18",
    ),
    "list of nothing": (
        "config.json",
        _config(num_key_value_heads=[None]),
        ["--hardware", "H100", "--tp", "1", "--model-config-folder", "."],
        "config.json: qwen3-14b: num_key_value_heads must be a number, got [None]",
    ),
    "no width": (
        "config.json",
        _config(intermediate_size=0),
        ["--hardware", "H100", "--tp", "1", "--model-config-folder", "."],
        "config.json: qwen3-14b: intermediate_size must be at least 1, got 0",
    ),
    "more experts per token than experts": (
        "config.json",
        _config(num_experts=8, num_experts_per_tok=2000),
        ["--hardware", "H100", "--tp", "1", "--model-config-folder", "."],
        "config.json: qwen3-14b: num_experts_per_tok must be at most the 8 experts, got 2000",
    ),
    "no MFU": (
        "hw.json",
        json.dumps({"T1": {"TFlopsPeak": 900.0, "BwPeakTBs": 3.3, "MemoryGiB": 80}}),
        ["--hardware", "T1", "--hardware-config", "hw.json", "--latency-model", "roofline"],
        "hw.json: the roofline model needs mfu_prefill of GPU T1, a fraction above 0",
    ),
    "small machines": (
        "p.yaml",
        content("scaling.yaml").replace("gpu_memory_gib: 80", "gpu_memory_gib: 5"),
        ["--policy-config", "p.yaml"],
        "p.yaml: node pool 'cheap': qwen3-14b leaves no room for a KV cache",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_names_the_file_and_the_value_that_cannot_be(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, content, flags, said = CASES[name]
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(content)
    assert run([*RUN, *flags]) == (2 if said else 0)
    if said:
        assert said in capsys.readouterr().err


def test_refuses_a_pause_that_no_clock_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.yaml").write_text(content("trace.yaml"))
    lines = [line.split(",") for line in trace_rows().splitlines()]
    lines[-1][lines[0].index("think_time_us")] = str(2**63 - 1)
    Path("t.csv").write_text("".join(",".join(cells) + "\n" for cells in lines))
    assert run(["replay", "t.yaml", "--model", "qwen/qwen3-14b", "--session-mode", "closed-loop"]) == 2
    assert "t.csv line 7 column think_time_us: expected a whole number between 0 and 9007" in capsys.readouterr().err


@pytest.mark.parametrize(
    "template", ["{{ " + "(" * 300 + "1" + ")" * 300 + " }}", "{% if %}", "{{ " + "9" * 5000 + " }}"]
)
def test_refuses_a_chat_template_that_cannot_be_compiled(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (served,) = [sample for sample in samples() if sample.name == "served tokenizer_config.json"]
    settings = json.dumps({**json.loads(content("tokenizer_config.json")), "chat_template": template})
    with prepared() as folder:
        case = attacked(served, settings.encode(), folder)
    assert (case.code, case.finding) == (1, "")
    assert "--chat-template: not a Jinja template" in case.detail


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json"])
def test_refuses_settings_of_a_model_that_nest_too_deep(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (served,) = [sample for sample in samples() if sample.name == f"served {name}"]
    with prepared() as folder:
        case = attacked(served, b"[" * 20_000, folder)
    assert (case.code, case.finding) == (1, "")
    assert f"{name}: values nest too deep" in case.detail


@pytest.mark.parametrize(
    "flag",
    [
        "--compilation-config",
        "--fake-metrics",
        "--hf-overrides",
        "--kv-events-config",
        "--kv-transfer-config",
        "--lora-modules",
        "--override-generation-config",
        "--speculative-config",
        "--structured-outputs-config",
    ],
)
def test_refuses_a_flag_whose_json_nests_too_deep(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "qwen/qwen3-14b", "--port", "0", flag, '{"a":' * 20_000]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"blis serve: error: {flag}")


def test_cuts_a_line_that_quotes_a_file_at_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.yaml").write_text("trace_version: 3\n")
    Path("t.csv").write_text("request_id," + "x" * 100_000 + "\n1,2\n")
    assert run(["replay", "t.yaml", "--model", "qwen/qwen3-14b"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("blis replay: error: t.csv line 1: the column input_tokens is missing, found req")
    assert len(said) < 2000
