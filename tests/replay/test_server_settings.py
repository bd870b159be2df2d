"""A replay takes the settings of the recorded server, and flags win over these."""

from dataclasses import replace
from pathlib import Path

import pytest

from blis_sim.cli.main import run
from replay.command import rewritten
from replay.replay_options import ReplayOptions, inherited_settings
from traces import TraceHeader, read_trace, write_trace
from traces.server_settings import in_server_time

Captured = pytest.CaptureFixture[str]
HEADER = """trace_version: 3
mode: {mode}
server:
  type: vllm
  model: my-alias
  max_num_seqs: 2
  gpu_memory_utilization: 0.8
"""
BESIDE = """server_settings:
  version: 0.33.0
  model: qwen/qwen3-14b
  max_num_batched_tokens: 4096
  num_gpu_blocks: 900
  enable_prefix_caching: false
"""


def recording(folder: Path, mode: str = "real") -> str:
    """A recording of two requests on a server with settings."""
    (folder / "t.yaml").write_text(HEADER.format(mode=mode))
    (folder / "t.server.yaml").write_text(BESIDE)
    rows = "0,100,5,0,ok\n1,100,5,10,ok\n"
    (folder / "t.csv").write_text(f"request_id,input_tokens,output_tokens,arrival_time_us,status\n{rows}")
    return str(folder / "t.yaml")


def test_settings_of_the_recording_become_flags_and_are_said_in_one_line(tmp_path: Path, capsys: Captured) -> None:
    path = recording(tmp_path)
    added = rewritten([path])
    assert added[-1] == path
    assert "--no-enable-prefix-caching" in added
    assert added[added.index("--model") + 1] == "qwen/qwen3-14b"
    assert added[added.index("--max-num-batched-tokens") + 1] == "4096"
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"blis replay: from the server of {path}: --model qwen/qwen3-14b --max-num-seqs 2")


def test_a_name_that_a_server_gave_does_not_control_the_terminal(tmp_path: Path, capsys: Captured) -> None:
    path = recording(tmp_path)
    Path(path).with_suffix(".server.yaml").write_text(BESIDE.replace("qwen/qwen3-14b", r'"x\n\x1b[2Jy"'))
    added = rewritten([path])
    assert "x\n\x1b[2Jy" not in added
    said = capsys.readouterr().err
    assert r"model 'x\n\x1b[2Jy' is not in the catalogue" in said
    assert (said.count("\n"), said.count("\x1b")) == (3, 0)


def test_what_a_server_does_not_publish_is_assumed_and_said(tmp_path: Path, capsys: Captured) -> None:
    """A server of another make names a model of its own, and no GPU: the commands work without a flag all the same."""
    path = Path(recording(tmp_path))
    path.with_suffix(".server.yaml").unlink()
    path.write_text(HEADER.format(mode="real").replace("my-alias", "acme-mock-8b"))
    assert run(["replay", str(path), "--json"]) == 0
    out, said = capsys.readouterr()
    assert '"completed_requests": 2' in out
    assumed, gpus, taken, *_ = said.splitlines()
    assert assumed.startswith("blis replay: warning: model 'acme-mock-8b' is not in the catalogue: it is simulated as ")
    assert gpus == (
        "blis replay: the server did not publish its GPUs, assumed: --hardware H100 --tp 1; give those that it had"
    )
    assert taken.startswith(f"blis replay: from the server of {path}: --model ")
    added = rewritten([str(path), "--hardware", "H200", "--tp", "2"])
    assert (added.count("--hardware"), added.count("--tp")) == (1, 1)
    assert "did not publish" not in capsys.readouterr().err


def test_a_replay_needs_no_flag(tmp_path: Path, capsys: Captured) -> None:
    assert run(["replay", recording(tmp_path), "--json"]) == 0
    assert '"completed_requests": 2' in capsys.readouterr().out


