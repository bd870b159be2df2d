"""Errors of Vidur: --compat vidur repeats each of them, and the default avoids it."""

import math
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from blis_sim.cli.main import run
from blis_sim.engine.latency.operators import LayerShape, OperatorTimes, read_lookup_tables
from blis_sim.wings.vidur.latency import OperatorLatency
from blis_sim.wings.vidur.replica import TimedJob
from blis_sim.wings.vidur.rules import (
    Batch,
    BatchRules,
    FasterTransformerRules,
    LightLLMRules,
    SarathiRules,
    VidurVllmRules,
)
from blis_sim.wings.vidur.simulation import router
from tests.wings.vidur.small import job, limits, tables, vidur
from traces.workload.spec import Vidur, VidurInterval, VidurLength
from traces.workload.vidur import arrivals_s

ORIGINAL = pytest.mark.parametrize("is_original", [True, False])


def next_batch(rules: BatchRules) -> Batch:
    batch = rules.compose()
    assert batch is not None
    rules.end(batch)
    return batch


@ORIGINAL
def test_gaps_of_poisson_arrivals_are_cut_in_the_original_alone(is_original: bool) -> None:
    """A cut at three mean gaps makes the rate 5 % higher than asked."""
    section = Vidur(interval=VidurInterval(type="poisson", qps=1.0), length=VidurLength(type="fixed"))
    found = arrivals_s(section, Random(1), 1, 3.0 if is_original else math.inf)
    instants = [0.0, *(next(found)[0] for _ in range(2000))]
    longest = max(later - earlier for earlier, later in pairwise(instants))
    assert longest <= 3.000001 if is_original else longest > 5
    assert instants[-1] / 2000 == pytest.approx(0.95 if is_original else 1.0, abs=0.03)


def seconds_of(times: OperatorTimes, batch: Batch, *, is_original: bool) -> float:
    latency = OperatorLatency(times, is_original=is_original)
    return latency.seconds(batch.shape(rounds_contexts=latency.rounds_contexts))


@ORIGINAL
def test_contexts_are_rounded_up_to_64_tokens_in_the_original_alone(is_original: bool, tmp_path: Path) -> None:
    """Rounding each of several contexts up adds 32 tokens to each on average; tables are straight between points."""
    times = OperatorTimes(read_lookup_tables(tables(tmp_path)), LayerShape(1, 1, shares_kv_heads=False))
    first, second = job(40, 5), job(40, 5)
    first.processed, second.processed = 10, 20
    seconds = seconds_of(times, Batch([first, second], [4, 4]), is_original=is_original)
    assert seconds == pytest.approx((8 + (0.128 if is_original else 0.030)) / 1000)
    first.is_prefilled = second.is_prefilled = True
    seconds = seconds_of(times, Batch([first, second], [1, 1]), is_original=is_original)
    assert seconds == pytest.approx((8 + (0.064 if is_original else 0.015)) / 1000)


@ORIGINAL
def test_prompts_of_a_vllm_batch_count_as_padded_to_the_longest(is_original: bool) -> None:
    """Both count 3 x 20 = 60 tokens, not 28: the engine of that time padded, so this is no error."""
    rules = VidurVllmRules(limits(is_original=is_original, tokens=60))
    for tokens in (20, 4, 4, 4):
        rules.add(job(tokens, 2))
    assert len(next_batch(rules).jobs) == 3


@ORIGINAL
def test_a_prompt_beyond_the_tokens_of_a_batch_blocks_the_queue_in_the_original_alone(is_original: bool) -> None:
    """Such a prompt and all behind it wait for ever in Vidur; here the prompt gets a batch of its own."""
    rules = VidurVllmRules(limits(is_original=is_original, tokens=16))
    rules.add(job(30, 2))
    rules.add(job(4, 2))
    batch = rules.compose()
    assert batch is None if is_original else batch is not None and batch.tokens == [30]


@ORIGINAL
def test_the_least_loaded_replica_has_the_fewest_waiting_requests_in_the_original(is_original: bool) -> None:
    """Requests that run do not count there, so at low load all go to the first replica."""

    class Loaded:
        num_waiting, num_outstanding = 0, 5

    class Idle:
        num_waiting, num_outstanding = 0, 0

    choose = router("lor", [Loaded(), Idle()], Random(1), is_original=is_original)
    assert choose(job(1, 1)) == (0 if is_original else 1)


@ORIGINAL
def test_a_restart_within_a_prompt_makes_the_rest_of_it_output_in_the_original_alone(is_original: bool) -> None:
    """A prompt of 20 tokens that lost its blocks after 8 gets 12 decodes in the original for the tokens it has
    already."""
    rules = SarathiRules(limits(is_original=is_original, tokens=8))
    begun = job(20, 2)
    rules.add(begun)
    next_batch(rules)
    rules.restart(rules.take_ready()[0])
    sizes = [next_batch(rules).num_prefill_tokens for _ in range(3)]
    assert sizes == ([8, 0, 0] if is_original else [8, 8, 4])
    assert begun.num_restarts == 1


