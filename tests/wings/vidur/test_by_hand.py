"""Runs of `blis vidur` whose batches and times are worked out by hand."""

from pathlib import Path

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.wings.vidur.replica import BatchLatency, Replica, TimedJob
from blis_sim.wings.vidur.rules import RULES
from blis_sim.wings.vidur.simulation import run
from tests.wings.vidur.small import STEP_S, job, limits, vidur


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


class Times(BatchLatency):
    """Times that grow with the requests and their contexts."""

    def seconds(self, shape: BatchShape, sends: bool = False) -> float:
        decodes = shape.decode_requests
        context = 0.0001 * (shape.decode_context_tokens + decodes)
        return 0.1 + 0.001 * decodes + context + 0.01 * shape.prefill_tokens


@pytest.mark.parametrize("name", sorted(set(RULES) - {"lightllm"}))
@pytest.mark.parametrize("is_original", [True, False])
@pytest.mark.parametrize("num_blocks", [12, 60])
def test_a_replica_takes_the_same_batches_one_by_one(
    name: str, is_original: bool, num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "faster-transformer" and is_original:
        num_blocks = 1000  # the original loses blocks, and ends when they run out
    within = limits(is_original=is_original, num_blocks=num_blocks, tokens=24)
    runs: list[tuple[Replica, list[TimedJob]]] = []
    for is_one_by_one in (False, True):
        if is_one_by_one:
            monkeypatch.setattr(RULES[name], "num_equal_batches", lambda *_: 0)
        jobs = [job(3 + index * 7 % 20, 1 + index * 5 % 17, index // 3 * 0.7, index) for index in range(12)]
        runs.append((Replica(RULES[name](within), Times()), jobs))
        run([[runs[-1][0]]], jobs, lambda _: 0)
    (at_once, directly), (singly, slowly) = runs
    assert at_once.log.starts == singly.log.starts
    assert at_once.log.counts == singly.log.counts
    assert [each.completed_at for each in directly] == [each.completed_at for each in slowly]
    assert None not in [each.completed_at for each in directly]
    assert at_once.rules.blocks.num_used_blocks == 0 or (name == "faster-transformer" and is_original)


@pytest.mark.parametrize("later_s", [-4e-7, 4e-7])
def test_a_request_within_the_microsecond_of_an_end_joins_the_next_batch_if_it_comes_before_it(later_s: float) -> None:
    """The engine counts whole microseconds, and a replica carries the exact instants."""
    first_end_s = 0.1 + 0.01 * 8
    replica = Replica(RULES["sarathi"](limits()), Times())
    run([[replica]], [job(8, 4), job(4, 2, first_end_s + later_s, 1)], lambda _: 0)
    assert replica.log.counts["batch_size"][:3].tolist() == ([1, 2, 2] if later_s < 0 else [1, 1, 2])