def test_flags_win_even_where_they_are_the_default(tmp_path: Path) -> None:
    path = recording(tmp_path)
    added = rewritten([path, "--max-num-seqs", "256", "--gpu-memory-utilization", "0.92"])
    assert added.count("--max-num-seqs") == added.count("--gpu-memory-utilization") == 1
    assert added[added.index("--max-num-seqs") + 1] == "256"
    assert "--total-kv-blocks" not in added


def test_another_model_or_gpu_takes_nothing_that_follows_from_the_recorded_one(tmp_path: Path) -> None:
    header = Path(recording(tmp_path))
    assert "total_kv_blocks" in inherited_settings(ReplayOptions, {"model": "Qwen3-14B"}, header)
    assert "total_kv_blocks" not in inherited_settings(ReplayOptions, {"model": "llama-3.1-8b"}, header)
    assert "total_kv_blocks" not in inherited_settings(ReplayOptions, {"hardware": "A100"}, header)


@pytest.mark.parametrize("flags", [["--ignore-server-settings"], ["--engine", "blis"]])
def test_nothing_is_taken_on_request_and_for_blis(tmp_path: Path, flags: list[str]) -> None:
    arguments = [recording(tmp_path), *flags]
    assert rewritten(arguments) == arguments


def test_a_simulated_trace_has_no_server(tmp_path: Path) -> None:
    arguments = [recording(tmp_path, mode="generated")]
    assert rewritten(arguments) == arguments


@pytest.mark.parametrize("command", [["replay"], ["fit"]])
@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ("tensor_parallel: 3", "key tensor_parallel: qwen3-14b has 40 attention heads, which tp 3 does not divide"),
        ("hardware: nonsense", "key hardware: GPU 'nonsense' is not in the catalogue; "),
        ("num_gpu_blocks: 1", "key num_gpu_blocks: --num-gpu-blocks-override must be at least 2 with --engine vllm, "),
        ("gpu_memory_utilization: 3", "key gpu_memory_utilization: --gpu-memory-utilization must be at most 1, got 3"),
        ("max_num_seqs: 0", "key max_num_seqs: expected a whole number above 0, got 0"),
    ],
)
def test_a_setting_of_the_recorded_server_that_is_at_fault_is_named_with_its_file(
    command: list[str], settings: str, complaint: str, tmp_path: Path, capsys: Captured
) -> None:
    path = recording(tmp_path)
    (tmp_path / "t.server.yaml").write_text(f"model: qwen/qwen3-14b\n{settings}\n")
    assert run([*command, path]) == 2
    assert f"blis {command[0]}: error: {tmp_path}/t.server.yaml {complaint}" in capsys.readouterr().err


def test_a_setting_in_the_header_that_is_at_fault_is_named_with_its_key(tmp_path: Path, capsys: Captured) -> None:
    path = Path(recording(tmp_path))
    path.write_text(path.read_text().replace("gpu_memory_utilization: 0.8", "gpu_memory_utilization: 3"))
    (tmp_path / "t.server.yaml").write_text("model: qwen/qwen3-14b\n")
    assert run(["replay", str(path)]) == 2
    complaint = f"{path} key server.gpu_memory_utilization: --gpu-memory-utilization must be at most 1, got 3"
    assert f"blis replay: error: {complaint}" in capsys.readouterr().err


def test_an_invalid_flag_is_not_blamed_on_the_recording(tmp_path: Path, capsys: Captured) -> None:
    assert run(["replay", recording(tmp_path), "--tp", "3"]) == 2
    complaint = "blis replay: error: qwen3-14b has 40 attention heads, which tp 3 does not divide\n"
    assert capsys.readouterr().err.endswith(complaint)


def test_settings_that_cannot_be_read_are_refused_with_a_model_too(tmp_path: Path, capsys: Captured) -> None:
    path = recording(tmp_path)
    (tmp_path / "t.server.yaml").write_text("max_num_seqs: 0\n")
    assert run(["replay", path, "--model", "qwen/qwen3-14b"]) == 2
    assert capsys.readouterr().err == (
        f"blis replay: error: {tmp_path}/t.server.yaml key max_num_seqs: expected a whole number above 0, got 0\n"
    )