@ORIGINAL
def test_times_for_each_token_are_of_the_output_after_a_restart_in_the_original_alone(
    is_original: bool, tmp_path: Path
) -> None:
    """The original counts output that came before a restart as prompt, and divides by what is left."""
    flags = ("--sarathi_scheduler_config_num_blocks", "5", "--sarathi_scheduler_config_watermark_blocks_fraction", "0")
    files = vidur(tmp_path, "0,32,20\n0,32,20\n", *flags, *(("--compat", "vidur") if is_original else ()))
    row = next(row for row in files["request_metrics"] if row["request_num_restarts"] != "0")
    output = float(row["request_e2e_time"]) / float(row["request_e2e_time_normalized"])
    assert row["request_num_decode_tokens"] == "20.0"
    assert output == pytest.approx(19 if is_original else 20)


@ORIGINAL
def test_a_decode_that_needs_no_block_asks_for_one_in_the_original_alone(is_original: bool) -> None:
    """A request loses its blocks in the original although the token that follows has room in them."""
    rules = SarathiRules(limits(is_original=is_original, num_blocks=2))
    rules.add(job(6, 3))
    next_batch(rules)
    batch = rules.compose()
    assert len(rules.restarted) == (1 if is_original else 0)
    assert batch is not None
    assert batch.num_prefill_tokens == (7 if is_original else 0)


@ORIGINAL
def test_the_watermark_keeps_a_lone_request_waiting_in_the_original_alone(is_original: bool) -> None:
    """No request runs in the original, so there will never be more room than there is."""
    rules = SarathiRules(limits(is_original=is_original, num_blocks=10))
    rules.num_watermark_blocks = 2
    rules.add(job(36, 2))
    assert (rules.compose() is None) is is_original


@ORIGINAL
def test_blocks_of_a_member_of_a_static_batch_that_ends_first_are_lost_in_the_original_alone(is_original: bool) -> None:
    """The original ends with an AssertionError when blocks run out; here they are freed as it is complete."""
    rules = FasterTransformerRules(limits(is_original=is_original, num_blocks=20))
    rules.add(job(4, 2))
    rules.add(job(4, 4))
    for _ in range(4):
        next_batch(rules)
    assert rules.blocks.num_used_blocks == (10 if is_original else 0)


@ORIGINAL
def test_lightllm_uses_the_true_length_of_outputs_in_the_original_alone(is_original: bool) -> None:
    """No engine can see how long an output will be: here the declared length counts."""
    within = limits(is_original=is_original, num_blocks=40)
    rules = LightLLMRules(within)
    for _ in range(2):
        each = TimedJob(0, 0.0, 8, 4)
        each.most_tokens = 30
        rules.add(each)
    assert len(next_batch(rules).jobs) == (2 if is_original else 1)


def test_static_intervals_are_0_as_there_is_no_setting_for_them(tmp_path: Path) -> None:
    """The description promises an interval; the original has none, so all requests come at once here, too."""
    section = Vidur(interval=VidurInterval(type="static"), length=VidurLength(type="fixed"))
    found = arrivals_s(section, Random(1), 1)
    assert [next(found)[0] for _ in range(3)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--replica_config_device b7", "--replica_config_device must be one of a40, a100, h100, h800, h20, got 'b7'"),
        ("--replica_config_model_name x", "--replica_config_model_name must be one of meta-llama/Llama-2-7b-hf,"),
        ("--replica_config_tensor_parallel_size 3", "must divide the 32 heads"),
        ("--replica_config_tensor_parallel_size 6", "must fit in a node of 4 GPUs, or fill several, got 6 x 1"),
        ("--replica_config_num_pipeline_stages 3", "must divide the 32 layers of meta-llama/Llama-2-7b-hf, got 3"),
        ("--replica_scheduler_config_type lightllm", "--lightllm_scheduler_config_block_size must be 1, got 16"),
        ("--zipf_request_length_generator_config_theta x", "must be a number, got 'x'"),
        ("--request_generator_config_typ x", "no such option: --request_generator_config_typ, did you mean"),
        ("--trace_request_generator_config_trace_file no.csv", "no.csv"),
    ],
)
def test_an_impossible_simulation_is_refused_in_one_line(
    flags: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "vidur",
        "--operators",
        f"vidur-tables:{tables(tmp_path)}",
        "--request_generator_config_type",
        "trace_replay",
    ]
    assert run([*words, *flags.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_flags_that_change_nothing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--metrics_config_cache_dir", "c", "--orca_scheduler_config_batch_size_cap", "3"]
    given += ["--random_forrest_execution_time_predictor_config_num_estimators", "250", "500"]
    vidur(tmp_path, "0,8,3\n", *given)
    error = capsys.readouterr().err
    for name in ("metrics_config_cache_dir", "orca_scheduler_config_batch_size_cap", "config_num_estimators"):
        assert f"{name} has no effect: " in error
    assert error.count("has no effect") == 3
