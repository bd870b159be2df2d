"""Flags of earlier versions are read, and named in a line."""

from pathlib import Path

import pytest

from blis_sim.cli.main import run
from mockserve import command
from mockserve.options.serve import ServeOptions

COMMAND = ["run", "--model", "qwen/qwen3-14b", "--num-requests", "2"]


def test_a_former_flag_means_its_present_name_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--engine", "blis"]) == 0
    present = capsys.readouterr()
    for former in (["--scheduling", "blis"], ["--scheduling=blis"]):
        assert run([*COMMAND, *former]) == 0
        found = capsys.readouterr()
        assert found.out == present.out
        assert found.err == "blis run: --scheduling is the former name of --engine\n" + present.err


def test_a_former_flag_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--help"]) == 0
    found = capsys.readouterr().out
    assert "--engine" in found
    assert "--scheduling " not in found


def test_a_former_key_of_a_file_of_vllm_is_read_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []

    def serve(options: ServeOptions) -> int:
        served.append(options.deployment.engine)
        return 0

    monkeypatch.setattr(command, "run", serve)
    file = tmp_path / "serve.yaml"
    file.write_text("model: qwen/qwen3-14b\nscheduling: blis\n")
    assert run(["serve", "--config", str(file)]) == 0
    assert served == ["blis"]
    assert capsys.readouterr().err == "blis serve: --scheduling is the former name of --engine\n"


def test_a_former_flag_of_an_offline_benchmark_is_read_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "qwen/qwen3-14b", "--scheduling", "blis", "--num-iters", "1", "--num-iters-warmup", "0"]
    assert run(["bench", "latency", *arguments]) == 0
    assert "blis bench latency: --scheduling is the former name of --engine\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text", "note"),
    [
        (["--scheduling", "blis", "--vary", "tp=1"], "", "--scheduling is the former name of --engine"),
        (["--vary", "scheduling=blis,vllm"], "", "scheduling is the former name of --engine"),
        (["--vary", "tp=1"], "settings: {scheduling: blis}", "scheduling is the former name of --engine"),
    ],
)
def test_a_sweep_names_former_names_of_the_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str, note: str
) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(text or "vary: {}")
    output = ["--output", str(tmp_path / "points.csv"), "--config", str(file), "--processes", "1"]
    assert run(["sweep", *COMMAND, *arguments, *output]) == 0
    assert f"blis sweep: {note}\n" in capsys.readouterr().err
