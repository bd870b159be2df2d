"""Separate replicas for prompts and decodes, and the limit of time, with tables whose times are worked out by hand."""

from pathlib import Path

import pytest

from blis_sim.cli.main import run
from blis_sim.wings.vidur.cluster import Cluster, cluster_of
from blis_sim.wings.vidur.settings import VidurOptions
from replay.metrics_dir.tables import SIMAI_COLUMNS, VIDUR_COLUMNS
from tests.wings.vidur.small import STEP_S, tables, vidur

TOKEN_BYTES = 2 * 32 * 128 * 32 * 2
"""The KV cache of a token of Llama-2-7b in 16 bits."""
KINDS = ("--global_scheduler_config_type", "split_wise", "--replica_scheduler_config_type", "split_wise")
POOLS = (*KINDS, "--cluster_config_num_replicas", "2", "--replica_config_pd_node_ratio", "0.5")
SLOW = (*POOLS, "--replica_config_pd_p2p_comm_bandwidth", "1")
"""A Gbit/s: the KV cache of 64 tokens takes longer than a step."""
ORIGINAL = pytest.mark.parametrize("is_original", [True, False])


def simulated(folder: Path, requests: str, *flags: str, is_original: bool = False) -> dict[str, list[dict[str, str]]]:
    return vidur(folder, requests, *flags, *(("--compat", "simai") if is_original else ()))


def numbers(rows: list[dict[str, str]], *names: str) -> list[tuple[float, ...]]:
    return [tuple(float(row[name]) for name in names) for row in rows]


def cluster(**settings: object) -> Cluster:
    given = {"cluster_config_num_replicas": 4, "replica_config_pd_node_ratio": 0.5, **settings}
    kinds = {f"{name}_scheduler_config_type": "split_wise" for name in ("global", "replica")}
    return cluster_of(VidurOptions(**kinds, **given))


def test_a_prompt_is_computed_by_one_replica_and_its_output_by_the_other(tmp_path: Path) -> None:
    files = simulated(tmp_path, "0,8,3\n", *POOLS)
    assert list(files["request_metrics"][0]) == list(SIMAI_COLUMNS)
    (row,) = files["request_metrics"]
    assert (row["prefill_replica_id"], row["decode_replica_id"], row["pd_p2p_comm_dtype"]) == ("0", "1", "float16")
    sent_s = 8 * TOKEN_BYTES / 100e9
    assert numbers([row], "prefill_completed_at", "decode_arrived_at", "pd_p2p_comm_size", "pd_p2p_comm_bandwidth") == [
        pytest.approx((STEP_S, STEP_S + sent_s, 8 * TOKEN_BYTES, 100e9))
    ]
    attention_s = (9 + 10) / 1000 * 32 / 1000
    assert float(row["request_e2e_time"]) == pytest.approx(3 * STEP_S + sent_s + attention_s)
    assert float(row["request_preemption_time"]) == pytest.approx(sent_s)
    sizes = numbers(files["batch_metrics"], "batch_num_prefill_tokens", "batch_num_decode_tokens")
    assert sizes == [(8, 0), (0, 1), (0, 1)]


def test_a_request_of_one_token_ends_with_its_prompt(tmp_path: Path) -> None:
    (row,) = simulated(tmp_path, "0,8,1\n", *POOLS)["request_metrics"]
    assert (row["decode_arrived_at"], row["pd_p2p_comm_size"], row["decode_time"]) == ("inf", "inf", "0.0")


@ORIGINAL
def test_a_decode_begins_before_its_kv_cache_has_arrived_in_the_original_alone(
    is_original: bool, tmp_path: Path
) -> None:
    """The request waits at its replica while its KV cache is on the way, and a batch that begins takes it along."""
    files = simulated(tmp_path, "0,8,20\n0.3,64,3\n", *SLOW, is_original=is_original)
    _, row = files["request_metrics"]
    began_s = float(row["prefill_completed_at"]) + float(row["request_preemption_time"])
    assert (began_s < float(row["decode_arrived_at"]) - 1e-9) is is_original


