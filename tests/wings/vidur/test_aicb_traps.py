"""Errors of SimAI with AICB's tables: --compat simai repeats each of them, and the default avoids it."""

from pathlib import Path

import pytest

from blis_sim.cli.main import run
from tests.wings.vidur.small import vidur
from tests.wings.vidur.test_pools import POOLS

ORIGINAL = pytest.mark.parametrize("is_original", [True, False])
GPU = ("--replica_config_device", "h20", "--replica_config_network_device", "h20_dgx")
MODEL = ("--replica_config_model_name", "qwen3-next-80B", "--replica_config_pd_p2p_comm_dtype", "fp8")
LAYERS = 48
EXCHANGED_BYTES = 8000
RDMA_BITS, NVLINK_BITS = 800, 1600
"""Gbit/s by default."""


def batches_s(folder: Path, requests: str, *flags: str, is_original: bool) -> list[float]:
    """Return the times of all batches."""
    source = ("--operators", f"aicb:{folder}")
    compat = ("--compat", "simai") if is_original else ()
    files = vidur(folder, requests, *GPU, *MODEL, *flags, *source, *compat)
    return [float(row["batch_execution_time"]) for row in files["batch_metrics"]]


def write(folder: Path, phase: str, size: int, tokens: int, compute_ns: int, gpus: int = 1) -> None:
    """Write a table whose attention takes a quarter of `compute_ns` in each layer."""
    name = f"vidur-Qwen3-Next-80B-world_size{gpus}-tp1-pp1-ep{gpus}-bs{size}-seq{tokens}-{phase}.csv"
    rows = (
        f"{layer}\tattention\t{compute_ns // 4}\t0\n{layer}\tmoe\t{compute_ns // 4 * 3}\t{EXCHANGED_BYTES}\n"
        for layer in range(LAYERS)
    )
    (folder / name).write_text("".join(rows))


@ORIGINAL
def test_times_are_a_thousandth_in_the_original_alone(is_original: bool, tmp_path: Path) -> None:
    """The seconds of all layers count as milliseconds there, and an MLP that no layer has takes a microsecond.

    Decodes also exchange over the network between nodes there, as prompts do, and NVLink's rate is never read.
    """
    write(tmp_path, "prefill", 1, 8, 4000)
    write(tmp_path, "decode", 1, 8, 2000)
    found = batches_s(tmp_path, "0,8,2\n", *POOLS, is_original=is_original)
    if is_original:
        exchange_s = EXCHANGED_BYTES * 8 / (RDMA_BITS * 2**30)
        expected = [LAYERS * (each + 1e-6 + exchange_s) / 1000 for each in (4e-6, 2e-6)]
    else:
        of_prompt, of_decode = (EXCHANGED_BYTES * 8 / (rate * 1e9) for rate in (RDMA_BITS, NVLINK_BITS))
        expected = [LAYERS * (4e-6 + of_prompt), LAYERS * (2e-6 + of_decode)]
    assert found == pytest.approx(expected)


@ORIGINAL
def test_prompts_count_as_decodes_of_nothing_in_the_original_without_separate_replicas(
    is_original: bool, tmp_path: Path
) -> None:
    """The phase is that of the replica there, and a replica for both is taken for one that decodes."""
    write(tmp_path, "prefill", 1, 8, 4000)
    write(tmp_path, "decode", 1, 8, 2000)
    prompt_s, decode_s = batches_s(tmp_path, "0,8,2\n", is_original=is_original)
    assert prompt_s == pytest.approx(decode_s) if is_original else prompt_s > 1.9 * decode_s


@ORIGINAL
def test_contexts_of_decodes_are_added_up_in_the_original_alone(is_original: bool, tmp_path: Path) -> None:
    """AICB's tables have the context of each decode, so two with 8 tokens each are no decode with 16."""
    write(tmp_path, "prefill", 1, 8, 4000)
    for tokens, compute_ns in ((8, 2000), (16, 20_000)):
        write(tmp_path, "decode", 2, tokens, compute_ns)
    found = batches_s(tmp_path, "0,8,2\n0,8,2\n", is_original=is_original)
    expected_ns = 20_000 + 1000 if is_original else 2000
    exchange_s = EXCHANGED_BYTES * 8 / (RDMA_BITS * 2**30 if is_original else NVLINK_BITS * 1e9)
    unit = 1000 if is_original else 1
    assert found[-1] == pytest.approx(LAYERS * (expected_ns * 1e-9 + exchange_s) / unit)


@ORIGINAL
def test_a_batch_without_a_table_takes_one_of_another_batch_in_the_original_alone(
    is_original: bool, tmp_path: Path
) -> None:
    """Three decodes take the table of one there; here they lie on the line from one decode to four."""
    write(tmp_path, "prefill", 1, 8, 4000)
    write(tmp_path, "decode", 1, 8, 2000)
    write(tmp_path, "decode", 4, 8, 8000)
    found = batches_s(tmp_path, "0,8,2\n0,8,2\n0,8,2\n", is_original=is_original)
    expected_ns = 2000 + 1000 if is_original else 6000
    exchange_s = EXCHANGED_BYTES * 8 / (RDMA_BITS * 2**30) if is_original else 3 * EXCHANGED_BYTES * 8 / 1600e9
    unit = 1000 if is_original else 1
    assert found[-1] == pytest.approx(LAYERS * (expected_ns * 1e-9 + exchange_s) / unit)


def test_all_batches_count_as_one_decode_where_simai_is_asked_to(tmp_path: Path) -> None:
    write(tmp_path, "prefill", 1, 8, 4000)
    write(tmp_path, "decode", 1, 16, 2000)
    write(tmp_path, "decode", 2, 16, 8000)
    flag = "--random_forrest_execution_time_predictor_config_aicb_force_bs1"
    found = [batches_s(tmp_path, "0,8,2\n0,8,2\n", *given, is_original=True)[-1] for given in ((), (flag,))]
    assert found[0] > 2.5 * found[1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--operators aicb needs a model with experts, got meta-llama/Llama-2-7b-hf"),
        (
            (*MODEL, *GPU, "--replica_config_num_pipeline_stages", "2"),
            "num_pipeline_stages must be 1 with",
        ),
        (
            (*MODEL, *GPU, "--replica_config_tensor_parallel_size", "2"),
            "tables of Qwen3-Next-80B with tp 2",
        ),
    ],
)
def test_a_command_line_without_tables_is_refused_in_one_line(
    flags: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "prefill", 1, 8, 4000)
    write(tmp_path, "decode", 1, 8, 2000)
    assert run(["vidur", *flags, "--operators", f"aicb:{tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
