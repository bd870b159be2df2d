"""Newcomers among those that cruise: who is let in without asking the general rules, and what is known of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.events import Scheduled
from blis_sim.engine.instance import Instance
from blis_sim.engine.kv_cache.counting import CountingKVCache
from blis_sim.engine.request import ExternalPrompt, PrefixGroupBlocks, Request
from blis_sim.engine.scheduler.newcomers import Newcomers, give_first_tokens, grants_of
from blis_sim.engine.scheduler.vllm_batch import Grant
from blis_sim.engine.scheduler.vllm_fast_batch import FastVllmBatch
from blis_sim.engine.sequence import Cruise, Outcome, Sequence
from tests.fakes import TestLatency, config, request


@dataclass(frozen=True, slots=True)
class Entrance:
    """An instance at which nobody runs yet."""

    instance: Instance
    batch: FastVllmBatch
    newcomers: Newcomers

    def joined(self) -> tuple[list[Sequence], BatchShape]:
        """What the next step is composed of at 7 us, to start at 9 us."""
        composed = self.newcomers.compose(7, 9)
        assert composed is not None
        return composed


def waiting_for(*requests: Request, total_kv_blocks: int = 100, **settings: Any) -> Entrance:
    limits = config(total_kv_blocks, scheduling="vllm", **settings)
    instance, batch = Instance(limits, TestLatency()), FastVllmBatch(limits, CountingKVCache(limits))
    batch.waiting.extend(Sequence(each, 0) for each in requests)
    return Entrance(instance, batch, Newcomers(instance, batch))


def names(sequences: Iterable[Sequence]) -> list[str]:
    return [sequence.request.id for sequence in sequences]


def test_all_that_fit_join_at_once() -> None:
    entrance = waiting_for(request("a", 10, 3), request("b", 5, 2))
    joined, shape = entrance.joined()
    assert names(joined) == ["a", "b"]
    assert shape == BatchShape(2, 15, 125, 0, 0, 125, 0, 0)
    batch = entrance.batch
    assert (batch.num_running, len(batch.waiting), batch.next_step, batch.kv.num_used_blocks) == (2, 0, 1, 3 + 2)


def test_the_prompts_computed_before_the_step_starts_are_part_of_what_it_is_like() -> None:
    entrance = waiting_for(request("a", 10, 3))
    entrance.instance.recent_prompts.add(100, ends_at=9)
    _, shape = entrance.joined()
    assert shape == BatchShape(1, 10, 100, 0, 0, 100, 0, 0, recent_prefill_tokens=100)


def test_they_cruise_from_the_step_after_that_of_their_prompt_to_their_last_token() -> None:
    entrance = waiting_for(request("a", 10, 3))
    ((sequence,), _) = entrance.joined()
    assert sequence.cruise == Cruise(first_step=1, last_step=2, last_granted_step=2)
    assert entrance.batch.cruising.context_tokens(1) == 10


def test_a_join_is_told() -> None:
    entrance = waiting_for(request("a", 10, 3))
    ((sequence,), _) = entrance.joined()
    assert sequence.scheduled_at == 7
    assert entrance.instance.events == [Scheduled(7, sequence)]


def test_nobody_joins_beyond_the_seats() -> None:
    entrance = waiting_for(request("a", 10, 3), request("b", 5, 2), max_num_seqs=1)
    assert names(entrance.joined()[0]) == ["a"]
    assert names(entrance.batch.waiting) == ["b"]


def test_who_finds_too_few_blocks_is_not_asked_again_until_some_come_back() -> None:
    entrance = waiting_for(request("a", 10, 3), request("b", 12, 2), total_kv_blocks=6)
    ((sequence,), _) = entrance.joined()
    assert sequence.request.id == "a"
    assert entrance.batch.stays_blocked()
    entrance.batch.kv.release(sequence)
    assert not entrance.batch.stays_blocked()


@pytest.mark.parametrize(
    "special",
    [
        request("b", 10, 3, blocks=PrefixGroupBlocks("b", "group", 2)),
        request("b", 10, 3)._replace(external=ExternalPrompt(10, 5)),
        request("b", 10, 1),
        request("b", 91, 3),
    ],
    ids=["shares its prompt", "computed elsewhere", "one token only", "more than the budget"],
)
def test_nothing_changes_when_the_general_rules_must_be_asked_about_one_of_them(special: Request) -> None:
    entrance = waiting_for(request("a", 10, 3), special, max_num_batched_tokens=100)
    assert entrance.newcomers.compose(7, 9) is None
    assert names(entrance.batch.waiting) == ["a", "b"]
    assert (entrance.batch.kv.num_used_blocks, entrance.instance.events) == (0, [])


def test_who_is_still_there_gets_its_first_token() -> None:
    entrance = waiting_for(request("a", 10, 3), request("b", 5, 2))
    joined, _ = entrance.joined()
    joined[0].outcome = Outcome.ABORTED
    give_first_tokens(joined, 4, 9)
    assert [(each.num_output_tokens, each.first_token_step, each.first_token_at) for each in joined] == [
        (0, None, None),
        (1, 4, 9),
    ]


def test_grants_can_be_made_up_for_who_is_still_there() -> None:
    entrance = waiting_for(request("a", 10, 3), request("b", 5, 2))
    joined, _ = entrance.joined()
    joined[0].outcome = Outcome.ABORTED
    assert grants_of(joined) == [Grant(joined[1], 5, 0, 5, samples=True)]
    assert (joined[1].num_in_flight_tokens, joined[1].num_placeholders) == (5, 1)