@ORIGINAL
def test_a_gigabit_has_2_to_the_30_bits_in_the_original_alone(is_original: bool, tmp_path: Path) -> None:
    """Links are sold in units of 10**9 bits: the original is 7 % too fast."""
    (row,) = simulated(tmp_path, "0,8,3\n", *POOLS, is_original=is_original)["request_metrics"]
    rate = float(row["pd_p2p_comm_size"]) / float(row["pd_p2p_comm_time"])
    assert rate == pytest.approx(100 * (2**30 if is_original else 10**9))


@ORIGINAL
def test_the_first_output_token_is_sent_in_the_original_alone(is_original: bool, tmp_path: Path) -> None:
    """The keys and values of that token are computed by the next step, on the replica that decodes."""
    (row,) = simulated(tmp_path, "0,8,3\n", *POOLS, is_original=is_original)["request_metrics"]
    assert float(row["pd_p2p_comm_size"]) == TOKEN_BYTES * (9 if is_original else 8)


@ORIGINAL
def test_two_transfers_share_no_link_in_the_original_alone(is_original: bool, tmp_path: Path) -> None:
    """Each has the whole rate there; here the second one waits until the link of its replica is free."""
    files = simulated(tmp_path, "0,64,3\n0,64,3\n", *SLOW, is_original=is_original)
    first, second = numbers(files["request_metrics"], "decode_arrived_at", "pd_p2p_comm_time")
    assert second[0] - first[0] == pytest.approx(0 if is_original else second[1])


@pytest.mark.parametrize(
    ("model", "dtype", "original_bytes", "own_bytes"),
    [
        ("deepseek-671B", "fp8", 101 * 2 * 128 * 56 * 61, 100 * 576 * 61),
        ("qwen3-moe-235B", "fp8", 101 * 2 * 4 * 64 * 94, 100 * 2 * 4 * 128 * 94),
        ("qwen3-next-80B", "float16", 2 * 101 * 2 * 2 * 128 * 48, 2 * (100 * 2 * 2 * 256 * 12 + 36 * 548_864)),
    ],
)
def test_kv_caches_are_latents_and_states_where_the_model_has_them(
    model: str, dtype: str, original_bytes: int, own_bytes: int
) -> None:
    """The original sends full heads of all layers: 14 times too much of DeepSeek."""
    for compat, expected in (("simai", original_bytes), ("", own_bytes)):
        made = cluster(
            replica_config_model_name=model,
            replica_config_pd_p2p_comm_dtype=dtype,
            replica_config_device="h20",
            replica_config_network_device="h20_dgx",
            replica_config_tensor_parallel_size=8,
            compat=compat,
        )
        assert made.transfers is not None
        assert made.transfers.of(100).size_bytes == expected


@ORIGINAL
def test_parallelism_of_a_phase_acts_on_its_replicas_outside_of_the_original(is_original: bool) -> None:
    """SimAI looks AICB's tables up by it, and times all else by what both phases share."""
    made = cluster(
        replica_config_decode_num_pipeline_stages=2,
        replica_config_prefill_tensor_parallel_size=2,
        compat="simai" if is_original else "",
    )
    found = [(pool.num_replicas, pool.tp, pool.num_stages) for pool in made.pools]
    assert found == ([(2, 1, 1), (2, 1, 1)] if is_original else [(2, 2, 1), (2, 1, 2)])
    assert [pool.num_gpus for pool in made.pools] == [4, 4]


@ORIGINAL
def test_the_number_of_prefill_replicas_is_obeyed_outside_of_the_original(is_original: bool) -> None:
    """SimAI counts GPUs by it, and splits replicas by the ratio."""
    made = cluster(replica_config_num_prefill_replicas=3, compat="simai" if is_original else "")
    assert [pool.num_replicas for pool in made.pools] == ([2, 2] if is_original else [3, 1])


