"""Tokens of each request in a step: the running first, then the waiting, within one budget."""

from collections import deque
from dataclasses import dataclass, field

from blis_sim.engine.context import EngineContext
from blis_sim.engine.request import PrefixGroupBlocks
from blis_sim.engine.scheduler.blis import BlisScheduler
from blis_sim.engine.sequence import Sequence
from tests.fakes import TestLatency, config, request


@dataclass
class Bench:
    """A scheduler with BLIS's rules, and steps that take no time and end no request."""

    total_kv_blocks: int = 100
    settings: dict[str, int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        context = EngineContext(config(self.total_kv_blocks, 4, **self.settings), TestLatency())
        self.batch = BlisScheduler(context, has_cohort=False)
        self.kv = self.batch.kv

    @property
    def running(self) -> list[Sequence]:
        return self.batch.explicit

    @property
    def waiting(self) -> deque[Sequence]:
        return self.batch.waiting

    def wait(
        self, name: str, input_tokens: int, output_tokens: int = 50, priority: int = 0, shared_blocks: int = 0
    ) -> Sequence:
        """Queue a request; `shared_blocks` blocks of its prompt are those of all others that share some."""
        blocks = PrefixGroupBlocks(name, "g", shared_blocks)
        sequence = Sequence(request(name, input_tokens, output_tokens, blocks=blocks), 0)
        sequence.priority = priority
        self.waiting.append(sequence)
        return sequence

    def step(self) -> dict[str, int]:
        """Compose a step, let it compute, and return the tokens of each that computed."""
        self.batch.schedule(0)
        _, _, tokens, _ = self.batch.in_flight.popleft()
        return {each.sequence.request.id: each.num_tokens for each in tokens if each.num_tokens}


def names(sequences: list[Sequence] | deque[Sequence]) -> list[str]:
    return [sequence.request.id for sequence in sequences]


def test_waiting_requests_are_admitted_in_the_order_of_the_queue() -> None:
    bench = Bench()
    bench.wait("a", 10)
    bench.wait("b", 20)
    assert bench.step() == {"a": 10, "b": 20}
    assert names(bench.batch.admitted) == ["a", "b"]


def test_a_running_request_decodes_one_token_a_step() -> None:
    bench = Bench()
    bench.wait("a", 10)
    assert [bench.step() for _ in range(3)] == [{"a": 10}, {"a": 1}, {"a": 1}]


def test_running_requests_get_their_tokens_before_waiting_ones() -> None:
    bench = Bench(settings={"max_num_batched_tokens": 12})
    bench.wait("a", 10)
    bench.step()
    bench.wait("b", 30)
    assert bench.step() == {"a": 1, "b": 11}


def test_the_budget_splits_a_prompt_and_the_next_step_goes_on_with_it() -> None:
    bench = Bench(settings={"max_num_batched_tokens": 12})
    bench.wait("a", 30)
    assert [bench.step() for _ in range(4)] == [{"a": 12}, {"a": 12}, {"a": 6}, {"a": 1}]


def test_the_long_prefill_threshold_leaves_budget_to_others() -> None:
    bench = Bench(settings={"max_num_batched_tokens": 12, "long_prefill_token_threshold": 8})
    bench.wait("a", 20)
    bench.wait("b", 8)
    assert [bench.step() for _ in range(3)] == [{"a": 8, "b": 4}, {"a": 8, "b": 4}, {"a": 4, "b": 1}]


def test_no_more_than_max_num_seqs_run() -> None:
    bench = Bench(settings={"max_num_seqs": 2})
    for name in "abc":
        bench.wait(name, 5)
    assert bench.step() == {"a": 5, "b": 5}
    assert names(bench.waiting) == ["c"]


def test_no_request_overtakes_one_that_does_not_fit() -> None:
    bench = Bench(total_kv_blocks=4)
    bench.wait("a", 8)
    bench.wait("too long now", 12)
    bench.wait("would fit", 4)
    assert bench.step() == {"a": 8}
    assert names(bench.waiting) == ["too long now", "would fit"]


def test_a_cached_prefix_is_not_computed_again() -> None:
    bench = Bench()
    bench.wait("a", 12, shared_blocks=2)
    bench.step()
    bench.wait("b", 12, shared_blocks=2)
    assert bench.step() == {"a": 1, "b": 4}


def test_blocks_filled_in_a_step_are_found_by_those_admitted_after_in_the_same_step() -> None:
    bench = Bench()
    bench.wait("a", 12, shared_blocks=2)
    bench.wait("b", 12, shared_blocks=2)
    assert bench.step() == {"a": 12, "b": 4}


def test_a_prompt_found_whole_computes_nothing_and_holds_nothing() -> None:
    bench = Bench()
    bench.wait("a", 8, shared_blocks=2)
    bench.step()
    late = bench.wait("b", 8, shared_blocks=2)
    assert bench.step() == {"a": 1}
    assert late.running
    assert (late.block_ids, late.blocks_aligned) == ([], False)
    assert bench.step() == {"a": 1, "b": 1}, "its prompt counts as computed"


def test_the_last_admitted_is_sent_back_to_the_front_of_the_queue_when_blocks_run_out() -> None:
    bench = Bench(total_kv_blocks=4)
    for name in "ab":
        bench.wait(name, 8)
    bench.step()
    bench.wait("c", 4)
    assert bench.step() == {"a": 1}
    assert names(bench.batch.preempted) == ["b"]
    assert names(bench.waiting) == ["b", "c"]


def test_the_earliest_admitted_of_several_victims_comes_back_first() -> None:
    bench = Bench(total_kv_blocks=6, settings={"max_num_batched_tokens": 16, "long_prefill_token_threshold": 8})
    bench.wait("long", 24)
    for name in "bc":
        bench.wait(name, 3)
    assert bench.step() == {"long": 8, "b": 3, "c": 3}
    assert bench.step() == {"long": 8, "b": 1, "c": 1}
    assert bench.step() == {"long": 8}
    assert names(bench.batch.preempted) == ["c", "b"]
    assert names(bench.waiting) == ["b", "c"]


def test_the_least_urgent_is_sent_back_with_the_priority_policy() -> None:
    bench = Bench(total_kv_blocks=6, settings={"preemption_policy": "priority"})
    for name, priority in (("a", 1), ("least urgent", 5), ("c", 1)):
        bench.wait(name, 8, priority=priority)
    bench.step()
    assert bench.step() == {"a": 1, "c": 1}
    assert names(bench.batch.preempted) == ["least urgent"]


def test_a_victim_gives_its_tokens_of_this_step_back_to_those_after_it() -> None:
    settings: dict[str, int | str] = {
        "preemption_policy": "priority",
        "max_num_batched_tokens": 9,
        "long_prefill_token_threshold": 4,
    }
    bench = Bench(total_kv_blocks=6, settings=settings)
    bench.wait("victim", 12, priority=5)
    bench.wait("b", 12)
    bench.wait("c", 12)
    assert [bench.step() for _ in range(2)] == [{"victim": 4, "b": 4, "c": 1}] * 2
    assert bench.step() == {"b": 4, "c": 4}
    assert names(bench.batch.preempted) == ["victim"]


def test_no_request_is_admitted_in_a_step_that_preempts() -> None:
    bench = Bench(total_kv_blocks=5)
    for name in "ab":
        bench.wait(name, 8)
    bench.step()
    bench.wait("tiny", 1)
    assert bench.step() == {"a": 1}
    assert names(bench.batch.preempted) == ["b"]
    assert bench.kv.num_used_blocks < bench.kv.num_blocks, "tiny would fit"


def test_a_sequence_that_is_its_own_last_victim_ends_the_step() -> None:
    bench = Bench(total_kv_blocks=6, settings={"preemption_policy": "priority"})
    bench.wait("a", 7)
    bench.wait("least urgent", 8, priority=9)
    bench.wait("c", 7)
    bench.step()
    assert bench.step() == {"a": 1}
    assert names(bench.batch.preempted) == ["least urgent"]
    assert names(bench.running) == ["a", "c"]


def test_alone_and_out_of_blocks_a_request_preempts_itself() -> None:
    bench = Bench(total_kv_blocks=2)
    alone = bench.wait("a", 8)
    bench.step()
    assert bench.step() == {}
    assert names(bench.waiting) == ["a"]
    assert alone.num_preemptions == 1


def test_a_sequence_at_max_model_len_idles_until_it_is_taken_out() -> None:
    bench = Bench(settings={"max_model_len": 11})
    bench.wait("a", 9)
    assert [bench.step() for _ in range(3)] == [{"a": 9}, {"a": 1}, {}]


def test_a_request_without_output_computes_only_its_prompt() -> None:
    bench = Bench()
    bench.wait("a", 5, output_tokens=0)
    assert [bench.step() for _ in range(2)] == [{"a": 5}, {}]
