"""Runs of `blis vidur` whose batches and times are worked out by hand."""

from pathlib import Path

import numpy as np
import pytest

from blis_sim.bench.vidur.replica import EventQueue, Replica, StagedReplica, TimedJob, run_staged
from blis_sim.bench.vidur.simulation import run_together
from blis_sim.engine.scheduler.batch_engines import BATCH_RULES
from blis_sim.engine.scheduler.batch_rules import Batch
from tests.bench.vidur.small import STEP_S, job, limits, vidur


def columns(rows: list[dict[str, str]], *names: str) -> list[tuple[float, ...]]:
    return [tuple(float(row[name]) for name in names) for row in rows]


def test_a_prompt_takes_what_decodes_leave_of_the_chunk(tmp_path: Path) -> None:
    chunk = ("--replica_scheduler_config_type", "sarathi", "--sarathi_scheduler_config_chunk_size", "8")
    files = vidur(tmp_path, "0,8,4\n0.1,10,2\n", *chunk, "--compat", "vidur")
    sizes = columns(files["batch_metrics"], "batch_num_tokens", "batch_num_prefill_tokens", "batch_size")
    assert sizes == [(8, 8, 1), (8, 7, 2), (4, 3, 2), (2, 0, 2)]
    kv_s = 0.064 * 32 / 1000  # the attention of one granule of context
    ends_s = [STEP_S, 2 * STEP_S + kv_s, 3 * STEP_S + 3 * kv_s, 4 * STEP_S + 4 * kv_s]
    found = columns(files["request_metrics"], "request_e2e_time", "prefill_e2e_time", "request_scheduling_delay")
    assert found[0] == pytest.approx((ends_s[3], ends_s[0], 0))
    assert found[1] == pytest.approx((ends_s[3] - 0.1, ends_s[2] - 0.1, ends_s[0] - 0.1))


def test_a_request_that_arrives_at_the_end_of_a_batch_is_part_of_the_next_one(tmp_path: Path) -> None:
    files = vidur(tmp_path, f"0,8,3\n{STEP_S!r},8,3\n", "--compat", "vidur")
    sizes = columns(files["batch_metrics"], "batch_num_tokens", "batch_size")
    assert sizes == [(8, 1), (9, 2), (2, 2), (1, 1)]


def test_prompts_of_vllm_come_before_decodes_and_apart_from_them(tmp_path: Path) -> None:
    files = vidur(tmp_path, "0,8,3\n0.1,4,2\n", "--replica_scheduler_config_type", "vllm", "--compat", "vidur")
    assert columns(files["batch_metrics"], "batch_num_prefill_tokens", "batch_size") == [(8, 1), (4, 1), (0, 2), (0, 1)]


@pytest.mark.parametrize("name", sorted(set(BATCH_RULES) - {"lightllm"}))
@pytest.mark.parametrize("is_original", [True, False])
@pytest.mark.parametrize("num_blocks", [12, 60])
def test_a_replica_takes_the_same_batches_event_by_event(name: str, is_original: bool, num_blocks: int) -> None:
    if name == "faster-transformer" and is_original:
        num_blocks = 1000  # the original loses blocks, and ends when they run out
    within = limits(is_original=is_original, num_blocks=num_blocks, tokens=24)
    rules = BATCH_RULES[name]

    def seconds(batch: Batch, _sends: bool) -> float:
        return seconds_of_decodes(batch.decodes, batch.decode_context_tokens) + 0.01 * batch.num_prefill_tokens

    def seconds_of_decodes(decodes: int, context: int) -> float:
        return 0.1 + 0.001 * decodes + 0.0001 * context

    def arriving() -> list[TimedJob]:
        return [job(3 + index * 7 % 20, 1 + index * 5 % 17, index // 3 * 0.7, index) for index in range(12)]

    directly, by_events = arriving(), arriving()
    replica = Replica(rules(within), seconds, lambda decodes, context: (seconds_of_decodes(decodes, context), 0.0, 1))
    run_together([replica], directly, lambda _: 0)
    event_queue = EventQueue()
    staged = StagedReplica(rules(within), seconds, event_queue, 1)
    run_staged([staged], event_queue, by_events, lambda _: 0)
    assert replica.log.starts == staged.log.starts
    assert np.repeat(replica.log.decodes, replica.log.numbers).tolist() == staged.log.decodes.tolist()
    assert [each.completed_at for each in directly] == [each.completed_at for each in by_events]
    assert None not in [each.completed_at for each in directly]
    assert replica.rules.blocks.num_used_blocks == 0 or (name == "faster-transformer" and is_original)
