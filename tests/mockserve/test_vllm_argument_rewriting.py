"""A command line of `vllm serve` becomes one of ours."""

from pathlib import Path

import pytest

from blis_sim.options import OptionError
from mockserve.command import rewritten
from mockserve.options.vllm_flags import CHECKS, SWITCHES, VllmFlag, members_of, read_table

SAMPLES = {
    "text": "x",
    "name": "x",
    "int": "3",
    "float": "0.5",
    "size": "8k",
    "length": "auto",
    "json": "[1]",
    "media limits": '{"image": 2}',
    "object": '{"a": 80m}',
    "object or text": "x",
    "count": "2",
    "attention backend": "flashinfer",
    "optimization level": "3",
}
FLAGS = {flag.name: flag for flag in read_table().values()}


def sample(flag: VllmFlag) -> list[str]:
    if flag.is_switch:
        return []
    if flag.name in members_of():
        return [f'{{"{next(iter(members_of()[flag.name]))}": 1}}']
    return [flag.choices[-1] if flag.choices else SAMPLES[flag.kind.removesuffix("?")]]


def test_the_table_is_that_of_vllm_0_33() -> None:
    assert len(FLAGS) == 320
    assert {flag.kind.removesuffix("?") for flag in FLAGS.values()} <= {*SWITCHES, *CHECKS}


@pytest.mark.parametrize("flag", FLAGS.values(), ids=list(FLAGS))
def test_every_flag_is_taken_or_named_as_without_effect(flag: VllmFlag, tmp_path: Path) -> None:
    values = sample(flag)
    if flag.name == "--config":
        file = tmp_path / "empty.yaml"
        file.write_text("")
        values = [str(file)]
    ours = rewritten(["m", *flag.spellings[:1], *values])
    unused = ours[ours.index("--accepted-without-effect") + 1] if "--accepted-without-effect" in ours else ""
    assert ours[0] == "m"
    assert unused in ("", flag.name)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        (["--max-model-len", "8k"], ["--max-model-len", "8000"]),
        (["--max-model-len=8K"], ["--max-model-len", "8192"]),
        (["--max-model-len", "-1"], ["--max-model-len", "0", "--fits-max-model-len"]),
        (["--max-model-len", "Auto"], ["--max-model-len", "0", "--fits-max-model-len"]),
        (["--max_num_seqs", "4"], ["--max-num-seqs", "4"]),
        (["--max-num-batched-t", "1.5k"], ["--max-num-batched-tokens", "1500"]),
        (["-tp", "2"], ["--tensor-parallel-size", "2"]),
        (["-tp=2"], ["--tensor-parallel-size", "2"]),
        (["--device-memory-utilization", "0.5"], ["--gpu-memory-utilization", "0.5"]),
        (["--disable-server-load-tracking"], ["--no-enable-server-load-tracking"]),
        (["--no-enable-server-load-tracking"], ["--no-enable-server-load-tracking"]),
        (["--api-key", "a", "b,c", "--port", "1"], ["--port", "1", "--api-key", '["a", "b,c"]']),
        (["--allowed-origins", '["http://a"]'], ["--allowed-origins", '["http://a"]']),
        (["--middleware", "a.B", "--middleware", "c.d"], ["--middleware", '["a.B", "c.d"]']),
        (["--scheduling-policy", "priority"], ["--scheduling-policy", "priority"]),
        (["--speed", "3", "-h"], ["--speed", "3", "-h"]),
    ],
)
def test_simulated_flags_get_our_syntax(given: list[str], ours: list[str]) -> None:
    assert rewritten(given) == ours


@pytest.mark.parametrize(
    "given",
    [
        ["-O3"],
        ["-O", "2"],
        ["-O=1"],
        ["-cc", '{"mode": 3}'],
        ["-cc", '{"mode": "vllm_compile", "cudagraph_mode": "full"}'],
        ["--compilation-config.mode", "3", "--compilation-config.pass_config.fuse=true"],
        ["--compilation-config.cudagraph_capture_sizes+", "1,2", "--compilation-config.cudagraph_capture_sizes+=4"],
        ["--attention-backend", "auto"],
        ["--hf-config-path", "mine"],
        ["--hf-token"],
        ["--allowed-media-domains", "a", "b"],
        ["--hf-config-path", "None"],
    ],
)
def test_flags_without_a_meaning_here_are_only_named(given: list[str]) -> None:
    flag, names = rewritten(given)
    assert flag == "--accepted-without-effect"
    assert names.startswith("--")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--max-num-seqs", "8k"], "--max-num-seqs must be a whole number, got '8k'"),
        (["--max-model-len", "1.5K"], "--max-model-len must be a whole number, such as 8192, .* got '1.5K'"),
        (["--max-model-len", "0"], "max_model_len must be a positive integer, got int: 0. Example: max_model_len=2048"),
        (["--dtype", "int3"], "--dtype must be one of auto, bfloat16, .* got 'int3'"),
        (["--compilation-config", "[1]"], r"--compilation-config must be a JSON object, got '\[1\]'"),
        (["--enforce-eager=1"], "--enforce-eager takes no value, got '1'"),
        (["--dtype"], "--dtype must be given a value"),
        (["--scheduling-policy", "lifo"], "--scheduling-policy must be one of fcfs, priority, got 'lifo'"),
        (["--compilation-config.mode"], "--compilation-config.mode must be given a value"),
        (["-cc", '{"level": 3}'], "--compilation-config: unexpected member 'level', members are mode, .*"),
        (["--compilation-config.level", "3"], "--compilation-config: unexpected member 'level', members are mode, .*"),
        (["--pooler-config", '{"pooling": "MEAN"}'], "--pooler-config: unexpected member 'pooling', members are .*"),
        (["-cc", '{"cudagraph_mode": "NOPE"}'], "--compilation-config: cudagraph_mode must be one of NONE, .* 'NOPE'"),
        (["--kv-events-config", '{"publisher": "nope"}'], "--kv-events-config: publisher must be one of null, zmq, .*"),
        (["--attention-backend", "nope"], "Unknown attention backend: 'NOPE'. Valid options are: FLASH_ATTN, .*"),
        (["-O4"], "optimization_level must be 0, 1, 2 or 3, got '4'"),
        (["-tp", "0"], "tensor_parallel_size must be at least 1, got 0"),
    ],
)
def test_flags_that_vllm_refuses_are_refused(given: list[str], complaint: str) -> None:
    with pytest.raises(OptionError, match=f"^{complaint}$"):
        rewritten(given)
