"""The latency model's view of drafts: prefill tokens that come with a sequence and read no context of their own."""

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.scheduler.drafter import DraftedTokens, draft_shape
from blis_sim.engine.sequence import Sequence
from tests.fakes import request


def drafted(num_tokens: int, context: int, num_drafts: int, input_tokens: int = 10) -> DraftedTokens:
    return DraftedTokens(
        sequence=Sequence(request(input_tokens=input_tokens), 0),
        num_tokens=num_tokens,
        context_tokens=context,
        known_tokens=context + num_tokens - num_drafts,
        samples=True,
        num_drafts=num_drafts,
        num_proposed=num_drafts,
    )


def test_a_verification_is_a_decode_with_prefill_tokens_behind_it() -> None:
    assert draft_shape([drafted(4, context=20, num_drafts=3)]) == BatchShape(
        prefill_tokens=3,
        prefill_tokens_squared=9,
        prefill_context_work=3 * 21,
        prefill_prompt_work=3 * 21,
        decode_requests=1,
        decode_context_tokens=20,
        draft_tokens=3,
    )


def test_a_newcomer_filled_up_prefills_its_last_prompt_token_and_the_rest_behind_it() -> None:
    assert draft_shape([drafted(4, context=9, num_drafts=3)]) == BatchShape(
        prefill_requests=1,
        prefill_tokens=1 + 3,
        prefill_tokens_squared=1 + 9,
        prefill_context_tokens=9,
        prefill_context_work=9 + 3 * 10,
        prefill_prompt_work=10 + 3 * 10,
        draft_tokens=3,
    )


def test_without_drafts_nothing_is_different() -> None:
    shape = draft_shape([drafted(1, context=20, num_drafts=0), drafted(6, context=4, num_drafts=0)])
    assert shape == BatchShape(1, 6, 36, 4, 24, 60, 1, 20)


def test_tokens_and_requests_of_the_batch_are_those_of_its_grants() -> None:
    shape = draft_shape([drafted(4, context=20, num_drafts=3), drafted(5, context=0, num_drafts=0)])
    assert (shape.num_requests, shape.num_tokens, shape.num_sampled) == (2, 9, 5)