@pytest.mark.parametrize("command", ["replay", "fit"])
def test_a_recording_that_is_missing_or_none_is_named_rather_than_the_flags_it_would_set(
    command: str, tmp_path: Path, capsys: Captured
) -> None:
    missing, broken = tmp_path / "nothing.yaml", tmp_path / "broken.yaml"
    broken.write_text("x: [")
    assert run([command, str(missing)]) == run([command, str(broken)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"blis {command}: error: {missing}: no such file"
    assert second.startswith(f"blis {command}: error: {broken}")


def test_a_recorded_server_decides_neither_on_files_that_are_written_nor_on_what_is_imported(tmp_path: Path) -> None:
    header = tmp_path / "t.yaml"
    write_trace(header, TraceHeader(mode="real", server={"model": "qwen/qwen3-14b"}), [])
    (tmp_path / "t.server.yaml").write_text(
        "server_settings: {}\nengine_settings:\n  results_path: /tmp/over\n  json: true\n"
        "  routing_policy: os:system\n  num_instances: 2\n"
    )
    assert inherited_settings(ReplayOptions, {}, header) == {"model": "qwen/qwen3-14b", "num_instances": 2}


def test_code_and_files_of_the_recorded_server_are_asked_for_in_one_line(tmp_path: Path, capsys: Captured) -> None:
    path = recording(tmp_path)
    engine = "engine_settings: {routing_policy: my.package:Router, coefficients: /srv/c.json, num_instances: 2}\n"
    others = "other_settings: {policy_config: policy.yaml, fault_rates: '', kv_offload_config: nvme.yaml}\n"
    (tmp_path / "t.server.yaml").write_text(f"{BESIDE}{engine}{others}")
    added = rewritten([path, "--policy-config", "mine.yaml"])
    asked, taken = capsys.readouterr().err.splitlines()
    assert asked == (
        f"blis replay: a recording brings no files or code, give what the server of {path} had: "
        "--fault-rates (no flag of a replay), --kv-offload-config nvme.yaml, --routing-policy my.package:Router, "
        "--coefficients /srv/c.json"
    )
    assert "--num-instances 2" in taken
    assert not {"--routing-policy", "--coefficients"} & set(added)


def test_the_time_of_a_slow_server_is_its_own(tmp_path: Path) -> None:
    path = recording(tmp_path)
    with (tmp_path / "t.server.yaml").open("a") as file:
        file.write("speed: 0.5\n")
    slow = in_server_time(read_trace(path))
    assert [row.arrival_time_us for row in slow.rows] == [0, 5]
    assert slow.rows[1].send_time_us == 0


def test_requests_to_a_slow_server_keep_their_order(tmp_path: Path) -> None:
    """Several within a microsecond of the server: a scheduler that takes the latest first must know which it is."""
    path = Path(recording(tmp_path))
    rows = [
        replace(row, request_id=number, send_time_us=sent_us)
        for number, (row, sent_us) in enumerate(
            zip([*read_trace(path).rows] * 2, [1030, 1010, 1020, 1020], strict=True)
        )
    ]
    write_trace(path, TraceHeader(mode="real", server={"model": "qwen/qwen3-14b"}), rows)
    with (tmp_path / "t.server.yaml").open("a") as file:
        file.write("speed: 0.01\n")
    assert [row.send_time_us for row in in_server_time(read_trace(path)).rows] == [12, 10, 11, 11]


@pytest.mark.parametrize("speed", ["0", "-1", ".inf", "fast", "true"])
def test_a_speed_that_is_none_is_named_with_its_file(speed: str, tmp_path: Path, capsys: Captured) -> None:
    path = recording(tmp_path)
    with (tmp_path / "t.server.yaml").open("a") as file:
        file.write(f"speed: {speed}\n")
    assert run(["replay", path]) == 2
    assert f"{tmp_path}/t.server.yaml key speed: expected a number above 0, got " in capsys.readouterr().err
