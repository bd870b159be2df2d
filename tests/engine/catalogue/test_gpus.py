"""GPUs of the catalogue, and of files that describe others."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import gpu_entry, gpu_names, load_gpu
from blis_sim.engine.specs import GpuSpec


def test_the_reference_gpus_have_their_rates() -> None:
    assert load_gpu("h100") == GpuSpec(
        name="H100", tflops=989.5, tflops_fp8=1979.0, bandwidth_tb_s=3.35, mfu_prefill=0.45, mfu_decode=0.3,
        memory_gib=80.0, compute_capability=9.0, cuda_memory_gib=79.11, tflops_int8=1979.0, nvlink_gb_s=450.0,
        nvlink_gpus=8, pcie_gb_s=64.0, network_gb_s=50.0, gpus_per_node=8,
    )  # fmt: skip
    assert load_gpu("A100-80") == load_gpu("A100-SXM")
    assert load_gpu("L40S").memory_gib == 48


def test_case_spaces_dashes_and_the_name_of_the_maker_make_no_difference() -> None:
    names = ("H100-NVL", "h100nvl", "NVIDIA H100 NVL", "nvidia-h100-nvl", "H100_NVL")
    assert {load_gpu(name).name for name in names} == {"H100-NVL"}
    assert load_gpu("NVIDIA GeForce RTX 4090") == load_gpu("4090") == load_gpu("rtx4090")
    assert load_gpu("AMD Instinct MI300X").name == "MI300X"


@pytest.mark.parametrize(("name", "near"), [("B400", "B200"), ("RTX-4080", "RTX-4090"), ("H100-XX", "H100")])
def test_an_unknown_gpu_is_answered_with_its_nearest_matches_in_one_line(name: str, near: str) -> None:
    with pytest.raises(
        EngineError, match=rf"GPU '{name}' is not in the catalogue, nearest (is|are) .*{near}.*; "
    ) as it:
        load_gpu(name)
    assert len(str(it.value)) < 200


def test_an_unknown_gpu_that_resembles_none_is_answered_with_the_way_out() -> None:
    with pytest.raises(EngineError) as refusal:
        load_gpu("x" * 5000)
    assert str(refusal.value).endswith(
        "' is not in the catalogue; `blis gpus` lists all, and --hardware-config FILE describes others"
    )


PUBLISHED = {
    "A100-SXM": (312, 0, 0, 2.039, 300), "A100-40": (312, 0, 0, 1.555, 300), "H100": (989.5, 1979, 0, 3.35, 450),
    "H100-PCIE": (756.5, 1513, 0, 2.0, 300), "H100-NVL": (835.5, 1670.5, 0, 3.9, 300),
    "H200": (989.5, 1979, 0, 4.8, 450), "H20": (148, 296, 0, 4.0, 450), "B200": (2250, 4500, 9000, 8.0, 900),
    "B300": (2250, 4500, 14000, 7.75, 900), "GB200": (2500, 5000, 10000, 8.0, 900), "L4": (121, 242.5, 0, 0.3, 0),
    "L40S": (362.05, 733, 0, 0.864, 0), "A10": (125, 0, 0, 0.6, 0), "A30": (165, 0, 0, 0.933, 100),
    "T4": (65, 0, 0, 0.32, 0), "RTX-4090": (165.2, 330.3, 0, 1.008, 0), "RTX-5090": (209.5, 419, 1676, 1.792, 0),
    "RTX-PRO-6000": (503.8, 1007.6, 2015.2, 1.597, 0), "MI300X": (1307.4, 2614.9, 0, 5.3, 448),
    "MI325X": (1307.4, 2614.9, 0, 6.0, 448),
}  # fmt: skip
"""Dense peaks in 16, 8 and 4 bits, terabytes per second of memory and gigabytes per second of NVLink."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_gpus_have_their_published_dense_rates_and_links(name: str) -> None:
    gpu = load_gpu(name)
    assert (gpu.tflops, gpu.tflops_fp8, gpu.tflops_fp4, gpu.bandwidth_tb_s, gpu.nvlink_gb_s) == PUBLISHED[name]


def test_every_gpu_of_the_catalogue_names_where_its_figures_were_published() -> None:
    for name in gpu_names():
        entry = gpu_entry(name)
        assert entry.source
        assert {*entry.assumed} <= {each.name for each in fields(GpuSpec)}
        assert 0.85 * entry.gpu.memory_gib < entry.gpu.cuda_memory_gib <= entry.gpu.memory_gib
        assert min(entry.gpu.pcie_gb_s, entry.gpu.network_gb_s) > 0
        assert (entry.gpu.nvlink_gb_s > 0) == (entry.gpu.nvlink_gpus > 1)


@pytest.mark.parametrize(
    ("gpu", "num_gpus", "rate"),
    [("H100", 8, 450), ("H100", 16, 50), ("H100-NVL", 4, 64), ("GB200", 16, 900), ("GB200", 144, 50), ("L4", 2, 32)],
)
def test_an_exchange_is_as_fast_as_the_slowest_link_that_it_crosses(gpu: str, num_gpus: int, rate: float) -> None:
    assert load_gpu(gpu).link_gb_s(num_gpus) == rate


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
        ("T1: {nvlink_gpus: 0}", "nvlink_gpus of GPU T1 must be a whole number from 1 to 10000, got 0"),
        ("T1: {gpus_per_node: 1.5}", "gpus_per_node of GPU T1 must be a whole number from 1 to 10000, got 1.5"),
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
