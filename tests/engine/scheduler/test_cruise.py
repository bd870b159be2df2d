"""Sequences that only decode, as sums: what the sums say is what each of them would."""

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.scheduler.cruise import Cruising
from blis_sim.engine.sequence import Cruise, Sequence

BLOCK_SIZE = 4
CONTEXTS = st.lists(st.integers(0, 30), max_size=6)


def cruising_from(first_step: int, contexts: list[int]) -> Cruising:
    """One sequence per context, each under way from a step on and for good."""
    cruising = Cruising(BLOCK_SIZE)
    for number, context in enumerate(contexts):
        sequence = Sequence(Request(f"r{number}", context, 1000, UniqueBlocks(f"r{number}")), 0)
        sequence.num_computed_tokens = context
        cruising.join(sequence, Cruise(first_step, 2000, 2000))
    return cruising


def needed(contexts: list[int], step: int) -> int:
    """New blocks in a step, by looking at each sequence: one when what it has computed fills its blocks."""
    return sum((context + step) % BLOCK_SIZE == 0 for context in contexts)


@given(contexts=CONTEXTS, first_step=st.integers(0, 10), after=st.integers(0, 10), num_steps=st.integers(1, 30))
def test_blocks_are_counted_as_if_one_by_one(contexts: list[int], first_step: int, after: int, num_steps: int) -> None:
    cruising = cruising_from(first_step, contexts)
    steps = [needed(contexts, after + step) for step in range(num_steps)]
    assert cruising.num_blocks_needed(first_step + after) == steps[0]
    assert cruising.num_blocks_in(first_step + after, num_steps) == sum(steps)


@given(
    contexts=CONTEXTS,
    first_step=st.integers(0, 10),
    after=st.integers(0, 10),
    num_steps=st.integers(1, 30),
    num_free_blocks=st.integers(0, 40),
)
def test_free_blocks_suffice_for_all_steps_before_one_would_find_none(
    contexts: list[int], first_step: int, after: int, num_steps: int, num_free_blocks: int
) -> None:
    num_left, within = num_free_blocks, 0
    while within < num_steps and (num_left := num_left - needed(contexts, after + within)) >= 0:
        within += 1
    cruising = cruising_from(first_step, contexts)
    assert cruising.num_steps_within(first_step + after, num_steps, num_free_blocks) == within
