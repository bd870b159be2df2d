"""Loads of measured servers as they are simulated."""

from blis_sim.engine.deployment import resolve
from workshop.points import earlier_bursts, means_ms, options_of

ALONE = {
    "model": "llama-3.1-8b-instruct", "gpu": "H100", "tp": "1", "ep": "0", "dp": "1", "pp": "1", "vllm": "0.11",
    "max_num_batched_tokens": "", "max_num_seqs": "", "gpu_memory_utilization": "", "load": "random fixed lengths",
    "requests": "16", "concurrency": "", "rate": "inf", "isl": "512", "osl": "4", "note": "",
}  # fmt: skip
SHORT = {**ALONE, "isl": "128"}


def test_a_burst_of_fixed_lengths_comes_behind_the_longer_ones_of_its_server() -> None:
    longest = {**ALONE, "isl": "2000"}
    assert earlier_bursts(SHORT, [longest, ALONE]) == [longest, ALONE]
    assert earlier_bursts(ALONE, [longest]) == [longest]
    assert earlier_bursts(longest, [SHORT]) == []


def test_a_burst_comes_behind_no_other_load_and_no_other_server() -> None:
    assert earlier_bursts(SHORT, [ALONE, {**ALONE, "load": "sharegpt"}]) == []
    assert earlier_bursts(SHORT, [{**ALONE, "tp": "2"}]) == []
    assert earlier_bursts({**SHORT, "load": "sharegpt"}, [ALONE]) == []


def test_prompts_whose_beginnings_were_sent_before_are_found_in_the_cache() -> None:
    deployment = resolve(options_of(SHORT, "kernels"))
    after, alone = means_ms(SHORT, [ALONE], deployment), means_ms(SHORT, [], deployment)
    assert after[0] < 0.95 * alone[0]  # TTFT
    assert after[3] < 0.98 * alone[3]  # the duration is that of the burst alone
