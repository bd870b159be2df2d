"""The sums of a decode cohort are those of its sequences, one by one."""

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.scheduler.cohort import DecodeCohort
from blis_sim.engine.sequence import DecodeSpan, Sequence

BLOCK_SIZE = 4
CONTEXTS = st.lists(st.integers(0, 30), min_size=1, max_size=6)


def decoding(context: int, number: int = 0) -> Sequence:
    sequence = Sequence(Request(f"r{number}", context, 1000, UniqueBlocks(f"r{number}")), 0)
    sequence.num_computed_tokens = context
    sequence.running_number = number
    return sequence


def cohort_from(first_step: int, contexts: list[int]) -> DecodeCohort:
    """A cohort with one sequence per context, which decodes from a step on and does not end."""
    cohort = DecodeCohort(BLOCK_SIZE)
    for number, context in enumerate(contexts):
        sequence = decoding(context, number)
        cohort.join(sequence, DecodeSpan(sequence, first_step, 2000, has_known_end=True))
    return cohort


def needed(contexts: list[int], step: int) -> int:
    """New blocks in a step, by looking at each sequence: one when what it has computed fills its blocks."""
    return sum((context + step) % BLOCK_SIZE == 0 for context in contexts)


@given(contexts=CONTEXTS, first_step=st.integers(0, 10), after=st.integers(0, 10), num_steps=st.integers(1, 30))
def test_blocks_are_counted_as_one_by_one(contexts: list[int], first_step: int, after: int, num_steps: int) -> None:
    cohort = cohort_from(first_step, contexts)
    steps = [needed(contexts, after + step) for step in range(num_steps)]
    assert cohort.needs[(first_step + after) % BLOCK_SIZE] == steps[0]
    assert cohort.num_blocks_in(first_step + after, num_steps) == sum(steps)
    assert sum(cohort.needs_block(each, first_step + after) for each in cohort.members) == steps[0]


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
    cohort = cohort_from(first_step, contexts)
    assert cohort.num_steps_within(first_step + after, num_steps, num_free_blocks) == within


def test_a_foreseen_end_leaves_the_sums_when_its_last_step_is_composed() -> None:
    cohort, sequence = DecodeCohort(BLOCK_SIZE), decoding(5)
    cohort.join(sequence, DecodeSpan(sequence, 3, 7, has_known_end=True))
    assert (cohort.num_decodes, cohort.offset + 3) == (1, 5)
    cohort.composed(7)
    assert (cohort.num_decodes, cohort.offset, sum(cohort.needs)) == (0, 0, 0)
    assert list(cohort.members) == [sequence], "its last token is in flight"


def test_an_end_that_is_not_foreseen_stays_in_the_sums_until_it_leaves() -> None:
    cohort, sequence = DecodeCohort(BLOCK_SIZE), decoding(5)
    cohort.join(sequence, DecodeSpan(sequence, 3, 7, has_known_end=False))
    cohort.composed(7)
    assert cohort.num_decodes == 1
    assert cohort.pop_ended(7) == [sequence]
    cohort.leave(sequence)
    assert (cohort.num_decodes, cohort.offset, sum(cohort.needs), sequence.span) == (0, 0, 0, None)


def test_a_span_that_was_cut_short_does_not_end() -> None:
    cohort, sequence = DecodeCohort(BLOCK_SIZE), decoding(5)
    cohort.join(sequence, DecodeSpan(sequence, 3, 7, has_known_end=True))
    cohort.leave(sequence)
    cohort.join(sequence, DecodeSpan(sequence, 4, 7, has_known_end=True))
    assert cohort.pop_ended(7) == [sequence]


def test_ends_come_in_order_of_admission() -> None:
    cohort = DecodeCohort(BLOCK_SIZE)
    later, earlier = decoding(5, number=2), decoding(6, number=1)
    for sequence in (later, earlier):
        cohort.join(sequence, DecodeSpan(sequence, 3, 7, has_known_end=True))
    assert cohort.end_heap == [7]
    assert cohort.pop_ended(7) == [earlier, later]
    assert not cohort.end_heap
