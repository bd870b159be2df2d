"""Settings of the measured server, kept with the recording."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from blis_sim.options import BlisError
from observe.measurement import wave_s
from observe.server import cache_settings, parse_reading
from traces.server_settings import read_settings_file

Observe: TypeAlias = Callable[..., Any]


def test_published_settings_are_kept_with_every_recording(observe: Observe) -> None:
    run = observe(model="ok")
    settings = read_settings_file(Path(f"{run.prefix}.server.yaml"))
    assert {name: settings[name] for name in ("num_gpu_blocks", "block_size", "max_model_len")} == {
        "num_gpu_blocks": 811,
        "block_size": 16,
        "max_model_len": 4096,
    }
    assert run.trace.header.server["block_size"] == 16
    assert "num_gpu_blocks" not in run.trace.header.server


def test_a_file_adds_settings_that_win_over_published_ones(observe: Observe, tmp_path: Path) -> None:
    (tmp_path / "server-config.yaml").write_text("hardware: L40S\nmax_model_len: 2048\nmax_num_seqs: 64\n")
    run = observe(model="ok", server_config=str(tmp_path / "server-config.yaml"))
    settings = read_settings_file(Path(f"{run.prefix}.server.yaml"))
    assert (settings["hardware"], settings["max_model_len"], settings["num_gpu_blocks"]) == ("L40S", 2048, 811)
    assert (run.trace.header.server["max_model_len"], run.trace.header.server["max_num_seqs"]) == (2048, 64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu: H100\n", "server-config.yaml: unknown setting 'gpu', known are version, model, hardware"),
        ("max_num_seqs: many\n", "key max_num_seqs: expected a whole number above 0, got 'many'"),
        ("max_num_seqs: true\n", "key max_num_seqs: expected a whole number above 0, got True"),
        ("- H100\n", "expected settings of a server such as `max_num_seqs: 256`"),
    ],
)
def test_a_file_of_other_content_is_one_line(observe: Observe, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "server-config.yaml").write_text(text)
    with pytest.raises(BlisError, match=message):
        observe(model="ok", server_config=str(tmp_path / "server-config.yaml"))


@pytest.mark.parametrize(
    ("sizes", "num_blocks"),
    [
        ('kv_cache_size_tokens="6400",num_gpu_blocks="800"', "400"),
        ('kv_cache_size_tokens="6400",num_gpu_blocks="400"', "400"),
        ('kv_cache_size_tokens="None",num_gpu_blocks="800"', "800"),
        ('num_gpu_blocks="800"', "800"),
    ],
)
def test_the_blocks_of_data_parallel_ranks_are_those_of_one(sizes: str, num_blocks: str) -> None:
    """Two ranks publish the sum of their blocks. Instances of a cluster publish their own."""
    page = "".join(f'vllm:cache_config_info{{block_size="16",engine="{rank}",{sizes}}} 1.0\n' for rank in (0, 1))
    assert cache_settings(parse_reading(page, 0))["num_gpu_blocks"] == num_blocks


@pytest.mark.parametrize(
    ("settings", "waited_s"),
    [
        ({}, 0),
        ({"data_parallel": 1}, 0),
        ({"data_parallel": 2}, 0.5),
        ({"engine_settings": {"dp": 2}, "speed": 0.1}, 5),
        ({"engine_settings": {"dp": 2}, "speed": 1e-9}, 60),
        ({"engine_settings": {"dp": "many"}}, 0),
    ],
)
def test_a_run_waits_for_the_steps_that_ranks_do_in_common_after_its_preparation(
    settings: dict[str, object], waited_s: float
) -> None:
    assert wave_s(settings) == waited_s