@ORIGINAL
def test_memory_is_planned_for_two_tokens_of_a_model_with_experts_in_the_original_alone(is_original: bool) -> None:
    """More requests begin there than a GPU can hold."""
    made = cluster(
        replica_config_model_name="qwen3-moe-235B",
        replica_config_device="h20",
        replica_config_network_device="h20_dgx",
        replica_config_tensor_parallel_size=4,
        compat="simai" if is_original else "",
    )
    fitting = made.pools[0].limits.max_full_length_seqs
    assert fitting is not None
    assert fitting > 50_000 if is_original else 300 < fitting < 450


@pytest.mark.parametrize("stages", ["1", "2"])
def test_the_limit_of_time_ends_the_simulation(stages: str, tmp_path: Path) -> None:
    files = vidur(tmp_path, "0,8,8\n1.5,8,4\n", "--time_limit", "1", "--replica_config_num_pipeline_stages", stages)
    (row,) = files["request_metrics"]
    assert list(row) == list(VIDUR_COLUMNS)
    assert (row["request_e2e_time"], row["request_num_tokens"]) == ("", "16.0")
    assert [float(each["batch_num_tokens"]) for each in files["batch_metrics"]] == [8, 1, 1]


def test_the_limit_of_time_ends_separate_replicas_too(tmp_path: Path) -> None:
    files = simulated(tmp_path, "0,8,8\n", *POOLS, "--time_limit", "1")
    assert [float(each["batch_num_tokens"]) for each in files["batch_metrics"]] == [8, 1, 1]


def test_columns_are_those_of_simai_with_its_compatibility(tmp_path: Path) -> None:
    (row,) = simulated(tmp_path, "0,8,3\n", is_original=True)["request_metrics"]
    assert list(row) == list(SIMAI_COLUMNS)
    assert (row["prefill_replica_id"], row["decode_arrived_at"], row["pd_p2p_comm_bandwidth"]) == ("", "inf", "0")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--replica_scheduler_config_type", "split_wise"), "must both be split_wise or neither, got round_robin and"),
        (KINDS, "--replica_config_pd_node_ratio must be between 0 and 1 with split_wise, got 1"),
        ((*KINDS, "--replica_config_pd_node_ratio", "0.5"), "--cluster_config_num_replicas must be at least 2 with"),
        ((*POOLS, "--replica_config_num_prefill_replicas", "2"), "must leave one of the 2 replicas for decodes, got 2"),
        ((*POOLS, "--replica_config_pd_p2p_comm_dtype", "int3"), "must be one of fp8, int8, float16"),
        (("--replica_config_device", "h21"), "must be one of a40, a100, h100, h800, h20, got 'h21'"),
        (("--random_forrest_execution_time_predictor_config_backend", "x"), "must be one of vidur, aicb, simai_"),
        (("--operators", "aicb:no"), "expected a folder of AICB's tables"),
        (("--time_limit", "-1"), "--time_limit"),
    ],
)
def test_an_impossible_simulation_is_refused_in_one_line(
    flags: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["vidur", "--operators", f"vidur-tables:{tables(tmp_path)}", *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_flags_of_simai_that_change_nothing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--replica_config_nvlink_bandwidth", "900", "--replica_config_pd_node_ratio", "0.5"]
    given += ["--random_forrest_execution_time_predictor_config_aicb_force_bs1", "--time_limit", "60"]
    vidur(tmp_path, "0,8,3\n", *given)
    error = capsys.readouterr().err
    for name in ("nvlink_bandwidth", "pd_node_ratio", "aicb_force_bs1"):
        assert f"{name} has no effect: " in error
    assert error.count("has no effect") == 3


def test_the_analytical_backend_replaces_measured_all_reduces(tmp_path: Path) -> None:
    flags = ("--replica_config_tensor_parallel_size", "2")
    backend = ("--random_forrest_execution_time_predictor_config_backend", "simai_analytical")
    before, after = (
        float(rows["request_metrics"][0]["request_e2e_time"])
        for rows in (vidur(tmp_path, "0,8,1\n", *flags), vidur(tmp_path, "0,8,1\n", *flags, *backend))
    )
    assert after - before == pytest.approx(32 * 2 * 10e-6)
