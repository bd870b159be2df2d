"""Requests that the cache canary could not keep up with are unknown from their own place in the order on."""

import queue

from observe.http import parse_server
from observe.proxy.cache_canary import CacheBound, Canary, CheckedRequest

BLOCK_TOKENS = 4
PROMPT = list(range(12))


class ToldCanary(Canary):
    """A canary that needs no server: all prompts have the same tokens."""

    __slots__ = ()

    def _prompt_tokens(self, request: CheckedRequest) -> tuple[bytes, list[int]]:
        return b"root", PROMPT


def checked(number: int) -> CheckedRequest:
    """A request that ended at its number, and found nothing in the cache."""
    at = 10 * number + 10
    return CheckedRequest(
        number=number,
        path="/v1/completions",
        body=b"{}",
        authorization="",
        sent=at,
        ready=at + 1,
        ended=at + 2,
        is_ok=True,
        prompt_tokens=len(PROMPT),
        output_tokens=1,
        cached_tokens=None,
        in_flight_tokens=0,
    )


def canary(waiting: int) -> tuple[Canary, "queue.Queue[CheckedRequest | None]"]:
    """A canary for which so many requests may wait."""
    waits: queue.Queue[CheckedRequest | None] = queue.Queue(waiting)
    return ToldCanary(parse_server("http://127.0.0.1:9"), None, CacheBound(BLOCK_TOKENS, 1000), _queue=waits), waits


def must_hit_tokens(found: Canary, waits: "queue.Queue[CheckedRequest | None]", count: int) -> int:
    """Check so many waiting requests, and return what all so far had to find."""
    for _ in range(count):
        request = waits.get_nowait()
        assert request is not None
        found._check_request(request)
    return found.figures.must_hit_tokens


def test_a_block_of_requests_before_unseen_ones_is_not_claimed_after_them() -> None:
    found, waits = canary(waiting=2)
    for number in range(3):  # there is no room for the last one
        found.check(checked(number))
    before = must_hit_tokens(found, waits, 2)
    assert before > 0, "the second request found what the first one had left"
    found.check(checked(3))
    assert must_hit_tokens(found, waits, 1) == before, "the unseen request may have taken the place of all blocks"
    found.check(checked(4))
    assert must_hit_tokens(found, waits, 1) == 2 * before


def test_without_unseen_requests_each_one_finds_what_was_left() -> None:
    found, waits = canary(waiting=8)
    for number in range(5):
        found.check(checked(number))
    assert must_hit_tokens(found, waits, 5) == 4 * BLOCK_TOKENS
