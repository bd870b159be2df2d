"""Submission of requests that need only the prefill, as poolers do."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.generation.answer import Answer
from mockserve.http.headers import UNKNOWN_CALLER, Caller
from mockserve.kv_events.naming import Scope
from mockserve.protocol.bodies import Ending
from mockserve.protocol.errors import internal_error, paused
from mockserve.protocol.sampling import Delivery
from mockserve.reply.reply import (
    MAX_OPEN,
    LazyChoices,
    PlannedChoice,
    PlannedPrompt,
    Reply,
    ReplyDelivery,
    ReplyJob,
)
from mockserve.serving.planner import Planner

LONG_TOKENS = 20_000
"""Number of tokens from which hashing their blocks takes milliseconds."""
_NOT_WRITTEN: Any = None
"""The bodies and writers of a reply of which only the end matters here."""


class _Prefills(Reply):
    """Prompts whose only token marks the end of prefill."""

    def end_choice(self, choice: PlannedChoice, num_tokens: int, ending: Ending) -> None:
        if ending.finish_reason == "abort":
            self.fail(internal_error("Failed to generate results for all prompts"))
        else:
            super().end_choice(choice, num_tokens, ending)


async def prefill(
    delivery: ReplyDelivery,
    planner: Planner,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    draft: Request,
    scope: Scope,
    arrived_at: Micros,
    finish_reason: str = "stop",
    caller: Caller = UNKNOWN_CALLER,
) -> None:
    """Prefill all prompts. Requests still in the engine are aborted at the end.

    Of many prompts only some are in the engine at a time. `num_tokens` is the total length of the prompts. Metrics
    count the requests under `finish_reason`; spans are children of the span of `caller`. Raises ApiError when the
    engine refuses a prompt.
    """
    if delivery.suspension.rejects_new:
        raise paused()
    answer = Answer([""], Ending(finish_reason), [""], [0])

    def choice(place: int, _index: int = 0, _number: int = 0) -> PlannedChoice:
        return PlannedChoice(planner.prefill_request(prompts[place], draft, scope), answer=answer)

    is_long = num_tokens > LONG_TOKENS or len(prompts) > MAX_OPEN
    planned = [
        PlannedPrompt((), "", LazyChoices(partial(choice, place), (0,)) if is_long else [choice(place)])
        for place in range(len(prompts))
    ]
    job = ReplyJob(_NOT_WRITTEN, _NOT_WRITTEN, Delivery(), planned, is_long=is_long)
    caller = replace(UNKNOWN_CALLER, traceparent=caller.traceparent, tracestate=caller.tracestate)
    with delivery.open_replies:
        await _Prefills(delivery, job, arrived_at, caller).run()
